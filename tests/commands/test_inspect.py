"""`alignattn inspect`: its figures against plain transformers, its output, and its error messages."""

import csv
import gzip
import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from conftest import VOCABULARY, tiny_model
from transformers import AutoModel, AutoTokenizer, BertTokenizer

import alignattn
from alignattn.attention.distance import sliced_wasserstein
from alignattn.cli import USER_ERROR_EXIT_CODE
from alignattn.cli import main as run_command
from alignattn.commands import inspect
from alignattn.commands.inspect import MEASURES, InspectOptions, inspect_model, load_texts

NUM_LAYERS = NUM_HEADS = 3
PNG_SIGNATURE = b"\x89PNG"
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
CLS, SEP = 2, 3
RARE_WORDS = ("b", "i")
"""Words of `TEXTS` that occur once: 2 of 19 tokens, the first tenth."""
TEXTS = ("a a a b a a", "c c", "a c d d d c a", "c i d d")
SHARPNESS = 12
"""Factor of query and key weights: with this factor random heads differ, and without they attend almost uniformly."""


pytestmark = pytest.mark.usefixtures("one_thread")


def save_tokenizer(folder: Path, **options: int) -> None:
    letters = [chr(ord("a") + index) for index in range(26)]
    words = [*SPECIAL, *letters, *(f"#{index}" for index in range(VOCABULARY - len(SPECIAL) - len(letters)))]
    BertTokenizer(vocab={word: index for index, word in enumerate(words)}, **options).save_pretrained(folder)


def sharp_model(family: str, seed: int = 0, **config_fields: int) -> torch.nn.Module:
    model = tiny_model(family, seed=seed, **config_fields)
    for name, parameter in model.named_parameters():
        if name.endswith(("query.weight", "key.weight")):
            parameter.data *= SHARPNESS
    return model


def save(folder: Path, model: torch.nn.Module) -> str:
    model.save_pretrained(folder)
    save_tokenizer(folder, model_max_length=64)
    return str(folder)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    root = tmp_path_factory.mktemp("models")
    made = {
        "bert": sharp_model("bert"),
        "other": sharp_model("bert", seed=5),
        "albert": sharp_model("albert"),
        "small": sharp_model("bert", num_hidden_layers=2),
    }
    return {name: save(root / name, model) for name, model in made.items()}


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("texts") / "texts.txt"
    path.write_text("\n".join(TEXTS) + "\n\n", encoding="utf-8")
    return str(path)


def arguments(model: str, data: str, folder: Path, **others: object) -> InspectOptions:
    fields = {"max_length": 32, "batch_size": 3} | others
    fields["validation_file" if Path(data).suffix else "task"] = data
    return InspectOptions(model=model, output_dir=str(folder), **fields)


@pytest.fixture
def maps(monkeypatch: pytest.MonkeyPatch) -> list:
    """Collect the panels of heat maps instead of drawing them, which takes the longest."""
    drawn: list = []
    monkeypatch.setattr(inspect, "draw_heat_maps", lambda panels, **_: drawn.extend(panels))
    monkeypatch.setattr(inspect, "write_figure", lambda figure, path: None)
    return drawn


def lines_of(folder: Path) -> list[dict[str, str]]:
    with (folder / "heads.csv").open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def table_of(output: str) -> list[list[str]]:
    """Return the cells of each layer of the printed table, and of uniform attention."""
    layers: dict[str, list[str]] = {}
    for line in output.partition("mean over heads")[2].splitlines():
        if " texts of " in line:
            break
        cells = line.split()
        if cells and (cells[0].isdigit() or cells[0] == "uniform"):
            assert len(line) < 100
            layers.setdefault(cells[0], []).extend(cells[1:])
    return [[layer, *cells] for layer, cells in layers.items()]


def plain_figures(folder: str) -> dict[tuple[int, int], dict[str, float]]:
    """Return each head's measures from transformers' eager attention, one text at a time, so without padding."""
    model = AutoModel.from_pretrained(folder, attn_implementation="eager")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    projected: dict[str, list[torch.Tensor]] = {"query": [], "key": []}
    for name, module in model.named_modules():
        role = name.rpartition(".")[2]
        if role in projected:
            module.register_forward_hook(lambda _, __, out, role=role: projected[role].append(out))
    rare_ids = tokenizer.convert_tokens_to_ids(list(RARE_WORDS))
    figures: dict[tuple[int, int], dict[str, list[float]]] = {}
    for text in TEXTS:
        batch = tokenizer(text, return_tensors="pt")
        ids = batch["input_ids"][0].tolist()
        for features in projected.values():
            features.clear()
        with torch.no_grad():
            attentions = model(**batch, output_attentions=True).attentions
        for layer, attention in enumerate(attentions):
            query, key = (
                projected[role][layer].unflatten(-1, (NUM_HEADS, -1)).transpose(1, 2) for role in ("query", "key")
            )
            distances = {"sliced_wasserstein": sliced_wasserstein(query, key).tolist()}
            for head in range(NUM_HEADS):
                values = weight_figures(attention[0, head].numpy(), ids, rare_ids)
                values |= {name: by_head[head] for name, by_head in distances.items()}
                for name, value in values.items():
                    figures.setdefault((layer, head), {}).setdefault(name, []).append(value)
    return {head: {name: float(np.mean(all_)) for name, all_ in values.items()} for head, values in figures.items()}


def weight_figures(weights: np.ndarray, ids: list[int], rare_ids: list[int]) -> dict[str, float]:
    n = len(ids)
    return {
        "entropy": -sum(p * math.log(p) for p in weights.flatten().tolist() if p) / n,
        "previous": float(np.mean([weights[i, i - 1] for i in range(1, n)])),
        "next": float(np.mean([weights[i, i + 1] for i in range(n - 1)])),
        "separators": sum(weights[:, j].mean() for j in range(n) if ids[j] in (CLS, SEP)),
        "rare": sum(weights[:, j].mean() for j in range(n) if ids[j] in rare_ids),
    }


@pytest.mark.parametrize("family", ["bert", "albert"])
def test_measures_equal_those_of_plain_transformers(
    family: str, models: dict[str, str], texts: str, tmp_path: Path, maps: list, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--model", models[family], "--validation_file", texts, "--output_dir", str(tmp_path), "--max_length", "32"]
    assert run_command(["inspect", *words, "--batch_size", "3"]) == 0
    expected, lines = plain_figures(models[family]), lines_of(tmp_path)
    heads = [(layer, head) for layer in range(NUM_LAYERS) for head in range(NUM_HEADS)]
    assert [(int(line["layer"]), int(line["head"])) for line in lines] == heads
    for line, head in zip(lines, heads, strict=True):
        assert {name: float(line[name]) for name in MEASURES} == pytest.approx(expected[head], rel=1e-4, abs=1e-6)
    *layers, uniform = table_of(capsys.readouterr().out)
    for layer, cells in enumerate(layers):
        means = (
            np.mean([float(lines[layer * NUM_HEADS + head][name]) for head in range(NUM_HEADS)]) for name in MEASURES
        )
        assert cells == [str(layer), *(f"{mean:.3f}" for mean in means)]
    lengths = [len(text.split()) + 2 for text in TEXTS]
    assert uniform[list(MEASURES).index("entropy") + 1] == f"{np.mean(np.log(lengths)):.3f}"
    entropies = [figures["entropy"] for figures in expected.values()]
    assert max(entropies) - min(entropies) > 0.1


@pytest.mark.usefixtures("maps")
def test_padding_changes_no_measure(models: dict[str, str], texts: str, tmp_path: Path) -> None:
    alone, together = (
        inspect_model(arguments(models["bert"], texts, tmp_path / str(size), batch_size=size))
        for size in (1, len(TEXTS))
    )
    pd.testing.assert_frame_equal(alone, together, rtol=1e-4, atol=1e-6)


def test_a_second_model_adds_its_columns_and_maps(
    models: dict[str, str], texts: str, tmp_path: Path, maps: list, capsys: pytest.CaptureFixture[str]
) -> None:
    both = inspect_model(arguments(models["bert"], texts, tmp_path / "both", compare=models["other"]))
    table, panels = table_of(capsys.readouterr().out), list(maps)
    first, second = (inspect_model(arguments(models[name], texts, tmp_path / name)) for name in ("bert", "other"))
    pd.testing.assert_frame_equal(both[list(MEASURES)], first)
    pd.testing.assert_frame_equal(both[[f"{name}_compare" for name in MEASURES]], second.add_suffix("_compare"))
    assert list(lines_of(tmp_path / "both")[0]) == ["layer", "head", *both.columns]
    for layer in range(NUM_LAYERS):
        means = [frame.loc[layer].mean() for frame in (first, second)]
        assert table[layer] == [str(layer), *("/".join(f"{mean[name]:.3f}" for mean in means) for name in MEASURES)]
    assert [panel.title for panel in panels] == [
        f"{letter}: {title}" for _, title in MEASURES.values() for letter in "AB"
    ]
    for index, name in enumerate(MEASURES):
        for panel, frame in zip(panels[2 * index :], (first, second), strict=False):
            assert panel.values == frame[name].to_numpy().reshape(NUM_LAYERS, NUM_HEADS).tolist()
            assert panel.top == max(first[name].max(), second[name].max())


@pytest.mark.usefixtures("maps")
@pytest.mark.parametrize("small_is_first", [False, True])
def test_a_layer_that_one_model_lacks_is_blank(
    small_is_first: bool, models: dict[str, str], texts: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = (models["small"], models["bert"]) if small_is_first else (models["bert"], models["small"])
    table = inspect_model(arguments(first, texts, tmp_path, compare=second))
    whole, partial = ("entropy_compare", "entropy") if small_is_first else ("entropy", "entropy_compare")
    assert table[whole].notna().all()
    assert table[partial].isna().tolist() == [False] * 2 * NUM_HEADS + [True] * NUM_HEADS
    starts = [line.split()[0] for line in capsys.readouterr().out.splitlines() if line.strip()]
    assert {*map(str, range(NUM_LAYERS)), "uniform"} <= {*starts}


def test_the_picture_is_a_png(models: dict[str, str], texts: str, tmp_path: Path) -> None:
    inspect_model(arguments(models["bert"], texts, tmp_path))
    assert (tmp_path / "heads.png").read_bytes().startswith(PNG_SIGNATURE)


@pytest.mark.usefixtures("maps")
def test_a_checkpoint_of_aligned_attention_shows_all_its_layers(
    models: dict[str, str], texts: str, tmp_path: Path
) -> None:
    model = alignattn.patch(sharp_model("bert"), "aa-ct", layers=(1,))
    patched = save(tmp_path / "patched", model)
    aligned, plain = (
        inspect_model(arguments(name, texts, tmp_path / Path(name).name)) for name in (patched, models["bert"])
    )
    assert list(aligned.index.unique("layer")) == [0, 1, 2]
    pd.testing.assert_frame_equal(aligned, plain)


@pytest.mark.usefixtures("maps")
def test_a_checkpoint_keeps_the_attention_that_it_was_trained_with(texts: str, tmp_path: Path) -> None:
    model = alignattn.patch(sharp_model("bert"), "hard", layers=(1, 2))
    table = inspect_model(arguments(save(tmp_path / "patched", model), texts, tmp_path / "out"))
    assert [line["layer"] for line in lines_of(tmp_path / "out")] == ["1"] * NUM_HEADS + ["2"] * NUM_HEADS
    assert table["entropy"].max() == 0


@pytest.mark.parametrize("name", ["pairs.csv", "pairs.tsv", "pairs.csv.gz"])
def test_a_table_of_pairs_is_read_by_its_columns(name: str, models: dict[str, str], tmp_path: Path) -> None:
    text = "x,label,y\na b,1,c\nd,0,e f g\n".replace(",", "\t" if ".tsv" in name else ",").encode()
    (tmp_path / name).write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
    task, rows = load_texts(arguments(models["bert"], str(tmp_path / name), tmp_path, text_columns=["x", "label"]))
    assert [[row[name] for name in task.input_columns] for row in rows] == [["a b", "1"], ["d", "0"]]


def test_a_compressed_text_file_has_one_text_per_line(models: dict[str, str], tmp_path: Path) -> None:
    path = tmp_path / "texts.txt.gz"
    path.write_bytes(gzip.compress("\ufeffa b c\r\n\nd e\n".encode()))
    task, rows = load_texts(arguments(models["bert"], str(path), tmp_path))
    assert [row[task.input_columns[0]] for row in rows] == ["a b c", "d e"]


def test_the_seed_determines_the_sample_of_max_eval_samples(models: dict[str, str], tmp_path: Path) -> None:
    path = tmp_path / "many.txt"
    path.write_text("\n".join(" ".join("a" * length) for length in range(1, 30)), encoding="utf-8")

    def lengths(seed: int) -> list[int]:
        task, rows = load_texts(arguments(models["bert"], str(path), tmp_path, max_eval_samples=3, seed=seed))
        return [len(row[task.input_columns[0]]) for row in rows]

    first = lengths(1)
    assert len(first) == 3
    assert first == sorted(first) == lengths(1) != lengths(2)


@pytest.mark.usefixtures("maps")
def test_a_task_is_read_from_its_development_split(minilm: str, shared_data: Path, tmp_path: Path) -> None:
    options = arguments(minilm, "mrpc", tmp_path, data_dir=str(shared_data), max_eval_samples=2)
    table = inspect_model(options)
    # Layer 0 of MiniLM has a head that attends to the previous token alone.
    assert table.loc[(0, 2), "previous"] > 0.95


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--model no/where --validation_file {texts}", "alignattn: cannot load the model 'no/where'"),
        ("--model {bert} --validation_file gone.txt", "there is no file gone.txt"),
        ("--model {bert} --validation_file {root}/empty.txt", "empty.txt is empty"),
        ("--model {bert} --validation_file {root}/binary.txt", "as text in UTF-8"),
        ("--model {bert} --validation_file {root}/broken.txt.gz", "as text in UTF-8"),
        ("--model {bert} --task mrpc --data_dir {root}", "there is no folder"),
        ("--model {bert} --task mrpc --text_columns a", "--text_columns is for files"),
        ("--model {bert} --validation_file {texts} --text_columns a", "no columns"),
        ("--model {bert} --validation_file {texts} --data_dir {root}", "--data_dir is for tasks"),
        ("--model {bert} --validation_file {root}/rows.csv", "columns of {root}/rows.csv: a, b"),
        ("--model {bert} --validation_file {root}/rows.csv --text_columns z", "has no column 'z': choose from a, b"),
        ("--model {bert} --validation_file {root}/rows.csv --text_columns b", "has no text in row 2"),
        ("--model {bert} --validation_file {texts} --max_length 65", "max_length 65"),
        ("--model {bert} --validation_file {texts} --compare {bert}", "is the same as --model"),
        ("--model {root}/untold --validation_file {texts}", "has no tokenizer"),
        ("--model {root}/short --validation_file {root}/long.txt --max_length 100", "accepts at most 64 tokens"),
        ("--model {root}/offset --validation_file {root}/long.txt --max_length 64", "accepts at most 63 tokens"),
        ("--model {bert} --task {root}/rows.csv", "or --validation_file"),
        ("--model {bert} --task cmudict", "cmudict generates sequences"),
        ("--model {bert}", "either --task NAME or --validation_file FILE"),
    ],
)
def test_a_mistake_is_one_line(
    words: str,
    message: str,
    models: dict[str, str],
    texts: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "empty.txt").write_text("\n \n", encoding="utf-8")
    (tmp_path / "binary.txt").write_bytes(b"\xff\xfe\xff")
    (tmp_path / "broken.txt.gz").write_bytes(gzip.compress(b"a b")[:-9])
    (tmp_path / "long.txt").write_text("a " * 80, encoding="utf-8")
    (tmp_path / "rows.csv").write_text("a,b\nx,y\nz, \n", encoding="utf-8")
    tiny_model("bert").save_pretrained(tmp_path / "untold")
    tiny_model("bert").save_pretrained(tmp_path / "short")
    save_tokenizer(tmp_path / "short")
    tiny_model("roberta").save_pretrained(tmp_path / "offset")  # counts its positions from the one after padding
    save_tokenizer(tmp_path / "offset")
    places = models | {"texts": texts, "root": str(tmp_path)}
    folder = tmp_path / "out"
    given = [word.format(**places) for word in words.split()]
    # The last of two equal options counts.
    command = ["inspect", "--output_dir", str(folder), "--max_length", "32", *given]
    assert run_command(command) == USER_ERROR_EXIT_CODE
    errors = [line for line in capsys.readouterr().err.splitlines() if line.startswith("alignattn:")]
    assert len(errors) == 1
    assert message.format(**places) in errors[0]
    assert not folder.exists()
