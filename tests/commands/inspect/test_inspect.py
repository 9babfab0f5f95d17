"""`alignattn inspect`: its figures against plain transformers, its output, and its error messages."""

import csv
import gzip
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import VOCABULARY, tiny_model
from transformers import AutoModel, AutoTokenizer, BertTokenizer

import alignattn
from alignattn.attention.distance import energy_distance, measure_distances, sliced_wasserstein
from alignattn.cli import USER_ERROR_EXIT_CODE
from alignattn.cli import main as run_command
from alignattn.commands.inspect import InspectOptions
from alignattn.commands.inspect.command import ModelStudy, inspect_heads, study_models
from alignattn.commands.inspect.head_study import MEASURES, POOLED_MEASURES
from alignattn.commands.inspect.report import heat_map_panels
from alignattn.reports.plots.maps import draw_heat_maps

NUM_LAYERS = NUM_HEADS = 3
CONTINUOUS = [name for name in MEASURES if "c2st" not in name]
"""Measures that the last bits of a float hardly change; an accuracy may jump."""
SHOWN = [name for name in MEASURES if name != "sparsity"]
"""The measures that are not constant where attention is a softmax."""
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


def studied(options: InspectOptions) -> list[ModelStudy]:
    """Return the results of `inspect` without files and plots: plots take the longest."""
    return study_models(options)[0]


def lines_of(folder: Path) -> list[dict[str, str]]:
    with (folder / "heads.csv").open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def table_of(output: str) -> list[list[str]]:
    """Return the cells of each head: of the lines that begin with its layer and number, in all tables."""
    heads: dict[tuple[str, str], list[str]] = {}
    is_of_heads = False
    for line in output.partition("mean over heads")[0].splitlines():
        assert len(line) < 100
        cells = line.split()
        is_of_heads = cells[:2] == ["layer", "head"] or (is_of_heads and bool(cells))
        if is_of_heads and cells[0].isdigit():
            heads.setdefault((cells[0], cells[1]), []).extend(cells[2:])
    return [[*head, *cells] for head, cells in heads.items()]


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
    clouds: dict[int, list[tuple[torch.Tensor, torch.Tensor]]] = {}
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
            clouds.setdefault(layer, []).append((query[0], key[0]))
            distances = {
                distance.__name__: distance(query, key).tolist() for distance in (sliced_wasserstein, energy_distance)
            }
            for head in range(NUM_HEADS):
                values = weight_figures(attention[0, head].numpy(), ids, rare_ids)
                values |= {name: by_head[head] for name, by_head in distances.items()}
                for name, value in values.items():
                    figures.setdefault((layer, head), {}).setdefault(name, []).append(value)
    pooled = {
        layer: measure_distances(*(torch.cat(p, dim=1) for p in zip(*c, strict=True))) for layer, c in clouds.items()
    }
    for (layer, head), values in figures.items():
        for name, field in zip(POOLED_MEASURES, ("as_is", "balanced", "floor"), strict=False):
            values[name] = [float(getattr(pooled[layer], field)[head])]
    return {head: {name: float(np.mean(all_)) for name, all_ in values.items()} for head, values in figures.items()}


def weight_figures(weights: np.ndarray, ids: list[int], rare_ids: list[int]) -> dict[str, float]:
    n = len(ids)
    return {
        "entropy": -sum(p * math.log(p) for p in weights.flatten().tolist() if p) / n,
        "sparsity": float(np.mean(weights == 0)),
        "previous": float(np.mean([weights[i, i - 1] for i in range(1, n)])),
        "next": float(np.mean([weights[i, i + 1] for i in range(n - 1)])),
        "separators": sum(weights[:, j].mean() for j in range(n) if ids[j] in (CLS, SEP)),
        "rare": sum(weights[:, j].mean() for j in range(n) if ids[j] in rare_ids),
    }


@pytest.mark.parametrize("family", ["bert", "albert"])
def test_figures_equal_those_of_plain_transformers(
    family: str, models: dict[str, str], texts: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--model", models[family], "--validation_file", texts, "--output_dir", str(tmp_path), "--max_length", "32"]
    assert run_command(["inspect", *words, "--batch_size", "3"]) == 0
    expected, lines = plain_figures(models[family]), lines_of(tmp_path)
    table = table_of(capsys.readouterr().out)
    heads = [(layer, head) for layer in range(NUM_LAYERS) for head in range(NUM_HEADS)]
    assert [(int(line["layer"]), int(line["head"])) for line in lines] == heads
    assert [(int(layer), int(head)) for layer, head, *_ in table] == heads
    for line, cells, head in zip(lines, table, heads, strict=True):
        figures = {name: float(line[name]) for name in MEASURES}
        assert {name: figures[name] for name in CONTINUOUS} == pytest.approx(expected[head], rel=1e-4, abs=1e-6)
        assert cells[2:] == [*(f"{figures[name]:.3f}" for name in SHOWN), line["role"]]
    entropies = [figures["entropy"] for figures in expected.values()]
    assert max(entropies) - min(entropies) > 0.1


def test_padding_changes_no_measure(models: dict[str, str], texts: str, tmp_path: Path) -> None:
    alone, together = (
        studied(arguments(models["bert"], texts, tmp_path, batch_size=size))[0].heads for size in (1, len(TEXTS))
    )
    for name, shares in alone.uniform.items():
        torch.testing.assert_close(shares, together.uniform[name])
    for name in CONTINUOUS:
        torch.testing.assert_close(alone.measures[name], together.measures[name], rtol=1e-4, atol=1e-6)


def test_means_over_heads_end_the_table(
    models: dict[str, str], texts: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (study,) = inspect_heads(arguments(models["bert"], texts, tmp_path))
    lines = capsys.readouterr().out.partition("mean over heads")[2].splitlines()[3 : 3 + NUM_LAYERS]
    assert max(map(len, lines)) < 100
    for layer, line in enumerate(lines):
        means = [f"{float(study.heads.measures[name][layer].mean()):.3f}" for name in SHOWN]
        assert line.split() == [str(layer), *means]


def test_two_models_stand_side_by_side(
    models: dict[str, str], texts: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    both = inspect_heads(arguments(models["bert"], texts, tmp_path / "both", compare=models["other"]))
    table = table_of(capsys.readouterr().out)
    assert (tmp_path / "both" / "heads.png").read_bytes().startswith(PNG_SIGNATURE)
    alone = [studied(arguments(models[name], texts, tmp_path))[0] for name in ("bert", "other")]
    for name in CONTINUOUS:
        for compared, single in zip(both, alone, strict=True):
            assert torch.equal(compared.heads.measures[name], single.heads.measures[name])
        assert not torch.equal(both[0].heads.measures[name], both[1].heads.measures[name]) or name == "sparsity"
    assert len(table) == NUM_LAYERS * NUM_HEADS
    for line, (layer, head, *cells) in enumerate(table):
        assert (int(layer), int(head)) == divmod(line, NUM_HEADS)
        pairs = [[f"{float(study.heads.measures[name].flatten()[line]):.3f}" for study in both] for name in SHOWN]
        roles = [study.heads.roles()[int(layer)][int(head)] for study in both]
        assert cells == ["/".join(pair) for pair in (*pairs, roles)]
    counted = [line["model"] for line in lines_of(tmp_path / "both")]
    assert counted == [Path(models[name]).name for name in ("bert", "other") for _ in range(NUM_LAYERS * NUM_HEADS)]


def test_the_lines_of_the_second_model_show_its_change_of_function(
    models: dict[str, str], texts: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, other = inspect_heads(arguments(models["bert"], texts, tmp_path, compare=models["other"]))
    printed = capsys.readouterr().out
    lines = lines_of(tmp_path)
    half = len(lines) // 2
    assert {line[name] for line in lines[:half] for name in ("attention_change", "product_change")} == {"0.0"}
    for index, line in enumerate(lines[half:]):
        assert float(line["attention_change"]) == float(other.change.attention.flatten()[index]) > 0
        assert float(line["product_change"]) == float(other.change.products.flatten()[index]) > 0
    assert f"{float(other.change.attention.mean()):.3f}" in printed.partition("from A to B")[2]


def test_heat_maps_have_a_panel_for_each_measure_and_model(models: dict[str, str], texts: str, tmp_path: Path) -> None:
    studies = studied(arguments(models["bert"], texts, tmp_path, compare=models["other"]))
    for some in (studies[:1], studies):
        figure = draw_heat_maps(
            heat_map_panels([one.frame() for one in some]), x_label="head", y_label="layer", title="t"
        )
        panels = {axes.get_title(): axes.images[0] for axes in figure.axes if axes.images}
        # Softmax has no weight of 0, so sparsity is not shown.
        differences = {title: image for title, image in panels.items() if title.startswith("B - A: ")}
        assert len(panels) - len(differences) == len(SHOWN) * len(some)
        assert len(differences) == (len(SHOWN) if len(some) == 2 else 0)
        for title, image in differences.items():
            first, second = (panels[f"{letter}: {title[len('B - A: ') :]}"].get_array() for letter in "AB")
            assert np.allclose(image.get_array(), second - first, equal_nan=True)
            assert image.get_clim() == pytest.approx((-abs(second - first).max(), abs(second - first).max()))
        panels = {title: image for title, image in panels.items() if title not in differences}
        entropies = [image for title, image in panels.items() if "entropy" in title]
        assert [image.get_array().tolist() for image in entropies] == [
            study.heads.measures["entropy"].tolist() for study in some
        ]
        largest = max(float(study.heads.measures["entropy"].max()) for study in some)
        assert [image.get_clim() for image in entropies] == [(0, pytest.approx(largest))] * len(some)


def test_a_checkpoint_of_aligned_attention_shows_all_its_layers(
    models: dict[str, str], texts: str, tmp_path: Path
) -> None:
    model = alignattn.patch(sharp_model("bert"), "aa-ct", layers=(1,))
    patched = save(tmp_path / "patched", model)
    aligned, plain = studied(arguments(patched, texts, tmp_path / "out", compare=models["bert"]))
    assert list(aligned.layers) == [0, 1, 2]
    for name in CONTINUOUS:
        torch.testing.assert_close(aligned.heads.measures[name], plain.heads.measures[name])


def test_a_checkpoint_keeps_the_attention_that_it_was_trained_with(texts: str, tmp_path: Path) -> None:
    model = alignattn.patch(sharp_model("bert"), "sparsemax", layers=(1, 2))
    patched = save(tmp_path / "patched", model)
    (study,) = inspect_heads(arguments(patched, texts, tmp_path / "out"))
    assert list(study.layers) == [1, 2]
    assert [line["layer"] for line in lines_of(tmp_path / "out")] == ["1"] * NUM_HEADS + ["2"] * NUM_HEADS
    assert float(study.heads.measures["sparsity"].min()) > 0


def test_balanced_distances_are_nan_where_attention_fixes_the_basis(
    texts: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = save(tmp_path / "model", tiny_model("modernbert"))
    (study,) = inspect_heads(arguments(model, texts, tmp_path / "out"))
    assert study.heads.measures["balanced_distance"].isnan().all()
    assert study.heads.measures["spread_distance"].isfinite().all()
    assert " nan " in capsys.readouterr().out
    assert (tmp_path / "out" / "heads.png").is_file()


@pytest.mark.parametrize(("ending", "separator"), [("csv", ","), ("tsv", "\t")])
def test_a_file_of_pairs_is_read_by_its_columns(
    ending: str, separator: str, models: dict[str, str], tmp_path: Path
) -> None:
    path = tmp_path / f"pairs.{ending}"
    path.write_text("x,label,y\na b,1,c\nd,0,e f g\n".replace(",", separator), encoding="utf-8")
    (study,) = studied(arguments(models["bert"], str(path), tmp_path, text_columns=["x", "label"]))
    assert study.heads.num_tokens == (2 + 1 + 3) + (1 + 1 + 3)


@pytest.mark.parametrize("name", ["pairs.tsv", "pairs.csv.gz"])
def test_tables_and_lines_are_distinguished_as_in_finetune(name: str, models: dict[str, str], tmp_path: Path) -> None:
    path = tmp_path / name
    text = "x\ty\na b\tc\nd\te f g\n"
    path.write_bytes(gzip.compress(text.replace("\t", ",").encode()) if name.endswith(".gz") else text.encode())
    (study,) = studied(arguments(models["bert"], str(path), tmp_path, text_columns=["x", "y"]))
    assert study.heads.num_tokens == (2 + 1 + 3) + (1 + 3 + 3)


def test_a_compressed_text_file_has_one_text_per_line(models: dict[str, str], tmp_path: Path) -> None:
    path = tmp_path / "texts.txt.gz"
    path.write_bytes(gzip.compress("\ufeffa b c\r\n\nd e\n".encode()))
    (study,) = studied(arguments(models["bert"], str(path), tmp_path))
    assert study.heads.num_tokens == (1 + 3 + 1) + (1 + 2 + 1)


def test_the_seed_determines_the_sample_of_max_eval_samples(models: dict[str, str], tmp_path: Path) -> None:
    path = tmp_path / "many.txt"
    path.write_text("\n".join(" ".join("a" * length) for length in range(1, 30)), encoding="utf-8")

    def tokens(name: str, seed: int) -> int:
        options = arguments(models["bert"], str(path), tmp_path / name, max_eval_samples=3, seed=seed)
        (study,) = studied(options)
        assert study.heads.num_texts == 3
        return study.heads.num_tokens

    assert tokens("first", 1) == tokens("again", 1) != tokens("other", 2)


def test_a_task_is_read_from_its_development_split(minilm: str, shared_data: Path, tmp_path: Path) -> None:
    options = arguments(minilm, "mrpc", tmp_path, data_dir=str(shared_data), max_eval_samples=2)
    (study,) = studied(options)
    assert study.heads.num_texts == 2
    # Layer 0 of MiniLM has a head that attends to the previous token alone.
    assert study.heads.roles()[0][2] == "previous"
    assert float(study.heads.measures["previous"][0, 2]) > 0.95


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
        ("--model {bert} --validation_file {texts} --compare {small}", "{small} has 2 layers of 3 heads"),
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
