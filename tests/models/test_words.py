"""The word-level tokenizer and the reading of word vectors."""

import io
import math
import pickle
import zipfile

import numpy as np
import pytest
import torch
from needs import SHARED, needs_files
from tokenizers import pre_tokenizers
from transformers import AutoTokenizer

from alignattn import AlignAttnError
from alignattn.models.words import UNKNOWN, build_tokenizer, embedding_matrix, read_embeddings

TEXTS = ["The cat sees a dog.", "a dog, a cat; the Bird!", "The café"]
GLOVE = "the 0.5 -1 2e-1\ncat 1 2 3\n. . . 7 8 9\ndog 4 5 6\n"
SHARED_VECTORS = SHARED / "resources" / "glove.6B.50d.first9163.npz"


def write(path, text):
    path.write_text(text, encoding="utf-8")
    return path


# The tokenizer


def test_words_are_lower_cased_and_punctuation_stands_alone():
    tokenizer = build_tokenizer(TEXTS)
    assert tokenizer.tokenize("THE cat, a Zebra") == ["the", "cat", ",", "a", UNKNOWN]
    # The same word in composed and decomposed Unicode.
    assert tokenizer("cafe\u0301")["input_ids"] == tokenizer("caf\u00e9")["input_ids"] != [tokenizer.unk_token_id]


def test_characters_are_words_only_in_scripts_without_blanks(tmp_path):
    tokenizer = build_tokenizer(
        ["\u4eca\u5929\u5929\u6c14\u5f88\u597d\uff0c I like it", "\u732b\u304c\u30b3\u30fc\u30d2\u30fc"]
    )
    tokenizer.save_pretrained(tmp_path)
    for reader in (tokenizer, AutoTokenizer.from_pretrained(tmp_path)):
        assert reader.tokenize("I like\u5929\u6c14\uff0c\u6c14") == ["i", "like", *"\u5929\u6c14\uff0c\u6c14"]
        assert reader.tokenize("\u597d\u574f") == ["\u597d", UNKNOWN]
        assert reader.tokenize("\u30b3\u30fc\u304c\u3042") == [*"\u30b3\u30fc\u304c", UNKNOWN]
    words = tokenizer.backend_tokenizer.pre_tokenizer
    for text in (
        "cafe\u0301, \u03c3\u03bf\u03c2",
        "\ud55c\uad6d\uc5b4 \u0e44\u0e17\u0e22",
        "a\x07b\u200bc\ufeff\td\u00a0e\n",
    ):
        assert words.pre_tokenize_str(text) == pre_tokenizers.BertPreTokenizer().pre_tokenize_str(text)
    whole = build_tokenizer(["\u5317\u4eac \u5f20"], whole_words=True)
    assert whole.tokenize("\u5317\u4eac") == ["\u5317\u4eac"]


def test_a_pair_is_joined_without_special_tokens():
    tokenizer = build_tokenizer(TEXTS)
    encoding = tokenizer("the cat", "a dog .")
    assert tokenizer.convert_ids_to_tokens(encoding["input_ids"]) == ["the", "cat", "a", "dog", "."]
    assert encoding["token_type_ids"] == [0, 0, 1, 1, 1]
    assert encoding["attention_mask"] == [1] * 5
    assert tokenizer.num_special_tokens_to_add(pair=True) == 0
    assert set(tokenizer.model_input_names) == set(encoding)


def test_truncation_shortens_the_longer_sentence_of_a_pair():
    encoding = build_tokenizer(TEXTS)("the cat sees a dog", "a dog", truncation=True, max_length=4)
    assert encoding["token_type_ids"] == [0, 0, 1, 1]


def test_the_most_frequent_words_are_kept(monkeypatch):
    monkeypatch.setattr("alignattn.models.words.MAX_WORDS", 2)
    assert build_tokenizer(["b b b", "a a", "c c", "d"]).get_vocab().keys() == {"[PAD]", "[UNK]", "b", "a"}


def test_the_same_texts_in_another_order_give_the_same_ids():
    assert build_tokenizer(TEXTS).get_vocab() == build_tokenizer(reversed(TEXTS)).get_vocab()


def test_a_saved_tokenizer_loads_with_the_auto_class(tmp_path):
    tokenizer = build_tokenizer(TEXTS)
    tokenizer.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    pairs = ["The cat, the Zebra", "a dog"], ["A dog!", ""]
    assert dict(loaded(*pairs, padding=True)) == dict(tokenizer(*pairs, padding=True))
    assert loaded.model_max_length == tokenizer.model_max_length < 10**6


@pytest.mark.parametrize("texts", [[], [" "]])
def test_a_vocabulary_without_words_is_refused(texts):
    with pytest.raises(AlignAttnError, match="no words"):
        build_tokenizer(texts)


# Text files of word vectors


@pytest.mark.parametrize("header", ["", "4 3\n"])
def test_the_wanted_words_of_a_text_file_are_read(tmp_path, header):
    embeddings = read_embeddings(write(tmp_path / "glove.txt", header + GLOVE), {"the", "dog", ". . .", "absent"})
    assert embeddings.dim == 3
    assert {word: vector.tolist() for word, vector in embeddings.vectors.items()} == {
        "the": [0.5, -1.0, pytest.approx(0.2)],
        ". . .": [7, 8, 9],
        "dog": [4, 5, 6],
    }
    assert all(vector.dtype == np.float32 for vector in embeddings.vectors.values())
    assert embeddings.bad_lines == ()


def test_words_with_odd_characters_windows_line_ends_and_trailing_blanks_are_read(tmp_path):
    # U+0085 and U+2028 end a line for `str.splitlines`; the 840B file of GloVe has such words.
    text = "a\u0085b 1 2\r\nc\u2028 3 4 \r\ncaf\u00e9 5 6"
    embeddings = read_embeddings(write(tmp_path / "glove.txt", text), {"a\u0085b", "c\u2028", "café"})
    assert [vector.tolist() for vector in embeddings.vectors.values()] == [[1, 2], [3, 4], [5, 6]]


@pytest.mark.parametrize("header", ["", "4 3\n"])
@pytest.mark.parametrize("change", [lambda text: "\ufeff" + text, lambda text: text.replace(" ", "\t")])
def test_a_byte_order_mark_and_tabs_change_nothing(tmp_path, header, change):
    text, words = header + GLOVE.replace(". . .", "."), {"the", "cat", ".", "dog"}
    expected = read_embeddings(write(tmp_path / "glove.txt", text), words)
    found = read_embeddings(write(tmp_path / "changed.txt", change(text)), words)
    assert found.vectors.keys() == expected.vectors.keys() == words
    for word, vector in expected.vectors.items():
        assert np.array_equal(found.vectors[word], vector)


def test_a_word_that_occurs_twice_has_its_first_vector(tmp_path):
    embeddings = read_embeddings(write(tmp_path / "glove.txt", "cat 1 2\ncat 3 4\n"), {"cat"})
    assert embeddings.vectors["cat"].tolist() == [1, 2]


BAD_LINES = {
    "bird 1 2": "expected a word and 3 numbers, found 3 fields",
    "": "found 0 fields",
    " 1 2 3": "found 3 fields",
    "bird 1 x 3": "'bird' has an entry that is not a number",
    "bird 1 nan 3": "'bird' holds NaN or infinity",
    "bird 1 2 inf": "'bird' holds NaN or infinity",
    "bird 1 2 1e99": "'bird' holds NaN or infinity",
}


@pytest.mark.parametrize("line", BAD_LINES)
@pytest.mark.parametrize("number", [1, 3, 5])
@pytest.mark.filterwarnings("ignore:overflow")
def test_a_broken_line_is_named_or_skipped(tmp_path, line, number):
    lines = GLOVE.splitlines()
    lines.insert(number - 1, line)
    path = write(tmp_path / "glove.txt", "\n".join(lines) + "\n")
    words = {"cat", "dog", "bird"}
    with pytest.raises(AlignAttnError) as caught:
        read_embeddings(path, words)
    assert str(caught.value).startswith(f"{path}, line {number}: ")
    assert BAD_LINES[line] in str(caught.value)
    assert "\n" not in str(caught.value)
    embeddings = read_embeddings(path, words, skip_bad_rows=True)
    assert embeddings.vectors.keys() == {"cat", "dog"}
    ((bad_number, problem),) = embeddings.bad_lines
    assert bad_number == number
    assert BAD_LINES[line] in problem


def test_bytes_that_are_not_utf8_are_a_broken_line(tmp_path):
    path = tmp_path / "glove.txt"
    path.write_bytes(b"cat 1 2\nd\xffg 1 2\n")
    with pytest.raises(AlignAttnError, match=r"glove\.txt, line 2: the word is not UTF-8"):
        read_embeddings(path, {"cat"})


def test_files_that_hold_no_vectors_are_refused(tmp_path):
    with pytest.raises(AlignAttnError, match="there is no file"):
        read_embeddings(tmp_path / "absent.txt", {"cat"})
    for text in ("", "cat\ndog\n", "2 0\ncat\ndog\n"):
        with pytest.raises(AlignAttnError, match="has no word vectors"):
            read_embeddings(write(tmp_path / "empty.txt", text), {"cat"})


# npz files


def test_the_wanted_words_of_an_npz_file_are_read(tmp_path):
    path = tmp_path / "vectors.npz"
    np.savez(path, words=np.array(["cat", "dog", "the"]), vectors=np.arange(6, dtype=np.float64).reshape(3, 2))
    embeddings = read_embeddings(path, {"dog", "absent"})
    assert embeddings.dim == 2
    assert list(embeddings.vectors) == ["dog"]
    assert embeddings.vectors["dog"].tolist() == [2, 3]
    assert embeddings.vectors["dog"].dtype == np.float32


def test_a_broken_row_of_an_npz_file_is_named_or_skipped(tmp_path):
    path = tmp_path / "vectors.npz"
    np.savez(path, words=np.array(["cat", "dog"]), vectors=np.array([[1, 2], [3, math.nan]], dtype=np.float32))
    with pytest.raises(AlignAttnError, match=r"vectors\.npz, line 2: the vector of 'dog' holds NaN"):
        read_embeddings(path, {"cat", "dog"})
    embeddings = read_embeddings(path, {"cat", "dog"}, skip_bad_rows=True)
    assert list(embeddings.vectors) == ["cat"]
    assert [number for number, _ in embeddings.bad_lines] == [2]


class _Bomb:
    def __reduce__(self):
        return pytest.fail, ("a pickle was loaded",)


def test_pickled_objects_are_refused_and_not_loaded(tmp_path):
    path = tmp_path / "vectors.npz"
    with zipfile.ZipFile(path, "w") as archive:
        buffer = io.BytesIO()
        np.lib.format.write_array_header_1_0(buffer, {"descr": "|O", "fortran_order": False, "shape": (1,)})
        archive.writestr("words.npy", buffer.getvalue() + pickle.dumps(_Bomb()))
    with pytest.raises(AlignAttnError, match="pickled objects are refused"):
        read_embeddings(path, {"cat"})
    path.write_bytes(pickle.dumps(_Bomb()))
    with pytest.raises(AlignAttnError, match="pickled objects are refused"):
        read_embeddings(path, {"cat"})


@pytest.mark.parametrize(
    "arrays",
    [
        {"words": np.array(["cat"])},
        {"words": np.array(["cat"]), "vectors": np.ones((2, 3))},
        {"words": np.array([1]), "vectors": np.ones((1, 3))},
        {"words": np.array(["cat"]), "vectors": np.array(["x"])},
        {"words": np.array(["cat"]), "vectors": np.ones(1)},
    ],
)
def test_npz_files_of_another_layout_are_refused(tmp_path, arrays):
    path = tmp_path / "vectors.npz"
    np.savez(path, **arrays)
    with pytest.raises(AlignAttnError, match=r"vectors\.npz"):
        read_embeddings(path, {"cat"})


@needs_files(SHARED_VECTORS)
def test_real_vectors_tell_related_words_from_others():
    vectors = read_embeddings(SHARED_VECTORS, {"king", "queen", "tuesday"}).vectors

    def cosine(one, other):
        return one @ other / np.linalg.norm(one) / np.linalg.norm(other)

    assert cosine(vectors["king"], vectors["queen"]) > cosine(vectors["king"], vectors["tuesday"]) + 0.2


# The table of a model


def test_the_table_holds_the_vectors_found_zeros_for_padding_and_random_ones_elsewhere():
    tokenizer = build_tokenizer([" ".join(f"w{index}" for index in range(3000))])
    rng = np.random.default_rng(0)
    vectors = {f"w{index}": rng.normal(2.0, 0.5, 8).astype(np.float32) for index in range(1000)}
    table = embedding_matrix(tokenizer, vectors, seed=0)
    vocabulary = tokenizer.get_vocab()
    assert table.shape == (3002, 8)
    assert all(np.array_equal(table[vocabulary[word]].numpy(), vector) for word, vector in vectors.items())
    assert (table[tokenizer.pad_token_id] == 0).all()
    random = table[[vocabulary[f"w{index}"] for index in range(1000, 3000)]]
    assert random.mean().item() == pytest.approx(2.0, abs=0.02)
    assert random.std().item() == pytest.approx(0.5, abs=0.02)
    assert len(random.unique(dim=0)) == len(random)
    assert torch.equal(embedding_matrix(tokenizer, vectors, seed=0), table)
    assert not torch.equal(embedding_matrix(tokenizer, vectors, seed=1), table)


def test_a_table_without_any_vector_is_refused():
    with pytest.raises(AlignAttnError, match="none of the words has a vector"):
        embedding_matrix(build_tokenizer(TEXTS), {"zebra": np.ones(3, dtype=np.float32)}, seed=0)
