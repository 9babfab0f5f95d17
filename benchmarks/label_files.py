"""How `alignattn finetune` reads small files whose labels, words or weights are easily misread.

    python benchmarks/label_files.py [--cases zero gap] [--output_dir label_files]

Each case writes a training and a validation file and trains MiniLM on them for a few steps. A line of the printed table
has the options of the command and its outcome: the classes and scores of `results.json` and the command's messages
about the files, or the error.
"""

import argparse
import datetime
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
from safetensors.torch import load_file, save_file

POSITIVE = ("a good film", "a great film", "a nice film", "great fun", "so good", "very nice", "good fun", "great")
NEGATIVE = ("a bad film", "an awful film", "a poor film", "no fun", "so bad", "very poor", "awful", "bad")
SIDES = {"train": 3, "validation": 1}
"""How often each text is in a file."""
TEXTS = ["--text_columns", "text"]
TRAINING = ["--learning_rate", "3e-4", "--num_train_epochs", "3", "--save_strategy", "no", "--use_cpu", "true"]
SAID = re.compile(r"step \d|\d%\||batches of|attention |rows have|new weights|Warning|runs/|Loading|Writing|^\s*$")
"""Lines that are not about the files."""
QUESTION = {"id": "1", "question": "who?", "answers": [{"text": "Ann", "answer_start": 0}]}
SQUAD = {"version": "1.1", "data": [{"title": "a", "paragraphs": [{"context": "Ann sings.", "qas": [QUESTION]}]}]}
SENTENCE = (("Ann", "B-PER"), ("sings", "O"), ("well", "O"))


def rows(side: str, positive: Any = "pos", negative: Any = "neg") -> list[tuple[str, Any]]:
    """Return the texts and labels of a side."""
    return [(text, positive) for text in POSITIVE * SIDES[side]] + [(text, negative) for text in NEGATIVE * SIDES[side]]


def csv(
    *labels: Any, extra: dict[str, str] | None = None, header: str = "label,text", tail: str = ""
) -> dict[str, str]:
    """Return CSV files with these two labels, and with further lines for some sides."""
    return {
        f"{side}.csv": "\n".join(
            [header, *(f'"{label}",{text}{tail}' for text, label in rows(side, *labels)), (extra or {}).get(side, "")]
        )
        for side in SIDES
    }


def jsonl(*labels: Any, extra: str = "") -> dict[str, str]:
    """Return JSON Lines files with these two labels, and another line for the training file."""
    lines = {
        side: "\n".join(json.dumps({"text": text, "label": label}) for text, label in rows(side, *labels))
        for side in SIDES
    }
    return {f"{side}.jsonl": text + ("\n" + extra if side == "train" else "") for side, text in lines.items()}


def conll(line: str) -> dict[str, str]:
    """Return CoNLL files whose lines have this format."""
    sentence = "\n".join(line.format(n=number, w=word, t=tag) for number, (word, tag) in enumerate(SENTENCE, start=1))
    return {f"{side}.conll": "\n\n".join([sentence] * 8) + "\n" for side in SIDES}


def class_labels(train: list[str], validation: list[str]) -> Callable[[Path], None]:
    """Return a function that writes Parquet files whose class names have these orders."""

    def write(folder: Path) -> None:
        for side, names in (("train", train), ("validation", validation)):
            texts, labels = zip(*rows(side), strict=True)
            columns = {"text": texts, "label": [names.index(label) for label in labels]}
            features = datasets.Features({"text": datasets.Value("string"), "label": datasets.ClassLabel(names=names)})
            datasets.Dataset.from_dict(columns, features=features).to_parquet(str(folder / f"{side}.parquet"))

    return write


def folders(folder: Path) -> None:
    """Write class folders in which some texts have another suffix."""
    for side in SIDES:
        for number, (text, label) in enumerate(rows(side)):
            path = folder / side / label / f"{number}.{'md' if number % 8 == 0 else 'txt'}"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)


def half(folder: Path) -> None:
    """Write files, and MiniLM with weights stored in half precision."""
    write(folder, csv("pos", "neg"))
    run(folder, ["--model", "minilm", "--attention", "soft", "--max_steps", "1", *TEXTS], "stored")
    path = folder / "runs" / "stored" / "model.safetensors"
    weights = load_file(path)
    save_file({name: own.half() for name, own in weights.items()}, path, metadata={"format": "pt"})
    config = path.with_name("config.json")
    config.write_text(json.dumps(json.loads(config.read_text()) | {"dtype": "float16"}))


Files = dict[str, str] | Callable[[Path], None]
CASES: dict[str, tuple[Files, list[str]]] = {
    "weights stored in float16": (half, ["--model", "runs/stored", *TEXTS]),
    "ClassLabel in another order": (class_labels(["neg", "pos"], ["pos", "neg"]), TEXTS),
    "labels in lists of one": (jsonl(["pos"], ["neg"]), TEXTS),
    "a label of several": (jsonl("pos", "neg", extra='{"text": "so so", "label": ["pos", "neg"]}'), TEXTS),
    "codes 0101, 101, 0202": (csv("0101", "101", extra={"train": "0202,so so"}), TEXTS),
    "whole numbers with a gap": (csv("1.0", "0.0", extra={"train": ",so so"}), [*TEXTS, "--skip_bad_rows", "true"]),
    "names 1e3 and 1e4": (csv("1e3", "1e4"), TEXTS),
    "a decimal comma": (csv("1,5", "2,5"), TEXTS),
    "CoNLL with an index": (conll("{n}\t{w}\t{t}"), []),
    "CoNLL-X": (conll("{n}\t{w}\t{w}\tN\tN\t_\t0\troot\t_\t_"), []),
    "CoNLL with a score behind the tag": (conll("{w} {t} 0.9{n}"), []),
    "header v1,v2,,,": (
        csv("pos", "neg", header="v1,v2,,,", tail=",,,"),
        ["--text_columns", "v2", "--label_column", "v1"],
    ),
    "SQuAD's own JSON": (
        {f"{side}.json": json.dumps(SQUAD, indent=1) for side in SIDES},
        ["--task", "squad", "--max_steps", "1"],
    ),
    "a null marker": (csv("pos", "neg", extra={"train": "NA,so so"}), TEXTS),
    "a twin with a zero-width space": (jsonl("pos", "neg", extra='{"text": "so so", "label": "pos\\u200b"}'), TEXTS),
    "half a character": (
        jsonl("pos", "neg", extra='{"text": "\\ud83d", "label": "pos"}'),
        [*TEXTS, "--skip_bad_rows", "true"],
    ),
    "class folders with .md files": (folders, []),
    "a score among classes of the validation file": (csv("1", "0", extra={"validation": "0.5,so so"}), TEXTS),
    "constant scores in the validation file": (
        {
            "train.csv": "\n".join(["label,text", *(f"{n / 8},{text}" for n, (text, _) in enumerate(rows("train")))]),
            "validation.csv": "\n".join(["label,text", *(f"1.5,{text}" for text, _ in rows("validation"))]),
        },
        TEXTS,
    ),
}
"""The files of each case, and further options of the command."""


def write(folder: Path, files: Files) -> None:
    """Write the files of a case."""
    if callable(files):
        files(folder)
        return
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")


def run(folder: Path, options: list[str], name: str) -> str:
    """Run the command in a folder, and return its outcome."""
    files = [str(path.name) for side in SIDES for path in folder.glob(f"{side}*")]
    given = [*zip(("--train_file", "--validation_file"), files, strict=True)]
    model = [] if "--model" in options else ["--model", "minilm"]
    command = [sys.executable, "-m", "alignattn", "finetune", *model, *(word for pair in given for word in pair)]
    output = folder / "runs" / name
    environment = os.environ | {"HF_HUB_OFFLINE": "1"}
    done = subprocess.run(  # noqa: S603 - the command is made here
        [*command, *options, *TRAINING, "--output_dir", str(output.relative_to(folder))],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    said = [line.strip() for line in (done.stdout + done.stderr).splitlines() if not SAID.search(line)]
    if done.returncode:
        return f"exit code {done.returncode}: {done.stderr.strip().splitlines()[-1]}"
    results = json.loads((output / "results.json").read_text())
    return f"{results['labels']} {results['metrics']} | " + " | ".join(said)


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", default=[""], help="parts of the names of cases (default: all)")
    parser.add_argument("--output_dir", type=Path, default=Path("label_files"), help="folder for files and runs")
    options = parser.parse_args()
    started = datetime.datetime.now().strftime("%H-%M-%S")
    for number, (name, (files, given)) in enumerate(CASES.items()):
        if any(part in name for part in options.cases):
            folder = (options.output_dir / started / str(number)).resolve()
            folder.mkdir(parents=True)
            write(folder, files)
            print(f"{name} | {' '.join(given)} | {run(folder, given, 'case')}", flush=True)


if __name__ == "__main__":
    main()
