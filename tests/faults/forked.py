"""Kill commands at their own writes: `python tests/faults/forked.py FOLDER [--renames] NAME...`, a JSON line a point.

A process that has imported everything forks a child for each call. A first call counts the writes of this package: each
flush of a file to the disk (`os.fsync`) and each renaming to its final name (`os.replace`). For each of them, a call is
killed there, the same command is run again, and its files are compared with those of an undisturbed call. With
`--renames` it is killed at the renamings alone: a process that dies at a flush leaves the same files as at the renaming
that follows.
"""

import contextlib
import gc
import hashlib
import json
import mmap
import os
import re
import shutil
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from pkgutil import resolve_name
from types import SimpleNamespace
from typing import Any

# Imported before any library that caches files: it makes the home of this process a temporary folder.
from conftest import SPECIAL, WORDS

# isort: split
import pandas as pd
import pyarrow.parquet as pq
import torch
import yaml
from made import write_resources

import alignattn.finetuning.run  # noqa: F401  # finetune imports it when it runs
from alignattn.cli import USER_ERROR_EXIT_CODE, main
from alignattn.commands import get_command
from alignattn.commands.reproduce.folder import RunFolder
from alignattn.commands.reproduce.launchers import worker
from alignattn.robustness.library import load_textattack

os.environ["TOKENIZERS_PARALLELISM"] = "false"
RESOURCES = "resources"
KILLED = -signal.SIGKILL
RENAMES = "--renames"
POINTS = ("replace",) if RENAMES in sys.argv else ("fsync", "replace")
COUNTER = struct.Struct("q")
OF_TIME = re.compile(r"runtime|_per_second|seconds")
"""Names of numbers that differ between calls."""
TIMED_FILES = frozenset(
    {
        *("README.md", "trainer_state.json", "training_args.bin", "curves.svg"),
        *("log.txt", "own.html"),
    }
)
"""Files whose contents depend on time: only whether they exist and are not empty is compared."""

LATER_IS_FASTER = 0.4
"""Duration of the second save of a process, as a fraction of the first."""

ROWS, OTHER_ROWS = 8, 6
TRAINING = (
    *("--num_train_epochs", "1", "--per_device_train_batch_size", "4", "--use_cpu", "true", "--max_length", "16"),
    *("--learning_rate", "1e-3"),
)


def sentences(count: int, start: int = 0) -> list[str]:
    return [
        " ".join(WORDS[(start + row * (place + 1) + place) % len(WORDS)] for place in range(4)) for row in range(count)
    ]


class Workplace:
    """A folder with a tiny model and rows, and the command lines that use them."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.model = folder, folder / "tiny"
        self._save_model()
        for name, count in (("train", ROWS), ("validation", OTHER_ROWS)):
            frame = pd.DataFrame({"a": sentences(count), "b": sentences(count, 3), "label": [0, 1] * (count // 2)})
            frame.to_csv(folder / f"{name}.csv", index=False)
        pair = {"premise": sentences(ROWS), "hypothesis": sentences(ROWS, 2), "label": [0, 1, 2, 0, 1, 2, 0, 1]}
        for name in ("snli/train", "snli/validation", "glue/mnli/validation_matched"):
            path = folder / "data" / f"{name}.parquet"
            path.parent.mkdir(parents=True, exist_ok=True)
            pd.DataFrame(pair).to_parquet(path)
        of_table = {"model": str(self.model), "text_columns": ["a", "b"], "max_length": 16, "num_train_epochs": 1}
        of_table |= {f"{part}_file": str(folder / f"{part}.csv") for part in ("train", "validation")}
        accuracy = {"label": "accuracy", "path": "metrics.validation.accuracy"}
        table = {
            "title": "of one run",
            "command": "finetune",
            "options": of_table | {"save_strategy": "no", "use_cpu": True},
            "rows": [{"options": {"attention": "soft"}}],
            "columns": [{"label": "own rows", "options": {}, "measures": [accuracy]}],
        }
        (folder / "own.yaml").write_text(yaml.safe_dump(table))
        (folder / "texts.txt").write_text("\n".join(f"{text} {text}" for text in sentences(60)) + "\n")

    def _save_model(self) -> None:
        import transformers

        self.model.mkdir()
        (self.model / "vocab.txt").write_text("\n".join(SPECIAL + WORDS))
        transformers.BertTokenizer(str(self.model / "vocab.txt"), model_max_length=64).save_pretrained(self.model)
        torch.manual_seed(0)
        size = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 32}
        vocabulary = len(SPECIAL + WORDS)
        config = transformers.BertConfig(vocab_size=vocabulary, max_position_embeddings=64, **size)
        transformers.BertForMaskedLM(config).save_pretrained(self.model)

    def words(self, name: str, out: Path) -> list[str]:
        """Return the command line of a command that writes `out`."""
        at = {"model": str(self.model), "data": str(self.folder / "data"), "texts": str(self.folder / "texts.txt")}
        run, rows = str(self.folder / "run"), [str(self.folder / f"{part}.csv") for part in ("train", "validation")]
        of_rows = ["--train_file", rows[0], "--validation_file", rows[1], "--text_columns", "a", "b"]
        finetune = ["finetune", "--model", at["model"], *of_rows, *TRAINING, "--attention", "aa-ct"]
        shift = ["--pair", "snli-mnli", "--data_dir", at["data"], "--model", at["model"], "--attention", "soft"]
        lines: dict[str, list[str]] = {
            "finetune": [*finetune, "--save_strategy", "steps", "--save_steps", "1", "--output_dir", str(out)],
            "seeds": [*finetune, "--save_strategy", "no", "--seeds", "1", "2", "--output_dir", str(out)],
            "domain-shift": ["domain-shift", *shift, *TRAINING, "--output_dir", str(out)],
            "calibrate": ["calibrate", f"{run}/predictions.parquet", "--resamples", "10", "--output_dir", str(out)],
            "uncertainty": [
                *("uncertainty", "--run", run, "--passes", "2", "--resamples", "10", "--output_dir", str(out)),
            ],
            "inspect": [
                "inspect",
                "--model",
                at["model"],
                "--validation_file",
                at["texts"],
                "--max_length",
                "16",
                "--output_dir",
                str(out),
            ],
            "figure": ["figure", "curves", "--run", run, "--output_file", str(out / "curves.svg")],
            "robustness": [
                *("robustness", "--run", run, "--recipes", "textbugger", "--num_examples", "3", "--max_length", "16"),
                *("--neighbors", str(self.folder / RESOURCES / "neighbors.parquet"), "--sentence_encoder", at["model"]),
                *("--nltk_data", str(self.folder / RESOURCES / "nltk_data"), "--output_dir", str(out)),
            ],
            "reproduce": ["reproduce", str(self.folder / "own.yaml"), "--num_seeds", "1", "--output_dir", str(out)],
        }
        return lines[name]


def in_child(work: Callable[[], int], log: Path, *, leads: bool = True) -> int:
    """Call a function in a child process, with its output in a file, and return the exit code.

    Args:
        work: the function.
        log: file of its output; appended to unless the child leads.
        leads: whether the child leads its own process group, which is killed together.
    """
    pid = os.fork()
    if pid == 0:
        if leads:
            os.setpgid(0, 0)
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | (os.O_TRUNC if leads else os.O_APPEND))
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        code = 1
        try:
            torch.set_num_threads(1)
            code = work()
            sys.stdout.flush()
        except BaseException:
            import traceback

            traceback.print_exc()
            sys.stderr.flush()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def run_worker(command: Sequence[str], **_: Any) -> subprocess.CompletedProcess[str]:
    """Run the worker of `reproduce` in a child, which has imported everything and whose writes are counted."""
    folder = Path(command[3])
    code = in_child(lambda: worker.work(RunFolder.read(folder)), folder / worker.LOG_FILE, leads=False)
    return subprocess.CompletedProcess(list(command), code)


def killed_at(point: int, words: Sequence[str], count_file: Path | None = None) -> Callable[[], int]:
    """Return a function that runs a command, and kills itself and its children instead of a write.

    Args:
        point: the number of the write, from 1; 0 for none.
        words: the command.
        count_file: file for the number of writes.
    """

    def work() -> int:
        # Shared memory, so that its children continue the count.
        reached = mmap.mmap(-1, COUNTER.size)

        def counted(real: Callable[..., Any]) -> Callable[..., Any]:
            def call(*args: Any, **kwargs: Any) -> Any:
                (before,) = COUNTER.unpack_from(reached)
                COUNTER.pack_into(reached, 0, before + 1)
                if before + 1 == point:
                    os.killpg(0, signal.SIGKILL)
                return real(*args, **kwargs)

            return call

        for name in POINTS:
            setattr(os, name, counted(getattr(os, name)))
        code = main(words)
        if count_file is not None:
            count_file.write_text(str(*COUNTER.unpack_from(reached)))
        return code

    return work


def contents(folder: Path) -> dict[str, Any]:
    """Return what two calls of one command must have in common, by file.

    A kill between the end of a run of a table and the note of its duration loses the note, so it is left out.
    """
    found: dict[str, Any] = {}
    left_out = {*folder.rglob("*.lock"), *folder.glob("runs/*/seconds.txt"), *folder.glob("runs/*/.alignattn-*.txt")}
    for path in sorted(path for path in folder.rglob("*") if path.is_file() and path not in left_out):
        found[str(path.relative_to(folder))] = _content(path, folder)
    return found


def _content(path: Path, folder: Path) -> Any:
    if path.name in TIMED_FILES:
        return path.stat().st_size > 0
    if path.suffix == ".parquet":
        return pq.read_table(path).to_pylist()
    if path.suffix == ".json":
        return _timeless(json.loads(path.read_text().replace(str(folder), "")))
    if path.suffix in (".yaml", ".txt", ".csv", ".md", ".tex"):
        return path.read_text().replace(str(folder), "").replace(folder.name, "")
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _timeless(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _timeless(item) for name, item in value.items() if not OF_TIME.search(name)}
    return [_timeless(item) for item in value] if isinstance(value, list) else value


def try_command(place: Workplace, name: str) -> None:
    """Kill a command at each of its writes, and print a JSON line for each."""
    counted, whole = place.folder / f"{name}-count", place.folder / f"{name}-whole"
    code = in_child(killed_at(0, place.words(name, whole), counted), place.folder / "log")
    if code:
        print(json.dumps({"command": name, "point": 0, "survived": False, "why": _end(place)}), flush=True)
        return
    expected, count = contents(whole), int(counted.read_text())
    for point in range(1, count + 1):
        out = place.folder / f"{name}-{point}"
        why = ""
        words = place.words(name, out)
        code = in_child(killed_at(point, words), place.folder / "log")
        if code != KILLED:
            why = f"ended with {code} before it was killed: {_end(place)}"
        else:
            code = in_child(lambda words=words: main(words), place.folder / "log")
            found = contents(out)
            differing = [file for file in expected | found if expected.get(file, "") != found.get(file, "")]
            # A finished result is not overwritten: the command refuses this with exit code 2.
            if code and (differing or "already" not in _end(place)):
                why = f"the same command ended with {code}: {_end(place)}"
            elif differing:
                why = f"differs in {', '.join(differing)}"
        print(json.dumps({"command": name, "point": point, "survived": not why, "why": why}), flush=True)
        shutil.rmtree(out, ignore_errors=True)


def killed_while_saving(words: Sequence[str], share: float) -> Callable[[], int]:
    """Return a function that runs a command, and is killed after this share of the time of its second checkpoint.

    The first checkpoint is timed; the killing thread starts with the second.
    """

    def work() -> int:
        from transformers import Trainer

        save, took = Trainer._save_checkpoint, []

        def timed(trainer: Any, *args: Any, **kwargs: Any) -> None:
            if took:
                delay = took[0] * share * LATER_IS_FASTER
                killer = threading.Thread(
                    target=lambda: (time.sleep(delay), os.kill(os.getpid(), signal.SIGKILL)), daemon=True
                )
                killer.start()
            start = time.perf_counter()
            save(trainer, *args, **kwargs)
            took.append(time.perf_counter() - start)

        Trainer._save_checkpoint = timed
        return main(words)

    return work


def try_saves(place: Workplace, name: str) -> None:
    """Kill a run in the middle of a checkpoint, and print a JSON line."""
    share = int(name.rpartition("-")[2]) / 10
    whole, out = _whole_run(place), place.folder / name
    words = place.words("finetune", out)
    code = in_child(killed_while_saving(words, share), place.folder / "log")
    left = sorted(str(path.relative_to(out)) for path in out.glob("checkpoint-*/*"))
    is_killed = code == KILLED
    code = in_child(lambda: main(words), place.folder / "log") if is_killed else code
    expected, found = contents(whole), contents(out)
    why = f"ended with {code}: {_end(place)}" if code else ""
    why = why or ", ".join(file for file in expected | found if expected.get(file, "") != found.get(file, ""))
    line = {"command": name, "point": share, "killed": is_killed, "survived": not why, "why": why, "left": left}
    print(json.dumps(line), flush=True)


def try_pair(place: Workplace, name: str) -> None:
    """Run one command twice, some tenths of a second apart, and print a JSON line.

    One makes the run. The other reads it, or is refused because the first has not ended.
    """
    apart = int(name.rpartition("-")[2]) / 10
    whole, out = _whole_run(place), place.folder / name
    words = place.words("finetune", out)

    def both() -> int:
        first = os.fork()
        if first == 0:
            torch.set_num_threads(1)
            os._exit(main(words))
        time.sleep(apart)
        codes = main(words), os.waitstatus_to_exitcode(os.waitpid(first, 0)[1])
        return max(codes) if min(codes) == 0 else 1

    code = in_child(both, place.folder / "log")
    expected, found = contents(whole), contents(out)
    is_refused = code == USER_ERROR_EXIT_CODE and "wait until it ends" in (place.folder / "log").read_text()
    why = f"ended with {code}: {_end(place)}" if code and not is_refused else ""
    why = why or ", ".join(file for file in expected | found if expected.get(file, "") != found.get(file, ""))
    print(json.dumps({"command": name, "point": apart, "survived": not why, "why": why}), flush=True)


def _whole_run(place: Workplace) -> Path:
    """Return the folder of an undisturbed run."""
    whole = place.folder / "undisturbed"
    if not whole.exists():
        assert in_child(lambda: main(place.words("finetune", whole)), place.folder / "log") == 0, _end(place)
    return whole


def _end(place: Workplace) -> str:
    lines = (place.folder / "log").read_text(errors="replace").strip().splitlines()
    return " | ".join(lines[-3:])


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    write_resources(folder / RESOURCES)
    for command in (
        "domain-shift",
        "inspect",
        "calibrate",
        "uncertainty",
        "figure",
        "reproduce",
    ):
        resolve_name(get_command(command).run)
    with contextlib.suppress(ImportError):
        import transformers.models.bert.modeling_bert  # noqa: F401
    if "robustness" in sys.argv[2:]:
        load_textattack()
    vars(worker)["subprocess"] = SimpleNamespace(run=run_worker, DEVNULL=subprocess.DEVNULL, STDOUT=subprocess.STDOUT)
    workplace = Workplace(folder)
    # Each training collects garbage, for which a child would copy the memory of all imported modules.
    gc.freeze()
    run = workplace.words("finetune", folder / "run")
    assert in_child(lambda: main(run), folder / "log") == 0, _end(workplace)
    for command in [word for word in sys.argv[2:] if word != RENAMES]:
        kind = command.rpartition("-")[0]
        {"saves": try_saves, "pair": try_pair}.get(kind, try_command)(workplace, command)
