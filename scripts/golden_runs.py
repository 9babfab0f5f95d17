"""Compare tiny runs and kept tables of two checkouts bit by bit: `python scripts/golden_runs.py --against ../other`.

Each task type and each model of the registry is trained for two steps and predicts once; the studies of `docs/study`
are written from their kept runs. A line says whether the files are equal, or the first that differs. No number is
stored: both checkouts run on this machine.
"""

import argparse
import json
import os
import subprocess
import sys
import tarfile
import tempfile
import traceback
from collections.abc import Iterator
from contextlib import chdir
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
STUDIES = {
    "study-small": ("runs",),
    "why": ("runs", "why-runs"),
    "shift": ("claims-runs",),
    "attacks --sentence_encoder minilm": ("claims-runs",),
}
"""The tables of kept runs, each with its archives."""

RUN = "--max_steps 2 --per_device_train_batch_size 8 --use_cpu true --disable_tqdm true --save_strategy no"
SMALL = {
    "gat": "hidden_dim=4 num_attention_heads=2",
    "gatv2": "hidden_dim=4 num_attention_heads=2",
    "mcan": "hidden_dim=16 num_attention_heads=2 num_hidden_layers=1 embedding_dim=8 reduction_dim=8 joint_dim=16 "
    "conv_channels=[8,8]",
    "captioner": "embedding_dim=16 hidden_dim=16 conv_channels=[16]",
    "seq2seq-lstm": "embedding_dim=16 hidden_dim=16",
}
"""The sizes of models; those without an entry are built at their own size."""

OF_THE_CLOCK = ("seconds", "runtime", "per_second", "memory", "date", "versions", "device")
"""Parts of the names of results that two equal runs do not share."""


def make_inputs(folder: Path) -> None:
    """Write the rows of each kind of task, and a tiny BERT, with the makers of the tests."""
    sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "tasks")]
    import graphs
    import made
    import questions
    import task_rows
    import test_images
    from conftest import WORDS
    from transformers import ViTConfig

    from alignattn.tasks.definitions import TASKS

    with chdir(folder):
        made.write_rows()
        made.write_model()
        for task in ("sst2", "swag", "msra", "squad"):
            task_rows.write_rows(Path(f"{task}.jsonl"), task_rows.make_rows(TASKS[task], 16))
        labels = "".join(f"{' '.join(WORDS[i : i + 4])},{i % 2},{i // 2 % 2}\n" for i in range(16))
        Path("comments.csv").write_text(f"comment,rude,long\n{labels}")
        story = "1 Mary moved to the {0}.\n2 John went to the hallway.\n3 Where is Mary?\t{0}\t1\n"
        Path("qa1_train.txt").write_text("".join(map(story.format, ["bathroom", "garden"] * 8)))
        graphs.write_graph("graph.npz")
        test_images.write_digits(Path("digits"), 16)
        test_images.save_model(ViTConfig(**test_images.VIT), Path("vit"))
        rows = questions.question_rows(questions.write_pictures(Path("pictures")), times=2)
        write_lines("questions.jsonl", rows)
        questions.write_task(Path(), sources={"files": dict.fromkeys(("train", "validation"), "questions.jsonl")})
        write_lines("captions.jsonl", [{"image": row["image"], "caption": f"it is {row['label']}"} for row in rows])
        write_lines("pairs.jsonl", [{"word": word, "spoken": " ".join(word.upper())} for word in WORDS])
        write_task("captions", "kind: image-to-text\nimage_size: 16\n")
        write_task("pairs", "kind: text2text-generation\nsource_column: word\ntarget_column: spoken\n"
                   "source_units: characters\n")  # fmt: skip


def write_lines(name: str, rows: list[dict[str, Any]]) -> None:
    """Write rows as JSON lines."""
    Path(name).write_text("".join(f"{json.dumps(row)}\n" for row in rows))


def write_task(name: str, text: str) -> None:
    """Write the definition of a task whose rows are in the file of its name."""
    Path(f"{name}.yaml").write_text(f"{text}sources: {{files: {{train: {name}.jsonl, validation: {name}.jsonl}}}}\n")


def commands() -> Iterator[tuple[str, str]]:
    """Yield each run's name and the words of `finetune`."""
    from alignattn.models import MODELS, capabilities_of

    files = "--train_file {0} --validation_file {0}"
    rows = {
        "text-classification": f"--task sst2 {files.format('sst2.jsonl')}",
        "multi-label-classification": f"{files.format('comments.csv')} --text_columns comment --label_column rude long",
        "multiple-choice": f"--task swag {files.format('swag.jsonl')}",
        "token-classification": f"--task msra {files.format('msra.jsonl')}",
        "question-answering": f"--task squad {files.format('squad.jsonl')} --doc_stride 8",
        "node-classification": "--task graph.npz",
        "visual-question-answering": "--task colours.yaml",
        "text2text-generation": "--task pairs.yaml",
        "image-to-text": "--task captions.yaml",
    }
    pairs = f"{files.format('train.csv')} --text_columns a b --label_column same"
    story = f"{files.format('qa1_train.txt')} --text_columns story question --label_column answer"
    for kind in list(rows)[:5]:
        for attention in ("soft", "aa-ct"):
            yield f"{kind}-{attention}", f"--model tiny --attention {attention} --max_length 40 {rows[kind]}"
    yield "image-classification", f"--model vit --attention aa-ct {files.format('digits')}"
    for model in MODELS:
        entry = capabilities_of(model)
        words = rows[entry.tasks[0].kind]
        if entry.tasks[0].kind == "text-classification" and 1 not in entry.texts_per_row:
            words = story if model == "memn2n" else pairs
        sizes = f"--model_config {SMALL[model]}" if SMALL.get(model) else ""
        attention = "--attention aa-ct" if entry.has_heads else ""
        yield model, f"--model {model} {sizes} {attention} {words}"


def run_all(inputs: Path, out: Path, studies: Path) -> None:
    """Make every run and table in a folder, with the package of this process; a failed one leaves its error."""
    from alignattn.cli import main

    def call(words: str, name: str) -> None:
        try:
            code = main(words.split())
        except Exception:
            code = traceback.format_exc()
        if code:
            (out / f"{name}.error").write_text(f"{words}: {code}")

    with chdir(inputs):
        for name, words in json.loads((inputs / "commands.json").read_text()):
            call(f"finetune {words} {RUN} --output_dir {out / name}", name)
            file = next(
                word for word in words.split() if word.endswith((".csv", ".jsonl", ".txt", ".yaml", ".npz", "digits"))
            )
            file = "questions.jsonl" if file == "colours.yaml" else file.replace(".yaml", ".jsonl")
            call(
                f"predict --run {out / name} --file {file} --output_file {out / name}.predicted.jsonl",
                f"{name}-predict",
            )
    for name, archives in json.loads((out / "tables.json").read_text()).items():
        table, *options = name.split()
        for archive in archives:
            with tarfile.open(studies / f"{archive}.tar.gz") as opened:
                opened.extractall(out / f"of-{table}", filter="data")
        place = out / f"of-{table}"
        call(f"reproduce {studies / table}.yaml {' '.join(options)} --finished_only true --output_dir {place}", table)


def told(value: Any) -> Any:
    """Return results without what the clock, the machine and the folder say."""
    if isinstance(value, dict):
        return {name: told(one) for name, one in value.items() if not any(part in name for part in OF_THE_CLOCK)}
    return [told(one) for one in value] if isinstance(value, list) else value


def difference(ours: Path, theirs: Path, name: str) -> str:
    """Return which file of a run or table differs first; empty if all are equal."""
    kinds = ("results.json", "predictions.parquet", "*.safetensors", f"{name}.csv")
    files = [path for kind in kinds for path in sorted((ours / name).glob(kind))]
    files += sorted(ours.glob(f"{name}.predicted*")) + sorted(ours.glob(f"of-{name}/{name}/{name}.csv"))
    ends = (f"{name}.error", f"{name}-predict.error")
    errors = [folder / end for folder in (ours, theirs) for end in ends if (folder / end).exists()]
    if errors or not files:
        return errors[0].read_text().strip().splitlines()[-1] if errors else "nothing was written"
    for path in files:
        other = theirs / path.relative_to(ours)
        if not other.exists():
            return f"{path.relative_to(ours)} is missing"
        if path.name == "results.json":
            pairs = [json.dumps(told(json.loads(one.read_text())), sort_keys=True) for one in (path, other)]
        else:
            pairs = [one.read_bytes() for one in (path, other)]
        if pairs[0] != pairs[1]:
            return f"{path.relative_to(ours)} differs"
    return ""


def compare() -> int:
    """Run both checkouts, print a line per run, and return the number of differences."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--against", type=Path, required=True, help="worktree of the other commit")
    parser.add_argument("--only", default="", help="only the runs and tables whose names contain this text")
    given = parser.parse_args()
    sys.path.insert(0, str(ROOT))
    folder = Path(tempfile.mkdtemp(prefix="golden-"))
    (inputs := folder / "inputs").mkdir()
    make_inputs(inputs)
    runs = [(name, words) for name, words in commands() if given.only in name]
    tables = {name: archives for name, archives in STUDIES.items() if given.only in name}
    (inputs / "commands.json").write_text(json.dumps(runs))
    for name, tree in (("ours", ROOT), ("theirs", given.against.resolve())):
        (folder / name).mkdir()
        (folder / name / "tables.json").write_text(json.dumps(tables))
        words = [str(Path(__file__).resolve()), "--make", str(inputs), str(folder / name), str(tree / "docs" / "study")]
        environment = {**os.environ, "PYTHONPATH": str(tree), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
        with (folder / f"{name}.log").open("w") as log:
            subprocess.run([sys.executable, *words], env=environment, stdout=log, stderr=log, check=True)  # noqa: S603
    names = [name for name, _ in runs] + [name.split()[0] for name in tables]
    found = {name: difference(folder / "ours", folder / "theirs", name) for name in names}
    for name, text in found.items():
        print(f"{name}: {text or 'equal'}")
    print(f"{sum(not text for text in found.values())} of {len(found)} are equal; the files are in {folder}")
    return sum(map(bool, found.values()))


if __name__ == "__main__":
    # `compare` starts a process for each checkout, whose package is on PYTHONPATH.
    if sys.argv[1:2] == ["--make"]:
        run_all(*map(Path, sys.argv[2:]))
    else:
        sys.exit(bool(compare()))
