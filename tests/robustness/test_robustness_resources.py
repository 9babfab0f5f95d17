"""The local resources of the recipes: errors name what is wrong with them, and descriptions identify them."""

import re
import shutil
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from needs import skip_without
from robustness_helpers import GLOVE, NEIGHBORS, SST2, WEIGHTS, constraints
from safetensors.torch import load_file, save_file

from alignattn.robustness.recipes import RECIPES, build_attack
from alignattn.robustness.resources import Resources, named_model, read_neighbors
from alignattn.utils.errors import AlignAttnError

skip_without(NEIGHBORS, SST2)
pytest_plugins = ["robustness_fixtures"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"neighbors": Path("none.parquet")}, "no file none.parquet"),
        ({"neighbors": GLOVE}, "as a Parquet file"),
        ({"neighbors": next(SST2.glob("*.parquet"))}, "lacks a column 'word'"),
        ({"mlm": Path("none")}, r"--mlm none has no config\.json"),
        ({"sentence_encoder": "uze"}, "give use or the folder"),
        ({"nltk_data": Path("none")}, "no such folder"),
        ({"nltk_data": SST2}, "lacks taggers/averaged_perceptron_tagger_eng"),
    ],
)
def test_a_wrong_resource_is_named(changes, message, wrapper, resources, monkeypatch):
    import nltk

    monkeypatch.setattr(nltk.data, "path", [] if "nltk_data" in changes else nltk.data.path)
    with pytest.raises(AlignAttnError, match=message) as error:
        build_attack("textfooler", wrapper, replace(resources, **changes))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "columns",
    [
        {"word": ["bad", None], "neighbors": [["poor"], ["rotten"]]},
        {"word": ["bad", "good"], "neighbors": [["poor"], None]},
        {"word": ["bad", "good"], "neighbors": [["poor"], ["nice", None]]},
    ],
)
def test_neighbours_that_are_null_are_refused(columns, tmp_path):
    types = {"word": pa.string(), "neighbors": pa.list_(pa.string())}
    pq.write_table(pa.table(columns, schema=pa.schema(types)), tmp_path / "lists.parquet")
    with pytest.raises(AlignAttnError, match="has a null"):
        Resources(neighbors=tmp_path / "lists.parquet").check()


@pytest.mark.parametrize("lists", [pa.list_(pa.string()), pa.large_list(pa.large_string())])
@pytest.mark.parametrize("words", [pa.string(), pa.large_string()])
def test_neighbours_may_have_the_large_types_that_pandas_writes(words, lists, tmp_path):
    schema = pa.schema({"word": words, "neighbors": lists})
    pq.write_table(pa.table({"word": ["bad"], "neighbors": [["poor"]]}, schema=schema), tmp_path / "lists.parquet")
    Resources(neighbors=tmp_path / "lists.parquet").check()
    assert read_neighbors(tmp_path / "lists.parquet") == {"bad": ["poor"]}


def test_damaged_neighbours_are_refused(tmp_path):
    content = bytearray(NEIGHBORS.read_bytes())
    content[100:5000] = bytes(4900)
    (tmp_path / "lists.parquet").write_bytes(content)
    with pytest.raises(AlignAttnError, match="as a Parquet file"):
        Resources(neighbors=tmp_path / "lists.parquet").check()


def test_a_bad_line_of_vectors_is_named_without_an_option_that_does_not_help(tmp_path, wrapper, resources):
    path = tmp_path / "vectors.txt"
    path.write_text("awful 1.0 0.0\nrotten 0.9\nnice -1.0 nan\n")
    with pytest.raises(AlignAttnError, match=r"line 2: .* \(2 bad lines\); correct the file") as error:
        build_attack("textfooler", wrapper, replace(resources, neighbors=None, word_vectors=path))
    assert "--skip_bad_rows" not in str(error.value)


def test_weights_that_would_be_unpickled_are_refused(tmp_path, wrapper, resources):
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    (tmp_path / "pytorch_model.bin").write_bytes(b"cos\nsystem\n(S'true'\ntR.")
    with pytest.raises(AlignAttnError, match="never unpickled"):
        build_attack("bae", wrapper, replace(resources, mlm=tmp_path))


def test_models_with_random_weights_are_refused(minilm, tmp_path, wrapper, resources):
    with pytest.raises(AlignAttnError, match=r"no masked-language head: train one with docs/examples/train_mlm"):
        build_attack("bae", wrapper, replace(resources, mlm=Path(minilm)))
    shutil.copytree(minilm, tmp_path / "half")
    weights = load_file(Path(minilm) / WEIGHTS)
    save_file({name: tensor for name, tensor in weights.items() if "layer.0" not in name}, tmp_path / "half" / WEIGHTS)
    with pytest.raises(AlignAttnError, match="holds no complete encoder"):
        build_attack("textfooler", wrapper, replace(resources, sentence_encoder=tmp_path / "half"))


def test_a_packaged_encoder_is_called_by_its_name(minilm):
    said = Resources(sentence_encoder="minilm").describe("bae")["sentence_encoder"]
    assert re.fullmatch(r"minilm \(sha256 [0-9a-f]{8}\), mean over its real tokens", said)
    assert Resources(sentence_encoder=minilm).describe("bae")["sentence_encoder"] == said


def test_an_encoder_without_a_pooler_is_accepted(mlm, wrapper, resources):
    attack = build_attack("textfooler", wrapper, replace(resources, sentence_encoder=mlm))
    assert constraints(attack)["SentenceSimilarity"].encode(["a movie"]).isfinite().all()


def test_resources_are_described_by_their_content(tmp_path, resources):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        table = pa.table({"word": ["bad"], "neighbors": [["poor", "rotten"]]})
        pq.write_table(table, tmp_path / name / "lists.parquet")
    one, two = (replace(resources, neighbors=tmp_path / name / "lists.parquet") for name in ("one", "two"))
    assert one.describe("textbugger") == two.describe("textbugger")
    assert "at most 2 words" in one.describe("textbugger")["word_swaps"]
    assert one.describe("textbugger") != resources.describe("textbugger")
    assert "at most 8 words" in resources.describe("textbugger")["word_swaps"]
    assert Resources().describe("bae")["masked_language_model"] == "bert-base-uncased"


def test_the_vectors_of_the_word_distance_are_those_of_the_swaps(tmp_path):
    def distance(resources):
        described = resources.describe("textfooler")
        assert described["word_swaps"] == f"nearest neighbours by cosine in {described['word_distance']}"
        return described["word_distance"]

    assert distance(Resources()) == "the counter-fitted vectors of Mrkšić et al. (2016)"
    given = [tmp_path / "one.txt", tmp_path / "two.txt"]
    for path in given:
        path.write_text(f"{path.stem} 1.0 0.0\n")
    one, two = (distance(Resources(word_vectors=path)) for path in given)
    assert one.startswith("one.txt (sha256 ")
    assert one != two.replace("two", "one")


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipes_description_covers_only_the_resources_that_it_uses(recipe, resources):
    unused = {"textfooler": {"mlm": None}, "textbugger": {"mlm": None}, "bae": {"neighbors": None}}[recipe]
    assert replace(resources, **unused).describe(recipe) == resources.describe(recipe)
    used = {"textfooler": {"neighbors": None}, "textbugger": {"neighbors": None}, "bae": {"mlm": None}}[recipe]
    assert replace(resources, **used).describe(recipe) != resources.describe(recipe)


def test_a_model_is_named_by_the_last_two_parts_of_its_path(mlm, tmp_path, monkeypatch):
    runs = [tmp_path / run / "seed-1" for run in ("soft", "aa-ct")]
    for run in runs:
        shutil.copytree(mlm, run)
    soft, aligned = (named_model(run) for run in runs)
    assert soft.startswith("soft/seed-1 (sha256 ")
    assert aligned == soft.replace("soft", "aa-ct")
    monkeypatch.chdir(runs[0])
    assert named_model(Path()) == soft
    (runs[0] / WEIGHTS).write_bytes(b"others")
    assert named_model(runs[0]) != soft
