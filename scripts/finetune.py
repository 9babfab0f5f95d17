"""Fine-tune a pretrained encoder on a task: `alignattn finetune` as a script."""

import sys

from alignattn.cli import main

if __name__ == "__main__":
    sys.exit(main(["finetune", *sys.argv[1:]]))
