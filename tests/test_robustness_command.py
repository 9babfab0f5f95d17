"""`alignattn robustness` from a run of `finetune` to the table, on real sentences with the local resources."""

import json
from importlib.util import find_spec
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from conftest import SHARED
from transformers import AutoConfig, AutoModelForMaskedLM, AutoTokenizer

from alignattn.cli import main
from alignattn.robustness.recipes import RECIPES

RESOURCES = SHARED / "resources"
pytestmark = [
    pytest.mark.skipif(find_spec("textattack") is None, reason="needs textattack and the extra 'attack' (make attack)"),
    pytest.mark.skipif(not RESOURCES.is_dir(), reason=f"needs the linguistic resources of {RESOURCES}"),
]


@pytest.fixture(scope="module")
def run_folder(minilm: str, shared_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """MiniLM, shortly fine-tuned on SST-2."""
    folder = tmp_path_factory.mktemp("runs") / "sst2-aa-ct"
    words = (
        f"finetune --model {minilm} --task sst2 --data_dir {shared_data} --attention aa-ct --max_train_samples 128 "
        f"--max_eval_samples 8 --num_train_epochs 2 --learning_rate 2e-4 --per_device_train_batch_size 16 "
        f"--save_strategy no --disable_tqdm true --use_cpu true --output_dir {folder}"
    )
    assert main(words.split()) == 0
    return folder


@pytest.fixture(scope="module")
def stand_in_mlm(minilm: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A masked-language model of random weights: it proposes any word."""
    folder = tmp_path_factory.mktemp("mlm")
    config = AutoConfig.from_pretrained(minilm, num_hidden_layers=1)
    torch.manual_seed(0)
    AutoModelForMaskedLM.from_config(config).save_pretrained(folder)
    AutoTokenizer.from_pretrained(minilm).save_pretrained(folder)
    return folder


@pytest.fixture
def words(run_folder: Path, stand_in_mlm: Path, minilm: str) -> list[str]:
    return (
        f"robustness --run {run_folder} --num_examples 3 --max_length 64 --sentence_encoder {minilm} "
        f"--neighbors {RESOURCES / 'counterfitted_neighbors.parquet'} --mlm {stand_in_mlm} "
        f"--nltk_data {RESOURCES / 'nltk_data'}"
    ).split()


def table_of(folder: Path) -> list[dict]:
    (table,) = json.loads((folder / "robustness.json").read_text())["tables"]
    return table["summaries"]


def test_every_recipe_from_a_run_to_the_table_and_the_page(words, tmp_path, capsys) -> None:
    folder = tmp_path / "out"
    assert main([*words, "--output_dir", str(folder)]) == 0
    printed = capsys.readouterr().out
    assert "neighbour lists of at most 8 words" in printed  # the set stands in the caption
    summaries = table_of(folder)
    assert [summary["settings"]["recipe"] for summary in summaries] == list(RECIPES)
    for summary in summaries:
        assert summary["failed"] + summary["succeeded"] == 3
        assert summary["errors"] == 0
        assert summary["settings"]["attention"] == "aa-ct"
    assert (folder / "robustness.csv").is_file()
    records = folder / "sst2-aa-ct" / "textfooler.jsonl"
    before = records.read_bytes()
    assert main([*words, "--output_dir", str(folder)]) == 0  # finished: attacks nothing
    assert records.read_bytes() == before
    assert table_of(folder) == summaries
    page = tmp_path / "page.html"
    assert main(["robustness", "show", str(records), "--html", str(page)]) == 0
    assert "<html" in page.read_text()


def test_merged_shards_are_the_whole_run(words, tmp_path, capsys) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    words = [*words, "--recipes", "textbugger"]
    assert main([*words, "--output_dir", str(whole)]) == 0
    for shard in ("2/2", "1/2"):
        assert main([*words, "--output_dir", str(parts), "--shard", shard]) == 0
        assert "--merge" in capsys.readouterr().out
    assert main(["robustness", "--merge", "--output_dir", str(parts)]) == 0
    name = Path("sst2-aa-ct") / "textbugger.jsonl"
    assert (parts / name).read_bytes() == (whole / name).read_bytes()
    assert table_of(parts) == table_of(whole)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ("--recipes pwws", "unknown recipe 'pwws': choose of textfooler, textbugger, bae"),
        ("--attack_columns sentence2", "--attack_columns sentence2: give one or more of the task's columns: sentence"),
        ("--neighbors missing.parquet", "--neighbors missing.parquet: there is no such file"),
        ("--synonyms wordnet", "the words to swap come from one of them"),
        ("--shard 3/2", "there is no shard 3/2"),
        ("--model somewhere --task sst2", "--run names model and task"),
        ("--run .", "is no run folder of"),
        ("--num_examples 0", "nothing to attack"),
        ("--max_length 9999", "9999"),
        ("--merge", "holds no records of attacks"),
        pytest.param(
            "--half_precision",
            "--half_precision is for CUDA",
            marks=pytest.mark.skipif(torch.cuda.is_available(), reason="a CUDA GPU is here"),
        ),
    ],
)
def test_mistakes_are_one_line(changes, message, words, tmp_path, capsys) -> None:
    assert main([*words, *changes.split(), "--output_dir", str(tmp_path / "out")]) == 2
    assert message in capsys.readouterr().err.splitlines()[-1]
    assert not list(tmp_path.glob("out/*/*.jsonl"))


def test_a_regression_is_no_target(minilm, shared_data, tmp_path, capsys) -> None:
    words = f"robustness --model {minilm} --task stsb --data_dir {shared_data} --output_dir {tmp_path / 'out'}"
    local = f"--neighbors {RESOURCES / 'counterfitted_neighbors.parquet'} --sentence_encoder {minilm} --mlm {minilm}"
    assert main([*words.split(), *local.split()]) == 2
    assert "task 'stsb' has no such classes" in capsys.readouterr().err


def test_a_model_that_is_not_there_is_said_once(tmp_path, capsys, shared_data) -> None:
    words = f"robustness --model {tmp_path / 'none'} --task sst2 --data_dir {shared_data} --recipes textbugger"
    local = f"--neighbors {RESOURCES / 'counterfitted_neighbors.parquet'} --output_dir {tmp_path / 'out'}"
    assert main([*words.split(), *local.split()]) == 2
    assert capsys.readouterr().err.splitlines()[-1].count("cannot load the model") == 1


def test_bad_rows_are_named_or_left_out_and_fewer_rows_than_asked_for_are_said(minilm, tmp_path, capsys) -> None:
    rows = {"sentence": ["a fine movie", "", "1234 !!!", "a dull , awful movie"], "label": [1, 1, 0, 7]}
    (tmp_path / "glue" / "sst2").mkdir(parents=True)
    pq.write_table(pa.table(rows), tmp_path / "glue" / "sst2" / "validation.parquet")
    words = (
        f"robustness --model {minilm} --task sst2 --data_dir {tmp_path} --recipes textbugger "
        f"--nltk_data {RESOURCES / 'nltk_data'} --sentence_encoder {minilm} "
        f"--neighbors {RESOURCES / 'counterfitted_neighbors.parquet'} "
        f"--output_dir {tmp_path / 'out'}"
    ).split()
    assert main(words) == 2
    assert "row 2: column 'sentence' is empty (2 bad of 4 rows)" in capsys.readouterr().err
    assert main([*words, "--skip_bad_rows"]) == 0
    printed = capsys.readouterr().out
    assert "sst2 validation: 2 row(s) that cannot be used are left out" in printed
    assert "fewer than the 1000 asked for: the split is used whole" in printed
    (summary,) = table_of(tmp_path / "out")
    assert summary["failed"] + summary["succeeded"] + summary["skipped"] == 2
