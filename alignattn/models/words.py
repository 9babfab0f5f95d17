"""Words as tokens: a word-level tokenizer, and the word vectors of a GloVe file."""

import zipfile
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
from torch import Tensor
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from alignattn.utils.errors import AlignAttnError, one_line
from alignattn.utils.files import check_file
from alignattn.utils.progress import progress

Vector = NDArray[np.float32]

PADDING, UNKNOWN = "[PAD]", "[UNK]"
MAX_WORDS = 100_000
# These models take any length; code that reads `model_max_length` wants a number.
MAX_LENGTH = 100_000
WITHOUT_BLANKS = r"[\p{Han}\p{Hiragana}\p{Katakana}ー]"
"""Characters of which each is a word, for no blanks stand between words: of Chinese and Japanese."""
# How many lines are asked how many numbers a line has: a broken one among them is outvoted.
LINES_TO_VOTE = 100


@dataclass(frozen=True)
class Embeddings:
    """Word vectors read from a file.

    Args:
        vectors: each word found with its vector `[dim]`, float32.
        dim: size of a vector.
        bad_lines: of each line (row, of an npz file) passed over its number, from 1, and what is wrong with it.
    """

    vectors: Mapping[str, Vector]
    dim: int
    bad_lines: tuple[tuple[int, str], ...] = ()


def build_tokenizer(
    texts: Iterable[str],
    *,
    max_words: int = MAX_WORDS,
    min_count: int = 1,
    reads_pairs: bool = True,
    whole_words: bool = False,
) -> PreTrainedTokenizerFast:
    """A tokenizer whose tokens are the lower-cased words and punctuation marks of `texts`, and each `WITHOUT_BLANKS`.

    A pair is joined without special tokens; `token_type_ids` tell its sentences apart.

    Args:
        texts: what to take the words from.
        max_words: the most words kept, the most frequent first.
        min_count: a word that occurs less often is unknown.
        reads_pairs: whether it gives `token_type_ids`.
        whole_words: whether what stands between blanks is one token, in the letters that it is written in: of a tagged
            word, whose name they may tell.
    """
    if min(max_words, min_count) < 1:
        raise AlignAttnError(f"max_words is {max_words}, min_count {min_count}: give at least 1")
    special = [PADDING, UNKNOWN]
    tokenizer = Tokenizer(models.WordLevel(unk_token=UNKNOWN))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.NFC(), *([] if whole_words else [normalizers.Lowercase()])]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit() if whole_words else _words_of_running_text()
    tokenizer.post_processor = processors.TemplateProcessing(single="$A:0", pair="$A:0 $B:1", special_tokens=[])
    trainer = trainers.WordLevelTrainer(
        vocab_size=max_words + len(special), min_frequency=min_count, special_tokens=special, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    if tokenizer.get_vocab_size() == len(special):
        raise AlignAttnError(f"the texts hold no word that occurs {min_count} times: give more texts")
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        unk_token=UNKNOWN,
        pad_token=PADDING,
        model_max_length=MAX_LENGTH,
        model_input_names=["input_ids", *(["token_type_ids"] if reads_pairs else []), "attention_mask"],
    )


def _words_of_running_text() -> pre_tokenizers.PreTokenizer:
    apart = pre_tokenizers.Split(Regex(WITHOUT_BLANKS), behavior="isolated")
    return pre_tokenizers.Sequence([apart, pre_tokenizers.BertPreTokenizer()])


def read_embeddings(path: Path, words: Collection[str] | None, *, skip_bad_rows: bool | None = None) -> Embeddings:
    """Read the vectors of `words`, or all of them where it is None.

    Args:
        path: a text file as GloVe's, `word v1 … vd` a line, UTF-8 (a first line `N d`, as word2vec writes it, is passed
            over); or an `.npz` file with the arrays `words` `[N]` of strings and `vectors` `[N, d]`.
        words: those whose vectors are wanted. The numbers of other words are not looked at.
        skip_bad_rows: pass over broken lines and list them, rather than raise at the first; None where the command has
            no such option.
    """
    check_file(path, "give a file of word vectors")
    bad_lines: list[tuple[int, str]] = []

    def report(line: int, problem: str) -> None:
        if not skip_bad_rows:
            advice = "" if skip_bad_rows is None else ", or leave bad lines out with --skip_bad_rows"
            raise AlignAttnError(f"{path}, line {line}: {problem}; correct it{advice}")
        bad_lines.append((line, problem))

    read = _read_npz if path.suffix == ".npz" else _read_text
    vectors, dim = read(path, None if words is None else frozenset(words), report)
    return Embeddings(vectors, dim, tuple(bad_lines))


Report = Callable[[int, str], None]


def _read_text(path: Path, words: Collection[str] | None, report: Report) -> tuple[dict[str, Vector], int]:
    dim = _text_dim(path)
    vectors: dict[str, Vector] = {}
    with progress(path.name, path.stat().st_size, "byte", scaled=True) as bar:
        for number, line in enumerate(_lines(path), 1):
            bar.update(len(line))
            if number == 1 and _header_dim(line) is not None:
                continue
            try:
                word, vector = _parse_line(line, dim, words)
            except ValueError as error:
                report(number, str(error))
                continue
            if vector is not None:
                # Of a word that stands twice, which happens where files were lower-cased, the first is more frequent.
                vectors.setdefault(word, vector)
    return vectors, dim


def _lines(path: Path) -> Iterator[bytes]:
    """Lines as bytes: GloVe's 840B file holds words with characters that text mode would take for line ends."""
    with path.open("rb") as file:
        yield from file


def _text_dim(path: Path) -> int:
    """How many numbers a line has: what a header says, else what most of the first lines have."""
    first_lines = list(islice(_lines(path), LINES_TO_VOTE))
    dim = _header_dim(first_lines[0]) if first_lines else None
    if dim is None:
        votes = Counter(line.strip().count(b" ") for line in first_lines)
        dim = max(votes, key=lambda count: (votes[count], count), default=0)
    if dim == 0:
        raise AlignAttnError(f"{path} holds no word vectors: give a text file with `word v1 … vd` on each line")
    return dim


def _header_dim(line: bytes) -> int | None:
    fields = line.split()
    if len(fields) == 2 and all(field.isdigit() for field in fields):
        return int(fields[1])
    return None


def _parse_line(line: bytes, dim: int, words: Collection[str] | None) -> tuple[str, Vector | None]:
    """A line's word and, if it is wanted, its vector; ValueError says what is wrong with the line."""
    # From the right, for a word of GloVe's 840B file may hold blanks.
    start, *numbers = line.rstrip(b"\r\n ").rsplit(b" ", dim)
    if len(numbers) < dim or not start:
        raise ValueError(f"expected a word and {dim} numbers, found {len(line.split())} fields")
    try:
        word = start.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError("the word is not UTF-8") from error
    if words is not None and word not in words:
        return word, None
    try:
        vector = np.array(numbers, dtype=np.float32)
    except ValueError as error:
        raise ValueError(f"the vector of {word!r} holds something that is no number") from error
    _check_finite(word, vector)
    return word, vector


def _check_finite(word: str, vector: Vector) -> None:
    if not np.isfinite(vector).all():
        raise ValueError(f"the vector of {word!r} holds NaN or infinity")


def _read_npz(path: Path, words: Collection[str] | None, report: Report) -> tuple[dict[str, Vector], int]:
    names, table = _npz_arrays(path)
    vectors: dict[str, Vector] = {}
    for number, (word, vector) in enumerate(zip(names.tolist(), table, strict=True), 1):
        if words is not None and word not in words:
            continue
        try:
            _check_finite(word, vector)
        except ValueError as error:
            report(number, str(error))
        else:
            vectors.setdefault(word, vector.astype(np.float32))
    return vectors, table.shape[1]


def _npz_arrays(path: Path) -> tuple[NDArray[np.str_], NDArray[np.floating]]:
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
    return names, table


def embedding_matrix(tokenizer: PreTrainedTokenizerBase, vectors: Mapping[str, Vector], seed: int) -> Tensor:
    """The table of word vectors of a model.

    A word without a vector gets a random one, normal with the mean and standard deviation of all numbers found, as
    AllenNLP's `Embedding` draws them.

    Args:
        tokenizer: whose vocabulary the table is for; V words.
        vectors: as `Embeddings` holds them, each `[d]`.
        seed: of the random vectors.

    Returns:
        `[V, d]` float32; the row of the padding token is 0.
    """
    # Sorted, for the order of the vocabulary differs from call to call, and with it the last bit of a sum.
    rows = {index: vectors[word] for word, index in sorted(tokenizer.get_vocab().items()) if word in vectors}
    if not rows:
        raise AlignAttnError("none of the words has a vector: are the vectors of another language, or not lower-cased?")
    found = torch.from_numpy(np.stack(list(rows.values())))
    generator = torch.Generator().manual_seed(seed)
    table = torch.randn(len(tokenizer), found.shape[1], generator=generator) * found.std() + found.mean()
    table[list(rows)] = found
    table[tokenizer.pad_token_id] = 0.0
    return table
