import inspect
import re
import subprocess
import sys

import pytest

from alignattn.attention.choices import SLOTS
from alignattn.attention.config import PRESETS
from alignattn.cli import main
from alignattn.commands.list import WHAT
from alignattn.finetuning.tables import TABLES
from alignattn.models import MODELS
from alignattn.tasks.definitions import TASKS

GIVEN_BY_THE_MODEL = {"head_dim", "num_heads", "num_layers", "head_reduction"}
"""Arguments of the choices' classes that are not options."""

NAMES = {
    "slots": [name for choices in SLOTS.values() for name in choices],
    "presets": list(PRESETS),
    "tasks": list(TASKS),
    "models": [*MODELS, "minilm"],
    "tables": list(TABLES),
}


def listed(capsys: pytest.CaptureFixture[str], *what: str) -> list[str]:
    assert main(["list", *what]) == 0
    return capsys.readouterr().out.splitlines()


def test_each_argument_has_a_list() -> None:
    assert set(WHAT) == set(NAMES)


@pytest.mark.parametrize("what", WHAT)
def test_every_name_has_a_line_and_every_number_a_source(what: str, capsys: pytest.CaptureFixture[str]) -> None:
    lines = listed(capsys, what)
    for name in NAMES[what]:
        (line,) = [line for line in lines if name in line.split()[: 2 if what == "slots" else 1]]
        assert len(line.split()) > 2
    first_source = next(index for index, line in enumerate(lines) if line.startswith("["))
    cited = set(re.findall(r"\[\d+\]", "".join(lines[:first_source])))
    assert cited == {line.split()[0] for line in lines[first_source:]}


def test_a_choice_is_listed_with_its_equation_and_paper(capsys: pytest.CaptureFixture[str]) -> None:
    lines = listed(capsys, "slots", "presets")
    (choice,) = [line for line in lines if line.split()[:2] == ["alignment", "ct"]]
    (preset,) = [line for line in lines if line.startswith("aa-ct ")]
    number = choice.split("[")[1].partition("]")[0]
    assert choice.endswith(f"[{number}] eq. 4")
    assert preset.endswith(f"[{number}] eq. 4")
    (source,) = [line for line in lines if line.startswith(f"[{number}]")]
    assert source.startswith(f'[{number}] Zhang et al. 2021, "Alignment Attention by Matching Key and Query')


def test_the_listed_options_of_a_choice_are_the_arguments_of_its_class(capsys: pytest.CaptureFixture[str]) -> None:
    lines = listed(capsys, "slots")
    for slot, choices in SLOTS.items():
        for name in choices:
            keywords = inspect.signature(choices.load(name)).parameters.keys() - GIVEN_BY_THE_MODEL
            (line,) = [line for line in lines if line.split()[:2] == [slot, name]]
            assert set(re.findall(r"(\w+)=[\w|]", line)) == keywords - {"args", "kwargs"}


def test_without_arguments_everything_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    lines = listed(capsys)
    firsts = {word for line in lines for word in line.split()[:2]}
    assert firsts.issuperset(name for names in NAMES.values() for name in names)


def test_an_unknown_list_is_refused_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "metrics"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "metrics" in line
    assert "slots" in line


def test_nothing_heavy_is_imported() -> None:
    code = (
        "import sys; from alignattn.cli import main; main(['list']);"
        "print([name for name in ('torch', 'transformers', 'datasets', 'pandas') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "[]"
