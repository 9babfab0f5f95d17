"""Time and memory of a training and an evaluation step: `alignattn benchmark` as a script."""

import sys

from alignattn.cli import main

if __name__ == "__main__":
    sys.exit(main(["benchmark", *sys.argv[1:]]))
