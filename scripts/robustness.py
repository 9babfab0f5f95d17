"""How many attacks on fine-tuned models fail: `alignattn robustness` as a script."""

import sys

from alignattn.cli import main

if __name__ == "__main__":
    sys.exit(main(["robustness", *sys.argv[1:]]))
