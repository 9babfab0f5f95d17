"""Pictures of runs: `alignattn figure` as a script."""

import sys

from alignattn.cli import main

if __name__ == "__main__":
    sys.exit(main(["figure", *sys.argv[1:]]))
