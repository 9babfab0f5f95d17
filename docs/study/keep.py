"""Pack the small files of a study's finished runs: `python keep.py RESULTS ARCHIVE [KNOWN_ARCHIVE …]`.

Every run keeps its predictions, so that seeds and rows can be resampled together. The probabilities of a run under
domain shift, up to 8,000 rows, are rounded to four decimals: exact ones would take 18 MB instead of 6. An attack keeps
its records without the texts, which belong to the data. A run whose model an unfinished attack needs is left out,
because no weights are packed. So are the runs of a known archive. `results.json` gets the names that later versions
read its fields by, beside its own.
"""

import gzip
import io
import json
import sys
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

DEFINITION = "experiment.json"
OF_ALL = (DEFINITION, "seconds.txt")
RESULTS, ATTACKS = "run/results.json", "run/robustness.json"
"""Files that a run writes last."""

TRAINING = "finetune"
CONFIG = "run/config.yaml"
ATTACK_RECORDS = "run/records.parquet"
TEXTS = ["original", "perturbed"]
"""Columns of an attack's records."""

DECIMALS = 4
COMPACT = {
    "index": False,
    "compression": "zstd",
    "compression_level": 19,
    "use_dictionary": ["side", "split", "outcome", "recipe"],
    "column_encoding": {"row": "DELTA_BINARY_PACKED"},
}
"""How parquet files are written: the defaults take half as much again."""
RENAMED = {"one_answer": "constant_prediction", "cut_rows": "truncated_rows"}


def definition_of(run: Path) -> dict[str, Any]:
    """Return the definition of a run."""
    return json.loads((run / DEFINITION).read_bytes())


def awaited_runs(results: Path) -> list[dict[str, Any]]:
    """Return the definitions of the runs whose models unfinished attacks need."""
    runs = [path.parent for path in results.glob(f"runs/*/{DEFINITION}")]
    return [definition_of(run)["needs"] for run in runs if not (run / ATTACKS).exists() and definition_of(run)["needs"]]


def small_files(results: Path, known: set[str]) -> dict[str, bytes]:
    """Return the files of the runs that are finished and not known, by their path below the results."""
    found = {}
    awaited = awaited_runs(results)
    for done in sorted([*results.glob(f"runs/*/{RESULTS}"), *results.glob(f"runs/*/{ATTACKS}")]):
        run = done.parents[1]
        definition = definition_of(run)
        if run.name in known or definition in awaited:
            continue
        own = [run / name for name in OF_ALL]
        if done == run / RESULTS:
            own.append(run / CONFIG)
            predictions = sorted(done.parent.glob("*.parquet"))
            if not predictions:
                print(f"left out: {run} keeps no predictions", file=sys.stderr)
                continue
            own += predictions
        contents = {path: path.read_bytes() for path in own}
        if done == run / ATTACKS:
            contents[run / ATTACK_RECORDS] = attack_records(run)
        elif definition["command"] != TRAINING:
            contents |= {path: rounded_predictions(path) for path in predictions}
        found |= {str(path.relative_to(results)): content for path, content in contents.items()}
        fields = json.loads(done.read_bytes())
        fields |= {later: fields[name] for name, later in RENAMED.items() if name in fields}
        found[str(done.relative_to(results))] = json.dumps(fields, indent=2).encode() + b"\n"
    return found


def rounded_predictions(path: Path) -> bytes:
    """Return a file of predictions with probabilities of four decimals."""
    predictions = pd.read_parquet(path)
    probabilities = np.stack(predictions["probabilities"]).round(DECIMALS).astype("float32")
    return predictions.assign(probabilities=list(probabilities)).to_parquet(**COMPACT)


def attack_records(run: Path) -> bytes:
    """Return the records of the attacks of a run, a row per attacked text, without the texts."""
    files = sorted(run.glob("run/*/*.jsonl"))
    records = pd.concat([pd.read_json(path, lines=True) for path in files], ignore_index=True)
    return records.drop(columns=TEXTS).to_parquet(**COMPACT)


def pack(files: dict[str, bytes], archive: Path) -> None:
    """Write an archive that is the same for the same files."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    archive.write_bytes(gzip.compress(packed.getvalue(), mtime=0))


def runs_of(archive: Path) -> set[str]:
    """Return the digests of the runs in an archive."""
    with tarfile.open(archive) as tar:
        return {Path(name).parts[1] for name in tar.getnames()}


if __name__ == "__main__":
    results, archive, *others = map(Path, sys.argv[1:])
    pack(small_files(results, set().union(*map(runs_of, others))), archive)
