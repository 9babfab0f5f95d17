"""The `alignattn` command: one thin function a subcommand, and the one place where mistakes are caught."""

import os
import sys
from collections.abc import Callable, Sequence

from alignattn import __version__
from alignattn.support.errors import AlignAttnError, reason_of

USER_ERROR_EXIT_CODE = 2
INTERRUPTED_EXIT_CODE = 130
"""Of a shell's command that Ctrl-C ended: 128 and the number of SIGINT."""

USAGE = """usage: alignattn COMMAND [options]

commands:
  finetune      fine-tune a pretrained encoder on a task, with or without alignment attention
  domain-shift  fine-tune on one task, report accuracy and calibration on it and on another task
  robustness    how many attacks by TextFooler, TextBugger and BAE fail; `show` and `train-mlm` go with it
  inspect       what each attention head of a model does, as a table and heat maps; or two models side by side
  figure        pictures of runs: queries and keys, attention, calibration, curves over training
  reproduce     a table of a paper, measured: what is missing of it is run, and written beside the published figures
  calibrate     how far confidence is from accuracy in saved predictions, as a table and reliability diagrams
  benchmark     time and memory of a training and an evaluation step, as ratios to plain attention
  demo          fine-tune MiniLM with plain and with alignment attention on generated sentence pairs

`alignattn COMMAND --help` lists the options of a command."""


def _finetune(argv: Sequence[str]) -> None:
    from alignattn.commands.finetune.command import main

    main(argv)


def _domain_shift(argv: Sequence[str]) -> None:
    from alignattn.commands.domain_shift.command import main

    main(argv)


def _robustness(argv: Sequence[str]) -> None:
    from alignattn.commands.robustness.command import main

    main(argv)


def _inspect(argv: Sequence[str]) -> None:
    from alignattn.commands.inspect.command import main

    main(argv)


def _calibrate(argv: Sequence[str]) -> None:
    from alignattn.commands.calibrate.command import main

    main(argv)


def _figure(argv: Sequence[str]) -> None:
    from alignattn.commands.figure.command import main

    main(argv)


def _reproduce(argv: Sequence[str]) -> None:
    from alignattn.commands.reproduce.command import main

    main(argv)


def _benchmark(argv: Sequence[str]) -> None:
    from alignattn.commands.benchmark.command import main

    main(argv)


def _demo(argv: Sequence[str]) -> None:
    from alignattn.commands.demo.command import main

    main(argv)


COMMANDS: dict[str, Callable[[Sequence[str]], None]] = {
    "finetune": _finetune,
    "domain-shift": _domain_shift,
    "robustness": _robustness,
    "inspect": _inspect,
    "figure": _figure,
    "reproduce": _reproduce,
    "calibrate": _calibrate,
    "benchmark": _benchmark,
    "demo": _demo,
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code: 0, 2 with one line for a mistake a user can mend, 130 after Ctrl-C."""
    words = list(sys.argv[1:] if argv is None else argv)
    if words[:1] == ["--version"]:
        print(f"alignattn {__version__}")
        return 0
    if not words or words[0] in ("-h", "--help"):
        print(USAGE)
        return 0 if words else USER_ERROR_EXIT_CODE
    # The image classes of transformers warn, one line each, that torchvision is missing; no text model needs it.
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    try:
        if words[0] not in COMMANDS:
            raise AlignAttnError(f"unknown command {words[0]!r}: choose one of {', '.join(COMMANDS)}")
        COMMANDS[words[0]](words[1:])
    except AlignAttnError as error:
        print(f"alignattn: {error}", file=sys.stderr)
        return USER_ERROR_EXIT_CODE
    except OSError as error:
        # A full disk, a folder that may not be written: the machine's doing, and the user's to mend.
        if error.filename is None and error.strerror is None:
            raise
        print(f"alignattn: {reason_of(error)}", file=sys.stderr)
        return USER_ERROR_EXIT_CODE
    except KeyboardInterrupt:
        print("alignattn: stopped; what is written stays", file=sys.stderr)
        return INTERRUPTED_EXIT_CODE
    return 0


def entry_point() -> None:
    """Run as the installed command."""
    sys.exit(main())


if __name__ == "__main__":
    entry_point()
