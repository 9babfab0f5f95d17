"""`alignattn completion`: scripts of every shell, which know commands, options, choices and paths."""

import subprocess

import pytest

from alignattn.cli import main
from alignattn.commands.completion import COMMAND
from alignattn.utils.options import options_of

SHELLS = options_of(COMMAND.options)["shell"].choices


@pytest.mark.parametrize("shell", SHELLS)
def test_completion_knows_commands_options_and_choices(shell, capsys):
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    for word in ("domain-shift", "learning_rate", "all_checkpoints"):
        assert word in script


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["alignattn", "robu"], ["robustness"]),
        (["alignattn", "finetune", "--alignment_lea"], ["--alignment_learning_rate"]),
        (["alignattn", "finetune", "--save_strategy", "ep"], ["epoch"]),
    ],
)
def test_bash_completes(words, expected, tmp_path, capsys):
    main(["completion", "bash"])
    script = tmp_path / "alignattn"
    script.write_text(capsys.readouterr().out)
    ask = f"""
source {script}
COMP_WORDS=({" ".join(words)}); COMP_CWORD={len(words) - 1}
$(complete -p alignattn | sed 's/.*-F \\([^ ]*\\) .*/\\1/') alignattn {words[-1]} {words[-2]}
printf '%s\\n' "${{COMPREPLY[@]}}"
"""
    done = subprocess.run(["bash", "-c", ask], capture_output=True, text=True, check=False)
    assert done.stdout.split() == expected, done.stderr


def test_an_unknown_shell_is_refused_in_one_line(capsys):
    assert main(["completion", "csh"]) == 2
    assert "choose one of bash, zsh, tcsh, fish" in capsys.readouterr().err
