"""Windows of question answering: their columns, overlap, and the characters of their tokens."""

import copy
from collections.abc import Sequence
from typing import Any

import datasets
import pytest
import tokenizers
import transformers

from alignattn.tasks.answers.windows import MAX_QUESTION_TOKENS, NO_CHARACTER, NULL_POSITION, encode_windows
from alignattn.tasks.definitions import TASKS
from alignattn.tasks.question_answering import qa_problem
from alignattn.tasks.task import EncodedSplit, TaskOptions
from alignattn.utils.errors import AlignAttnError

CHINESE = "北京是中华人民共和国的首都，面积约一万六千平方公里，人口两千多万。" * 3
EMOJI = "The 🐈‍⬛ likes 🍣 and 👩🏽‍🚀 flies to Übermorgen; café № 7 opens at 9:30 🎉. " * 4
ENGLISH = "The red cat chases a small bird over the old wall, and every dog in Paris sleeps until noon. " * 5


def rows(*examples, start_from=0):
    """Rows of (context, question, answer); None is unanswerable."""
    columns: dict[str, list[Any]] = {"id": [], "question": [], "context": [], "answers": []}
    for number, (context, question, answer) in enumerate(examples):
        starts = [] if answer is None else [context.index(answer, start_from)]
        columns["id"].append(str(number))
        columns["question"].append(question)
        columns["context"].append(context)
        columns["answers"].append({"text": [] if answer is None else [answer], "answer_start": starts})
    features = {name: datasets.Value("string") for name in ("id", "question", "context")}
    features["answers"] = {
        "text": datasets.List(datasets.Value("string")),
        "answer_start": datasets.List(datasets.Value("int32")),
    }
    return datasets.Dataset.from_dict(columns, features=datasets.Features(features))


EXAMPLES = (
    (ENGLISH, "Who chases a bird?", "The red cat"),
    (ENGLISH + "It ends in Rome.", "   Where does it end?", "Rome"),
    (ENGLISH, "Who is king?", None),
    (CHINESE, "面积多少？", "一万六千平方公里"),
    (EMOJI, "Who flies?", "👩🏽‍🚀"),
    (EMOJI, "Which café?", "№ 7"),
    ("Short.", "What?", "Short"),
)


@pytest.fixture(scope="session")
def word_pieces(minilm):
    return transformers.AutoTokenizer.from_pretrained(minilm)


@pytest.fixture(scope="session")
def byte_pairs():
    """A tokenizer like RoBERTa's, trained on the texts above: characters of several bytes may be several tokens."""
    backend = tokenizers.ByteLevelBPETokenizer()
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    backend.train_from_iterator(
        [ENGLISH, EMOJI[:30]], vocab_size=330, min_frequency=2, special_tokens=special, show_progress=False
    )
    backend._tokenizer.post_processor = tokenizers.processors.RobertaProcessing(
        ("</s>", backend.token_to_id("</s>")), ("<s>", backend.token_to_id("<s>")), trim_offsets=True
    )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend._tokenizer,
        cls_token="<s>",
        sep_token="</s>",
        pad_token="<pad>",
        unk_token="<unk>",
        model_max_length=512,
        model_input_names=["input_ids", "attention_mask"],
    )


def byte_level(*first, vocab_size=330, trimmed=True, normalizer=None, **options):
    """A byte-level tokenizer that splits the texts by `first` before; `options` are those of `ByteLevel`."""
    backend = tokenizers.Tokenizer(tokenizers.models.BPE())
    split = tokenizers.pre_tokenizers.ByteLevel(**options)
    backend.pre_tokenizer = tokenizers.pre_tokenizers.Sequence([*first, split, tokenizers.pre_tokenizers.Punctuation()])
    if normalizer is not None:
        backend.normalizer = normalizer
    backend.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=["<s>", "<pad>", "</s>", "<unk>", "<mask>"],
        initial_alphabet=split.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator([ENGLISH, EMOJI[:30]], trainer)
    backend.post_processor = tokenizers.processors.RobertaProcessing(
        ("</s>", 2), ("<s>", 0), trim_offsets=trimmed, add_prefix_space=options.get("add_prefix_space", True)
    )
    return fast(backend)


def trimmed_twice(tokenizer):
    backend = tokenizer.backend_tokenizer
    trim = tokenizers.processors.ByteLevel(trim_offsets=True, add_prefix_space=True)
    backend.post_processor = tokenizers.processors.Sequence([trim, backend.post_processor])
    return fast(backend)


def fast(backend):
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend, cls_token="<s>", sep_token="</s>", pad_token="<pad>", model_max_length=512
    )


WHITE_SPACE = tokenizers.pre_tokenizers.Whitespace()
LATE = {
    "RobBERT-2023's": lambda: byte_level(WHITE_SPACE),
    "whole words": lambda: byte_level(WHITE_SPACE, vocab_size=500),
    "a token for each space": lambda: byte_level(WHITE_SPACE, vocab_size=261),
    "punctuation split off": lambda: byte_level(tokenizers.pre_tokenizers.BertPreTokenizer(), vocab_size=400),
    "spaces trimmed twice": lambda: trimmed_twice(byte_level(vocab_size=400)),
    "a space before the text": lambda: byte_level(
        normalizer=tokenizers.normalizers.Prepend(" "), add_prefix_space=False, vocab_size=400
    ),
}
IN_PLACE = {
    "spaces in the offsets": lambda: byte_level(WHITE_SPACE, trimmed=False),
    "a token for each space": lambda: byte_level(WHITE_SPACE, trimmed=False, vocab_size=261),
    "RoBERTa's": lambda: byte_level(vocab_size=400),
    "GPT-2's": lambda: byte_level(vocab_size=400, add_prefix_space=False),
    "lower case": lambda: byte_level(normalizer=tokenizers.normalizers.Lowercase()),
    "without accents": lambda: byte_level(
        normalizer=tokenizers.normalizers.Sequence(
            [tokenizers.normalizers.NFD(), tokenizers.normalizers.StripAccents()]
        )
    ),
    "compatibility forms": lambda: byte_level(normalizer=tokenizers.normalizers.NFKC()),
}


@pytest.fixture(params=["word_pieces", "byte_pairs"])
def tokenizer(request):
    return request.getfixturevalue(request.param)


def windows(dataset, tokenizer, max_length=64, doc_stride=16):
    return list(encode_windows(dataset, tokenizer, max_length=max_length, doc_stride=doc_stride))


def test_columns(tokenizer):
    inputs = set(tokenizer.model_input_names)
    assert ("token_type_ids" in inputs) == (len(inputs) == 3)
    encoded = encode_windows(rows(*EXAMPLES), tokenizer, max_length=64, doc_stride=16)
    own = {"start_positions", "end_positions", "row", "is_truncated", "span_start", "span_end"}
    assert set(encoded.column_names) == inputs | own
    for window in encoded:
        lengths = {len(window[name]) for name in (*inputs, "span_start", "span_end")}
        assert len(lengths) == 1
        assert lengths.pop() <= 64
        assert set(window["attention_mask"]) == {1}


def test_each_answer_is_marked_exactly_in_some_window(tokenizer):
    dataset = rows(*EXAMPLES)
    found: dict[int, list[str]] = {row: [] for row in range(len(dataset))}
    for window in windows(dataset, tokenizer):
        start, end = window["start_positions"], window["end_positions"]
        if start != NULL_POSITION:
            context = dataset[window["row"]]["context"]
            found[window["row"]].append(context[window["span_start"][start] : window["span_end"][end]])
        else:
            assert end == NULL_POSITION
    for row, (_, _, answer) in enumerate(EXAMPLES):
        assert set(found[row]) == ({answer} if answer else set())


def context_tokens(window):
    tokens = zip(window["input_ids"], window["span_start"], window["span_end"], strict=True)
    return [token for token in tokens if token[1] != NO_CHARACTER]


@pytest.mark.parametrize("doc_stride", [0, 5, 16])
def test_neighbouring_windows_share_doc_stride_tokens_and_cover_the_context(tokenizer, doc_stride):
    dataset = rows(*EXAMPLES)
    by_row: dict[int, list[list[tuple[int, int, int]]]] = {row: [] for row in range(len(dataset))}
    for window in windows(dataset, tokenizer, max_length=40, doc_stride=doc_stride):
        by_row[window["row"]].append(context_tokens(window))
    assert sum(len(parts) > 2 for parts in by_row.values()) >= 4
    for row, parts in by_row.items():
        context = dataset[row]["context"]
        whole = list(parts[0])
        for part in parts[1:]:
            assert len(part) > doc_stride
            assert whole[len(whole) - doc_stride :] == part[:doc_stride]
            whole += part[doc_stride:]
        encoding = tokenizer(context, add_special_tokens=False, return_offsets_mapping=True)
        assert [token for token, _, _ in whole] == encoding["input_ids"]
        texts = [context[start:end] for _, start, end in whole]
        assert texts == [context[start:end].strip() for start, end in encoding["offset_mapping"]]


def test_the_span_of_a_token_is_its_text(word_pieces):
    text = "北京 and Paris 🎉 are cities"
    (window,) = windows(rows((text, "which?", None)), word_pieces)
    spans = [text[start:end] for _, start, end in context_tokens(window)]
    assert spans == ["北", "京", "and", "Paris", "🎉", "are", "cities"]


def test_questions_and_special_tokens_have_no_span(word_pieces):
    (window,) = windows(rows(("Paris", "  where is it ?", None)), word_pieces)
    tokens = word_pieces.convert_ids_to_tokens(window["input_ids"])
    assert tokens == ["[CLS]", "where", "is", "it", "?", "[SEP]", "paris", "[SEP]"]
    assert window["span_start"] == [*[NO_CHARACTER] * 6, 0, NO_CHARACTER]
    assert window["span_end"] == [*[NO_CHARACTER] * 6, 5, NO_CHARACTER]


def test_white_space_before_a_question_does_not_count(byte_pairs):
    plain, spaced = windows(rows((ENGLISH[:30], "who?", None), (ENGLISH[:30], " \n who?", None)), byte_pairs)
    assert spaced["input_ids"] == plain["input_ids"]


def test_an_answer_is_located_by_its_offset(tokenizer):
    text = "Paris and Paris and Paris"
    dataset = rows((text, "where?", "Paris"), start_from=3)
    (window,) = windows(dataset, tokenizer)
    assert window["span_start"][window["start_positions"]] == 10
    assert window["span_end"][window["end_positions"]] == 15


def test_white_space_around_an_answer_belongs_to_no_token(tokenizer):
    dataset = rows(("  Paris  ", "where?", "  Paris  "))
    (window,) = windows(dataset, tokenizer)
    spans = [window[name][window[position]] for name, position in zip(*TO_CHARACTERS, strict=True)]
    assert spans == [2, 7]


TO_CHARACTERS: Sequence[Sequence[str]] = (("span_start", "span_end"), ("start_positions", "end_positions"))


@pytest.mark.parametrize("trimmed", [True, False])
def test_no_answer_begins_or_ends_with_white_space(byte_pairs, trimmed):
    backend = tokenizers.Tokenizer.from_str(byte_pairs.backend_tokenizer.to_str())
    backend.post_processor = tokenizers.processors.RobertaProcessing(("</s>", 2), ("<s>", 0), trim_offsets=trimmed)
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=backend, cls_token="<s>", sep_token="</s>")
    context = "  The red   cat \n\n chases a\tbird\u3000and \n 北京 🎉  . " * 3
    texts = set()
    for window in windows(rows((context, "who?", None)), tokenizer, max_length=24, doc_stride=5):
        tokens = context_tokens(window)
        pairs = [(start, end) for row, (_, start, _) in enumerate(tokens) for _, _, end in tokens[row:] if end > start]
        texts |= {context[start:end] for start, end in pairs}
    assert {"The", "red   cat", "cat \n\n chases", "🎉  ."} <= texts
    assert all(text == text.strip() for text in texts)


@pytest.mark.parametrize("make", LATE.values(), ids=LATE)
@pytest.mark.parametrize("max_length", [64, 24])
def test_words_that_start_one_character_late_start_in_place(make, max_length):
    tokenizer = make()
    dataset = rows(*EXAMPLES, ("He saw U.S. x-rays a", "Who?", "U"), ("He saw U.S. x-rays a", "Who?", "a"))
    found: dict[int, set[str]] = {row: set() for row in range(len(dataset))}
    for window in windows(dataset, tokenizer, max_length=max_length, doc_stride=5):
        context = dataset[window["row"]]["context"]
        for token, start, end in context_tokens(window):
            text = tokenizer.decode([token]).strip()
            # Other tokens may hold a part of a character.
            assert not text.isascii() or context[start:end] == text
        first, last = window["start_positions"], window["end_positions"]
        if first != NULL_POSITION:
            found[window["row"]].add(context[window["span_start"][first] : window["span_end"][last]])
    for row, answers in enumerate(dataset["answers"]):
        # A short window may not hold the whole answer.
        assert found[row] in ([set(answers["text"])] if max_length > 24 else [set(answers["text"]), set()])


@pytest.mark.parametrize("make", IN_PLACE.values(), ids=IN_PLACE)
def test_offsets_that_are_right_stay(make):
    tokenizer = make()
    text = "  The CAT’s café, U.S. ﬁ x-rays: № 7 北京 🎉 a"
    (window,) = windows(rows((text, "who?", None)), tokenizer, max_length=128)
    theirs = tokenizer("who?", text, return_offsets_mapping=True)["offset_mapping"]
    for start, end, (first, last) in zip(window["span_start"], window["span_end"], theirs, strict=True):
        assert start == NO_CHARACTER or text[start:end] == text[first:last].strip()


def test_offsets_that_are_two_characters_late_are_refused():
    tokenizer = trimmed_twice(byte_level(WHITE_SPACE, vocab_size=400))
    with pytest.raises(AlignAttnError, match=r"wrong offsets, such as for 'the small red"):
        windows(rows(*EXAMPLES), tokenizer)


def test_a_tokenizer_of_other_characters_keeps_its_offsets():
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel({"<s>": 0, "</s>": 1, "?": 2, "C": 3}, unk_token="?"))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.Split("", "isolated")
    backend.post_processor = tokenizers.processors.RobertaProcessing(("</s>", 1), ("<s>", 0))
    (window,) = windows(rows(("CCxN", "C", "N")), fast(backend))
    assert [(start, end) for _, start, end in context_tokens(window)] == [(0, 1), (1, 2), (2, 3), (3, 4)]


def test_a_window_that_holds_a_part_of_the_answer_points_at_cls(word_pieces):
    context = " ".join(f"word{chr(97 + number % 26)}" for number in range(60))
    answer = " ".join(context.split()[10:40])
    parts = windows(rows((context, "what?", answer)), word_pieces, max_length=40, doc_stride=4)
    assert len(parts) > 2
    assert all(part["start_positions"] == part["end_positions"] == NULL_POSITION for part in parts)


def test_a_context_of_white_space_is_one_window_without_spans(tokenizer):
    (window,) = windows(rows((" \n ", "what?", None)), tokenizer)
    text = "".join(" \n "[start:end] for _, start, end in context_tokens(window))
    assert not text.strip()


@pytest.mark.parametrize(("max_length", "doc_stride"), [(384, 128), (96, 32), (64, 16)])
def test_a_long_question_is_truncated_and_leaves_room_for_the_context(tokenizer, max_length, doc_stride):
    question = "why does the 👩🏽‍🚀 fly, 北京 " * 80
    dataset = rows((ENGLISH * 2, question, "bird"))
    encoded = windows(dataset, tokenizer, max_length=max_length, doc_stride=doc_stride)
    special = tokenizer.num_special_tokens_to_add(pair=True)
    free = max_length - special - doc_stride
    for window in encoded:
        asked = len(window["input_ids"]) - len(context_tokens(window)) - special
        limit = min(MAX_QUESTION_TOKENS, free // 2)
        assert limit - 12 <= asked <= limit  # truncation is between characters, and an emoji has up to 11 bytes
    assert all(len(context_tokens(window)) >= doc_stride + free - free // 2 for window in encoded[:-1])
    assert any(window["start_positions"] for window in encoded)


def test_a_question_at_the_token_limit_is_not_truncated(word_pieces):
    question = " ".join(["why"] * MAX_QUESTION_TOKENS)
    for text in (question, question + " why"):
        (window,) = windows(rows(("Because.", text, None)), word_pieces, max_length=384, doc_stride=128)
        assert word_pieces.convert_ids_to_tokens(window["input_ids"]).count("why") == MAX_QUESTION_TOKENS


def test_row_numbers_continue_across_batches_and_processes(word_pieces):
    dataset = rows(*EXAMPLES[:3] * 500)
    lengths = {"max_length": 64, "doc_stride": 16}
    one = encode_windows(dataset, word_pieces, **lengths)
    two = encode_windows(dataset, word_pieces, num_proc=2, **lengths)
    assert set(one["row"]) == set(range(1500))
    assert one[:] == two[:]


@pytest.mark.parametrize(
    ("max_length", "doc_stride", "names"),
    [
        (64, 64, ("--max_length 64", "--doc_stride 64", "--max_length 69")),
        (20, 16, ("--max_length 20", "--doc_stride 16")),
        (64, -1, ("--doc_stride -1",)),
        (1024, 128, ("--max_length 1024", "at most 512")),
    ],
)
def test_lengths_that_do_not_fit_raise(word_pieces, max_length, doc_stride, names):
    with pytest.raises(AlignAttnError) as caught:
        encode_windows(rows(*EXAMPLES), word_pieces, max_length=max_length, doc_stride=doc_stride)
    assert all(name in str(caught.value) for name in names)
    assert "\n" not in str(caught.value)


def test_the_smallest_length_that_the_message_names_works(tokenizer):
    smallest = tokenizer.num_special_tokens_to_add(pair=True) + 4 + 2
    dataset = rows(("Paris is a city in the red wall of Rome", "where is the cat", None))
    with pytest.raises(AlignAttnError, match=f"give --max_length {smallest} or more"):
        encode_windows(dataset, tokenizer, max_length=smallest - 1, doc_stride=4)
    encoded = windows(dataset, tokenizer, max_length=smallest, doc_stride=4)
    assert max(window["span_end"][position] for window in encoded for position in range(smallest)) == 39


def test_a_slow_tokenizer_raises():
    with pytest.raises(AlignAttnError, match="fast tokenizer"):
        encode_windows(rows(*EXAMPLES), transformers.ByT5Tokenizer(), max_length=64, doc_stride=16)


def test_a_tokenizer_without_cls_first_raises(byte_pairs):
    backend = tokenizers.Tokenizer.from_str(byte_pairs.backend_tokenizer.to_str())
    backend.post_processor = tokenizers.processors.ByteLevel()
    bare = transformers.PreTrainedTokenizerFast(tokenizer_object=backend, cls_token="<s>")
    with pytest.raises(AlignAttnError, match=r"\[CLS\]"):
        encode_windows(rows(*EXAMPLES), bare, max_length=64, doc_stride=16)


@pytest.mark.parametrize("name", ["squad", "squad_v2"])
def test_real_rows(shared_data, word_pieces, name):
    dataset = datasets.Dataset.from_parquet(str(shared_data / name / "validation.parquet"), keep_in_memory=True)
    dataset = dataset.select(range(300))
    found: dict[int, str] = {}
    for window in windows(dataset, word_pieces, max_length=128, doc_stride=64):
        start, end = window["start_positions"], window["end_positions"]
        if start != NULL_POSITION:
            context = dataset[window["row"]]["context"]
            found[window["row"]] = context[window["span_start"][start] : window["span_end"][end]]
    texts = [answers["text"] for answers in dataset["answers"]]
    assert all(qa_problem(row["context"], row["question"], row["answers"]) is None for row in dataset)
    assert set(found) <= {row for row, golds in enumerate(texts) if golds}
    exact = [found.get(row) == golds[0] for row, golds in enumerate(texts) if golds]
    # A published answer may end within a token.
    assert sum(exact) >= 0.97 * len(exact)


@pytest.mark.parametrize(
    ("context", "question", "texts", "starts", "problem"),
    [
        ("Paris", "Where?", ["Paris"], [0], None),
        ("Paris", "Where?", [], [], None),
        ("北京 🎉 Rome", "Where?", ["Rome"], [5], None),
        (" ", "Where?", [], [], "its context is empty"),
        ("Paris", None, [], [], "its question is None, which is not text"),
        ("Paris", "Where?", ["Paris"], None, "its answers are not of the form"),
        ("Paris", "Where?", "Paris", [0], "its answers' 'text' is 'Paris', not a list"),
        ("Paris", "Where?", ["Paris", "Paris"], [0], "its answers have 2 texts and 1 answer_start"),
        ("Paris", "Where?", [None], [0], "its answer is None, which is not text"),
        ("Paris", "Where?", [""], [0], "its answer is empty; an unanswerable question has no answers at all"),
        ("Paris", "Where?", ["Paris"], ["0"], "its answer_start is '0', which is not a whole number"),
        ("x" * 512, "Where?", ["x"], [900], "its answer starts at character 900, and its context has 512"),
        ("Paris", "Where?", ["Paris"], [-1], "its answer starts at character -1, and its context has 5"),
        ("in Paris", "Where?", ["in", "Paris"], [0, 2], "at character 2 of its context, but at character 3"),
        ("in Paris", "Where?", ["Rome"], [3], "at character 3 of its context, nor anywhere else in the context"),
        ("in Paris", "Where?", ["R" * 99], [3], f"its answer '{'R' * 39}… is not at character 3"),
    ],
)
def test_qa_problem(context, question, texts, starts, problem):
    answers = {"text": texts} if starts is None else {"text": texts, "answer_start": starts}
    found = qa_problem(context, question, answers)
    assert found is None if problem is None else problem in (found or "")


def test_windows_are_padded_on_the_right_whatever_the_tokenizer(word_pieces):
    tokenizer = copy.deepcopy(word_pieces)
    tokenizer.padding_side = "left"
    split = rows(EXAMPLES[0], EXAMPLES[-1])
    read = ("input_ids", "attention_mask", "start_positions", "end_positions")
    items = [{name: window[name] for name in read} for window in windows(split, tokenizer)]
    batch = TASKS["squad"].collator(tokenizer, EncodedSplit(split, split, TaskOptions(64)))(items)
    for number, item in enumerate(items):
        assert batch["input_ids"][number, : len(item["input_ids"])].tolist() == item["input_ids"]
    assert batch["attention_mask"][:, -1].tolist().count(0) > 0
    assert tokenizer.padding_side == "left"
