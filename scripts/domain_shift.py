"""Fine-tune on one task, judge on it and on another: `alignattn domain-shift` as a script."""

import sys

from alignattn.cli import main

if __name__ == "__main__":
    sys.exit(main(["domain-shift", *sys.argv[1:]]))
