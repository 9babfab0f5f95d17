"""Output of commands, made by the commands themselves, for tests to read, to damage and to resume.

All paths are relative: a test copies the folder and changes into the copy.
"""

import json
import random
from contextlib import chdir
from dataclasses import asdict
from pathlib import Path
from unittest import mock

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import torch
import transformers
from conftest import SPECIAL, WORDS

from alignattn.cli import main
from alignattn.robustness.records import AttackHeader, AttackRecord, AttackSettings, header_path, read_run
from alignattn.robustness.summary import summarise_attacks, tabulate, write_attack_tables
from alignattn.utils.files import write_json

TRAIN_ROWS, VALIDATION_ROWS, ATTACKED_ROWS = 16, 8, 3

ROWS = "--train_file train.csv --validation_file validation.csv --text_columns a b --label_column same"
TRAINING = (
    "--num_train_epochs 2 --per_device_train_batch_size 8 --learning_rate 1e-3 --max_length 24 "
    "--disable_tqdm true --use_cpu true"
)
FINISHED = f"{ROWS} {TRAINING} --save_strategy no"
COMMANDS = {
    "aa-ct": f"finetune --model tiny --attention aa-ct {FINISHED} --output_dir finished/aa-ct",
    "esim": f"finetune --model esim --model_config hidden_dim=4 embedding_dim=4 {FINISHED} --output_dir finished/esim",
    "unfinished": f"finetune --model tiny --attention aa-gan {ROWS} {TRAINING} --save_strategy steps --save_steps 3 "
    "--output_dir unfinished",
}
CHECKPOINT = "unfinished/checkpoint-3"


def make(folder: Path) -> None:
    """Fill a folder with rows, resources and a tiny model, two finished runs, a stopped run, and attacks."""
    with chdir(folder):
        write_rows()
        write_resources(Path("resources"))
        write_model()
        for name in ("aa-ct", "esim"):
            assert main(COMMANDS[name].split()) == 0
        write_unfinished_run()
        write_attacks()


def draw_texts(drawn: random.Random, count: int) -> list[str]:
    return [" ".join(drawn.choices(WORDS, k=drawn.randint(4, 8))) for _ in range(count)]


def write_rows() -> None:
    drawn = random.Random(0)
    for name, count in (("train", TRAIN_ROWS), ("validation", VALIDATION_ROWS)):
        first, second = draw_texts(drawn, count), draw_texts(drawn, count)
        same = ["yes" if set(text.split()) & {"cat", "dog", "bird"} else "no" for text in first]
        pd.DataFrame({"a": first, "b": second, "same": same}).to_csv(f"{name}.csv", index=False)
    for path in ("snli/train", "snli/validation", "glue/mnli/validation_matched"):
        count = TRAIN_ROWS + VALIDATION_ROWS
        frame = pd.DataFrame({"premise": draw_texts(drawn, count), "hypothesis": draw_texts(drawn, count)})
        file = Path("data") / f"{path}.parquet"
        file.parent.mkdir(parents=True, exist_ok=True)
        frame.assign(label=[index % 3 for index in range(count)]).to_parquet(file, index=False)
    vectors = [f"{word} {' '.join(f'{drawn.uniform(-1, 1):.2f}' for _ in range(4))}" for word in WORDS]
    Path("vectors.txt").write_text("\n".join(vectors) + "\n")


def write_resources(folder: Path) -> None:
    """Write neighbours of each word, and stop words in the format of the corpus of NLTK."""
    stopwords = folder / "nltk_data" / "corpora" / "stopwords"
    stopwords.mkdir(parents=True)
    (stopwords / "english").write_text("the\na\nand\n")
    neighbors = [[WORDS[(index + step) % len(WORDS)] for step in (3, 7, 11)] for index in range(len(WORDS))]
    pq.write_table(pa.table({"word": WORDS, "neighbors": neighbors}), folder / "neighbors.parquet")


def write_model() -> None:
    vocabulary = {word: index for index, word in enumerate(SPECIAL + WORDS)}
    transformers.BertTokenizer(vocab=vocabulary, model_max_length=40).save_pretrained("tiny")
    torch.manual_seed(0)
    sizes = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 8}
    config = transformers.BertConfig(vocab_size=len(vocabulary), max_position_embeddings=40, **sizes)
    transformers.BertModel(config).save_pretrained("tiny")


def write_unfinished_run() -> None:
    """Stop a run right after its first checkpoint."""
    save = transformers.Trainer._save_checkpoint

    def save_and_stop(*args: object, **kwargs: object) -> None:
        save(*args, **kwargs)
        raise KeyboardInterrupt

    with mock.patch.object(transformers.Trainer, "_save_checkpoint", save_and_stop):
        assert main(COMMANDS["unfinished"].split()) != 0
    assert Path(CHECKPOINT).is_dir()


def write_attacks() -> None:
    """Write records in the form of TextBugger, and tabulate them."""
    path = Path("attacks/aa-ct/textbugger.jsonl")
    settings = AttackSettings(
        run="finished/aa-ct",
        model="made/tiny",
        task="user",
        split="validation",
        attention="aa-ct",
        recipe="textbugger",
        attack_columns=("a", "b"),
        max_length=24,
        seed=0,
        num_examples=ATTACKED_ROWS,
        precision="float32",
        resources={},
    )
    header = AttackHeader(settings, VALIDATION_ROWS, (), "12ab", {}, ("no", "yes"))
    write_json(header_path(path), asdict(header))
    record = AttackRecord(
        index=0,
        recipe="textbugger",
        outcome="succeeded",
        label=1,
        original={"a": "the cat sees", "b": "a dog"},
        perturbed={"a": "the c at sees", "b": "a dog"},
        original_scores=(0.25, 0.75),
        perturbed_scores=(0.75, 0.25),
        queries=9,
        words=5,
        words_changed=2,
        seed=0,
    )
    path.write_text(
        "".join(json.dumps(asdict(record) | {"index": row, "seed": row}) + "\n" for row in range(ATTACKED_ROWS))
    )
    write_attack_tables(Path("attacks"), tabulate([summarise_attacks(read_run(path))]))
