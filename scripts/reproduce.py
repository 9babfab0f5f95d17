"""A table of a paper, measured: `alignattn reproduce` as a script."""

import sys

from alignattn.cli import main

if __name__ == "__main__":
    sys.exit(main(["reproduce", *sys.argv[1:]]))
