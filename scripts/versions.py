"""Install alignattn with other versions of its libraries, run its core tests there, and write docs/versions.md.

    make versions                                    # every environment, and the resolver with other packages
    python scripts/versions.py oldest newest         # some environments
    python scripts/versions.py --resolve_only        # no environment; only the resolver and the page

Each environment is fresh. uv creates it, in seconds if its cache contains the packages; the tests take about ten
minutes per environment. The result of an environment replaces its line in docs/versions.csv; the page is written from
this file.
"""

import argparse
import csv
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parent.parent
PAGE, TABLE = ROOT / "docs" / "versions.md", ROOT / "docs" / "versions.csv"
BEGIN = "<!-- Written by scripts/versions.py from here on. -->"
END = "<!-- Written by scripts/versions.py up to here. -->"
TORCH = next(line for line in (ROOT / "constraints.txt").read_text().splitlines() if line.startswith("torch=="))
"""Used in each environment: another version may have no CPU build at hand, and the newest GPU build takes gigabytes."""
OWN = f"{ROOT}[demo,peft,test]"
CORE_TESTS = (
    "tests/patching/families",
    "tests/patching/test_adapter_configs.py",
    "tests/patching/test_adapters.py",
    "tests/patching/test_alignment_loss.py",
    "tests/patching/test_attach.py",
    "tests/patching/test_balance.py",
    "tests/patching/test_calls.py",
    "tests/patching/test_changed_layers.py",
    "tests/patching/test_checkpoints.py",
    "tests/patching/test_observing.py",
    "tests/patching/test_other_attention.py",
    "tests/patching/test_packing.py",
    "tests/patching/test_patching.py",
    "tests/patching/test_slots.py",
    "tests/training/test_accumulation.py",
    "tests/training/test_sentence_transformers.py",
    "tests/training/test_trainer.py",
    "tests/tasks/test_labels.py",
    "tests/tasks/test_readers.py",
    "tests/finetuning/test_model_card.py",
    "tests/finetuning/test_model_fits.py",
    "tests/commands/finetune/test_finetune.py",
    "tests/commands/predict/test_predict.py",
)
"""The tests that depend most on transformers, peft, sentence-transformers and datasets."""
SHOWN = ("torch", "transformers", "datasets", "accelerate", "numpy", "pandas", "peft", "sentence-transformers")
COLUMNS = ("environment", "date", "python", *SHOWN, "passed", "failed", "minutes", "failures")


@dataclass(frozen=True)
class Environment:
    """An environment to install.

    Attributes:
        packages: requirements in addition to alignattn and the packages of its tests.
        resolution: resolution of uv: `highest`, or `lowest-direct` for the lowest versions that pyproject.toml allows.
        deprecations: whether deprecations caused by alignattn's code are errors (`tests/deprecations.py`).
        python: version of Python.
    """

    packages: tuple[str, ...] = ()
    resolution: str = "highest"
    deprecations: bool = False
    python: str = "3.11"


ENVIRONMENTS = {
    "oldest": Environment(resolution="lowest-direct"),
    "newest": Environment(deprecations=True),
    "transformers-5.7": Environment(("transformers==5.7.*", "peft==0.19.*", "sentence-transformers==5.4.*")),
    "transformers-5.15": Environment(("transformers==5.15.*", "peft==0.20.*", "sentence-transformers==6.0.*")),
    "python-3.12": Environment(python="3.12"),
    "python-3.13": Environment(python="3.13"),
}
NEIGHBOURS = (
    "autogluon.multimodal>=1.6",
    "gliner>=0.2.29",
    "gradio>=6",
    "peft>=0.19",
    "sentence-transformers>=5.4",
    "setfit>=1.2",
    "sglang>=0.5.10",
    "simpletransformers>=0.70",
    "unsloth>=2026.10",
    "vllm>=0.33",
    "adapters>=1",
    "flair>=0.15",
    "pylate>=1.3",
    "spacy-transformers>=1.3",
    "span-marker>=1.7",
)
"""Packages that users may want in one environment with alignattn."""
PYTHONS = ("3.11", "3.12", "3.13", "3.14")


def uv(*words: str | Path) -> subprocess.CompletedProcess[str]:
    """Run uv with pip's folder of wheels and the Pythons of pyenv."""
    pythons = sorted(map(str, Path.home().glob(".pyenv/versions/*/bin")))
    environment = os.environ | {
        "UV_FIND_LINKS": os.environ.get("PIP_FIND_LINKS", ""),
        "PATH": os.pathsep.join([os.environ["PATH"], *pythons]),
    }
    command = [sys.executable, "-m", "uv", *map(str, words)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)  # noqa: S603


def measure(name: str) -> dict[str, str]:
    """Return the line of an environment: installed versions and results of the tests."""
    chosen = ENVIRONMENTS[name]
    line = {"environment": name, "date": str(date.today()), "python": chosen.python}
    with tempfile.TemporaryDirectory(prefix=f"alignattn-{name}-") as folder:
        python = Path(folder) / "venv" / "bin" / "python"
        install = ("pip", "install", "--quiet", "--python", python)
        resolution = ("--resolution", chosen.resolution)
        for command in (
            ("venv", "--quiet", "--python", chosen.python, python.parents[1]),
            (*install, TORCH),
            (*install, *resolution, TORCH, *chosen.packages, "--editable", OWN),
        ):
            if (done := uv(*command)).returncode:
                return line | {"failures": " ".join(done.stderr.split())[-2000:]}
        listed = json.loads(uv("pip", "list", "--format", "json", "--python", python).stdout)
        versions = {package["name"]: package["version"] for package in listed}
        found = {shown: versions.get(shown, "") for shown in SHOWN}
        return line | found | run_tests(python, chosen, Path(folder) / "report.xml")


def run_tests(python: Path, chosen: Environment, report: Path) -> dict[str, str]:
    """Run the core tests, and return how many passed and which failed."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    words = ["--tb=short", "-p", "no:cacheprovider", "--junit-xml", str(report)]
    words += ["-p", "deprecations"] if chosen.deprecations else ["-W", "ignore"]
    start = time.monotonic()
    subprocess.run([str(python), "-m", "pytest", *words, *CORE_TESTS], cwd=ROOT, env=environment, check=False)  # noqa: S603
    minutes = (time.monotonic() - start) / 60
    cases = list(ElementTree.parse(report).iter("testcase")) if report.exists() else []  # noqa: S314
    failed = [case for case in cases if case.find("failure") is not None or case.find("error") is not None]
    skipped = [case for case in cases if case.find("skipped") is not None]
    return {
        "passed": str(len(cases) - len(failed) - len(skipped)),
        "failed": str(len(failed)) if cases else "no test ran",
        "minutes": f"{minutes:.0f}",
        "failures": " ".join(f"{case.get('classname')}::{case.get('name')}" for case in failed),
    }


def resolve(package: str, python: str = "3.11") -> str:
    """Return the versions of an environment with a package and alignattn, or why there is none."""
    with tempfile.NamedTemporaryFile("w", suffix=".in") as file:
        file.write("\n".join([str(ROOT), package]))
        file.flush()
        done = uv("pip", "compile", "--quiet", "--python-version", python, file.name)
    name = re.split(r"[<>=]", package)[0].replace(".", "-")
    if done.returncode:
        said = " ".join(done.stderr.split())
        reasons = re.findall(rf"{name}\S* depends on transformers\S*\d", said)
        return f"cannot: {reasons[-1] if reasons else said[-300:]}"
    found = re.findall(r"^(\S+)==(\S+)", done.stdout, re.MULTILINE)
    return ", ".join(f"{one} {version}" for one, version in found if one in (name, "torch", "transformers"))


def table_of(headings: tuple[str, ...], rows: list[list[str]]) -> str:
    """Return a table in Markdown."""
    return "\n".join(f"| {' | '.join(row)} |" for row in [list(headings), ["---"] * len(headings), *rows])


def write_page(lines: dict[str, dict[str, str]], neighbours: dict[str, str], pythons: dict[str, str]) -> None:
    """Write the measured tables into the page, between its marks."""
    shown = ("environment", "python", "torch", "transformers", "passed", "failed")
    failures = [f"- `{name}`: {line['failures']}" for name, line in lines.items() if line.get("failures")]
    resolved = {**neighbours, **{f"Python {name}": found for name, found in pythons.items()}}
    refused = [[package, found] for package, found in resolved.items() if found.startswith("cannot")]
    beside = ", ".join(package for package, found in resolved.items() if not found.startswith("cannot"))
    parts = [
        table_of(shown, [[line.get(column, "") for column in shown] for line in lines.values()]),
        *(["What failed:", "\n".join(failures)] if failures else []),
        f"What uv's resolver says about `alignattn` with one more package, on {date.today()}; nothing was installed. "
        f"It resolves beside {beside}.",
        *([table_of(("beside", "does not resolve"), refused)] if refused else []),
    ]
    above, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    below = rest.partition(END)[2]
    PAGE.write_text("\n\n".join([f"{above}{BEGIN}", *parts, f"{END}{below}"]), encoding="utf-8")


def main() -> None:
    """Measure the environments on the command line, by default all, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("environments", nargs="*", metavar="ENVIRONMENT", help=", ".join(ENVIRONMENTS))
    parser.add_argument("--resolve_only", action="store_true", help="run no tests")
    arguments = parser.parse_args()
    if unknown := set(arguments.environments) - ENVIRONMENTS.keys():
        parser.error(f"unknown environment {', '.join(sorted(unknown))}: choose from {', '.join(ENVIRONMENTS)}")
    lines: dict[str, dict[str, str]] = {}
    if TABLE.exists():
        with TABLE.open(newline="", encoding="utf-8") as file:
            lines = {line["environment"]: line for line in csv.DictReader(file)}
    chosen = [] if arguments.resolve_only else arguments.environments or list(ENVIRONMENTS)
    for name in chosen:
        lines[name] = measure(name)
        print(f"{name}: {lines[name]}", flush=True)
        with TABLE.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, COLUMNS, restval="", lineterminator="\n")
            writer.writeheader()
            writer.writerows(lines[known] for known in ENVIRONMENTS if known in lines)
    write_page(
        {name: lines[name] for name in ENVIRONMENTS if name in lines},
        {package: resolve(package) for package in NEIGHBOURS},
        {name: resolve("", name) for name in PYTHONS},
    )
    sys.exit(any(lines[name].get("failures") for name in chosen))


if __name__ == "__main__":
    main()
