"""Words as tokens: a word-level tokenizer, and the word vectors of a GloVe file."""

import codecs
import zipfile
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
from torch import Tensor
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from alignattn.utils.console import progress
from alignattn.utils.errors import AlignAttnError, one_line
from alignattn.utils.paths import check_file

Vector = NDArray[np.float32]

PADDING, UNKNOWN = "[PAD]", "[UNK]"
MAX_WORDS = 100_000
# These models accept any length; code that reads `model_max_length` needs a number.
MAX_LENGTH = 100_000
WITHOUT_BLANKS = r"[\p{Han}\p{Hiragana}\p{Katakana}ー]"
"""Chinese and Japanese characters; each counts as a word, because there are no blanks between words."""
LINES_TO_VOTE = 100
"""Number of first lines whose majority determines the dimension, so that a broken line has no effect."""


@dataclass(frozen=True)
class Embeddings:
    """Word vectors of a file.

    Args:
        vectors: each word with its vector `[dim]`, float32.
        dim: size of a vector.
        bad_lines: number, from 1, and problem of each skipped line (row of an npz file).
    """

    vectors: Mapping[str, Vector]
    dim: int
    bad_lines: tuple[tuple[int, str], ...] = ()


def build_tokenizer(
    texts: Iterable[str],
    *,
    reads_pairs: bool = True,
    whole_words: bool = False,
) -> PreTrainedTokenizerFast:
    """Return a tokenizer whose tokens are the lower-cased words and punctuation marks of texts, at most `MAX_WORDS`.

    Each character of `WITHOUT_BLANKS` is a word. A pair is joined without special tokens; `token_type_ids` distinguish
    its sentences.

    Args:
        texts: the source of the words.
        reads_pairs: whether the tokenizer returns `token_type_ids`.
        whole_words: whether words are split only at blanks and keep their case, which may indicate a word's tag.
    """
    special = [PADDING, UNKNOWN]
    tokenizer = Tokenizer(models.WordLevel(unk_token=UNKNOWN))
    if whole_words:
        tokenizer.normalizer = normalizers.NFC()
        tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    else:
        tokenizer.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Lowercase()])
        ideographs = pre_tokenizers.Split(Regex(WITHOUT_BLANKS), behavior="isolated")
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([ideographs, pre_tokenizers.BertPreTokenizer()])
    tokenizer.post_processor = processors.TemplateProcessing(single="$A:0", pair="$A:0 $B:1", special_tokens=[])
    trainer = trainers.WordLevelTrainer(
        vocab_size=MAX_WORDS + len(special), special_tokens=special, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    if tokenizer.get_vocab_size() == len(special):
        raise AlignAttnError("the texts have no words: give more texts")
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        unk_token=UNKNOWN,
        pad_token=PADDING,
        model_max_length=MAX_LENGTH,
        model_input_names=["input_ids", *(["token_type_ids"] if reads_pairs else []), "attention_mask"],
    )


def read_embeddings(path: Path, words: Collection[str] | None, *, skip_bad_rows: bool | None = None) -> Embeddings:
    """Read the vectors of `words`, or all of them if it is None.

    Args:
        path: a text file like GloVe's, `word v1 … vd` per line, with blanks or tabs, UTF-8, with or without word2vec's
            first line `N d`; or an `.npz` file with the arrays `words` `[N]` of strings and `vectors` `[N, d]`.
        words: the words to read. The numbers of other words are not checked.
        skip_bad_rows: skip and list broken lines instead of raising at the first; None if the command has no such
            option.
    """
    check_file(path, "give a file of word vectors")
    vectors: dict[str, Vector] = {}
    bad_lines: list[tuple[int, str]] = []
    dim, lines = _npz_lines(path, words) if path.suffix == ".npz" else _text_lines(path, words)
    for number, word, vector in lines:
        problem = vector if isinstance(vector, str) else None
        if problem is None and vector is not None and not np.isfinite(vector).all():
            problem = f"the vector of {word!r} holds NaN or infinity"
        if problem is not None and not skip_bad_rows:
            advice = "" if skip_bad_rows is None else ", or leave bad lines out with --skip_bad_rows"
            raise AlignAttnError(f"{path}, line {number}: {problem}; correct it{advice}")
        if problem is not None:
            bad_lines.append((number, problem))
        elif vector is not None:
            # If a word occurs twice, as in lower-cased files, the first is more frequent.
            vectors.setdefault(word, vector)  # type: ignore[arg-type]
    return Embeddings(vectors, dim, tuple(bad_lines))


Lines = Iterator[tuple[int, str, Vector | str | None]]
"""Number (from 1), word and vector of a line; None if the word is not needed, the problem if the line is bad."""


def _lines_of(file: Iterable[bytes]) -> Iterator[bytes]:
    """Return the lines of a text file, with blanks for tabs and without a byte order mark."""
    for number, line in enumerate(file):
        yield (line if number else line.removeprefix(codecs.BOM_UTF8)).replace(b"\t", b" ")


def _text_lines(path: Path, words: Collection[str] | None) -> tuple[int, Lines]:
    # As bytes: some words of GloVe's 840B file contain characters that text mode would take for line ends.
    with path.open("rb") as file:
        first_lines = list(islice(_lines_of(file), LINES_TO_VOTE))
    header = first_lines[0].split() if first_lines else []
    has_header = len(header) == 2 and all(field.isdigit() for field in header)
    votes = Counter(line.strip().count(b" ") for line in first_lines)
    dim = int(header[1]) if has_header else max(votes, key=lambda count: (votes[count], count), default=0)
    if dim == 0:
        raise AlignAttnError(f"{path} has no word vectors: give a text file with `word v1 … vd` on each line")

    def lines() -> Lines:
        with path.open("rb") as file, progress(path.name, path.stat().st_size, "byte", scaled=True) as bar:
            for number, line in enumerate(_lines_of(file), 1):
                bar.update(len(line))
                if number > 1 or not has_header:
                    yield number, *_parse_line(line, dim, words)

    return dim, lines()


def _parse_line(line: bytes, dim: int, words: Collection[str] | None) -> tuple[str, Vector | str | None]:
    # From the right, because a word of GloVe's 840B file may contain blanks.
    start, *numbers = line.rstrip(b"\r\n ").rsplit(b" ", dim)
    if len(numbers) < dim or not start:
        return "", f"expected a word and {dim} numbers, found {len(line.split())} fields"
    try:
        word = start.decode("utf-8")
    except UnicodeDecodeError:
        return "", "the word is not UTF-8"
    if words is not None and word not in words:
        return word, None
    try:
        return word, np.array(numbers, dtype=np.float32)
    except ValueError:
        return word, f"the vector of {word!r} has an entry that is not a number"


def _npz_lines(path: Path, words: Collection[str] | None) -> tuple[int, Lines]:
    try:
        with np.load(path, allow_pickle=False) as arrays:
            names, table = arrays["words"], arrays["vectors"]
    except (KeyError, OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise AlignAttnError(
            f"{path} cannot be read ({one_line(error)}): give an npz file with `words`, an array of strings, "
            "and `vectors`; pickled objects are refused"
        ) from error
    if names.dtype.kind != "U" or names.ndim != 1 or table.dtype.kind != "f" or table.shape[:-1] != names.shape:
        raise AlignAttnError(
            f"{path}: `words` is {names.dtype} {list(names.shape)} and `vectors` {table.dtype} {list(table.shape)}; "
            "expected strings [N] and floats [N, d]"
        )
    rows = enumerate(zip(names.tolist(), table, strict=True), 1)
    wanted = (
        (number, word, vector.astype(np.float32)) for number, (word, vector) in rows if words is None or word in words
    )
    return table.shape[1], wanted


def embedding_matrix(tokenizer: PreTrainedTokenizerBase, vectors: Mapping[str, Vector], seed: int) -> Tensor:
    """Return the embedding matrix of a model.

    A word without a vector gets a random one, normal with the mean and standard deviation of all known numbers, as in
    AllenNLP's `Embedding`.

    Args:
        tokenizer: a tokenizer with a vocabulary of V words.
        vectors: the vectors of `Embeddings`, each `[d]`.
        seed: seed of the random vectors.

    Returns:
        `[V, d]` float32; the row of the padding token is 0.
    """
    # Sorted, because the order of the vocabulary differs from call to call, and with it the last bit of a sum.
    rows = {index: vectors[word] for word, index in sorted(tokenizer.get_vocab().items()) if word in vectors}
    if not rows:
        raise AlignAttnError(
            "none of the words has a vector: the vectors may be of another language, or not lower-cased"
        )
    found = torch.from_numpy(np.stack(list(rows.values())))
    generator = torch.Generator().manual_seed(seed)
    table = torch.randn(len(tokenizer), found.shape[1], generator=generator) * found.std() + found.mean()
    table[list(rows)] = found
    table[tokenizer.pad_token_id] = 0.0
    return table
