"""Attack the toy rows on CHECKPOINT, with records in PATH, and die at swap KILL_AT. Run by test_robustness_resume."""

import sys
from pathlib import Path

from toy_attack import run

if __name__ == "__main__":
    run(Path(sys.argv[1]), Path(sys.argv[2]), kill_at=int(sys.argv[3]))
