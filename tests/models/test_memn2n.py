"""Memory networks against their equations, and stories: generated ones, and those in the format of bAbI."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from autocast import assert_near_under_autocast
from resumed import assert_goes_on, finetune
from slots_taken import STEP_BY_STEP, assert_counts, fill
from transformers import AutoModelForSequenceClassification

import alignattn
from alignattn.cli import main
from alignattn.commands.figure import FigureOptions, make_figure
from alignattn.models.build import BuildContext
from alignattn.models.memory import ADJACENT, LAYER_WISE, MemN2NForSequenceClassification
from alignattn.models.sentence_pairs import split_pair
from alignattn.models.word_model import Sentences
from alignattn.tasks import TextClassification
from alignattn.tasks.definitions import get_task
from alignattn.tasks.formats.babi import PLACES, made_stories, read_babi
from alignattn.tasks.rows import load_rows
from alignattn.utils.errors import AlignAttnError

TASK = TextClassification(
    name="own",
    text_columns=("story", "question"),
    label_column="answer",
    labels=("garden", "hall"),
    metrics=("accuracy",),
)
STORIES = ["Mary went to the hall. John moved to the garden. Mary slept.", "John slept.", "the end of it"]
QUESTIONS = ["Where is Mary?", "Where is John?", "Where?"]


def built_of(labels=TASK.labels, **fields):
    rows = {"story": STORIES, "question": QUESTIONS}
    fields = {"embedding_dim": 5, "memory_size": 4} | fields
    task = replace(TASK, labels=labels)
    return MemN2NForSequenceClassification.build(BuildContext(task, rows, seed=0, config_fields=fields))


def batch_of(tokenizer, stories=STORIES, questions=QUESTIONS, **options):
    return tokenizer(stories, questions, padding=True, return_tensors="pt", **options)


def by_sentences(model, tokenizer, sentences, question):
    """Return the last state and the weights of each hop, by the equations of Sukhbaatar et al. 2015."""
    config = model.config
    is_adjacent, size = config.tying == ADJACENT, config.embedding_dim
    tables = [hop.key_projection for hop in model.hops] + [model.last_values]
    aged = list(zip(sentences, range(len(sentences) - 1, -1, -1), strict=True))

    def vector(table, sentence, age=None):
        ids = tokenizer(sentence)["input_ids"]
        total = torch.zeros(size, dtype=table.words.weight.dtype)
        for j, word in enumerate(ids, start=1):
            for k in range(1, size + 1):
                place = (1 - j / len(ids)) - (k / size) * (1 - 2 * j / len(ids))
                total[k - 1] += (place if config.position_encoding else 1.0) * table.words.weight[word, k - 1]
        return total if age is None or not config.temporal_encoding else total + table.ages.weight[age]

    state, weights = vector(tables[0] if is_adjacent else model.question, question), []
    for hop in range(config.hops):
        keys, values = (tables[hop], tables[hop + 1]) if is_adjacent else (tables[0], tables[1])
        weights.append(torch.stack([state @ vector(keys, *pair) for pair in aged]).softmax(0))
        read = sum(weight * vector(values, *pair) for weight, pair in zip(weights[-1], aged, strict=True))
        state = (state if is_adjacent else model.between(state)) + read
    return state, torch.stack(weights, dim=1)


@pytest.mark.parametrize("tying", [ADJACENT, LAYER_WISE])
@pytest.mark.parametrize("hops", [1, 3])
@pytest.mark.parametrize("encodes", [True, False])
def test_it_follows_its_equations_sentence_by_sentence(tying, hops, encodes):
    built = built_of(tying=tying, hops=hops, position_encoding=encodes, temporal_encoding=encodes)
    model, tokenizer = built.model.double(), built.tokenizer
    model.apply(lambda part: [weight.data.normal_() for weight in part.parameters(recurse=False)])
    logits = model(**batch_of(tokenizer)).logits
    for story, question, found in zip(STORIES, QUESTIONS, logits, strict=True):
        sentences = [f"{part}." for part in story.split(". ")] if story.endswith(".") else [story]
        sentences = [sentence.replace("..", ".") for sentence in sentences]
        state, _ = by_sentences(model, tokenizer, sentences, question)
        if tying == ADJACENT:
            answers = [tokenizer.get_vocab()[label] for label in TASK.labels]
            expected = model.last_values.words.weight[answers] @ state
        else:
            expected = model.classifier(state)
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("filling", [None, *STEP_BY_STEP], ids=str)
def test_autocast_trains_near_full_precision(filling):
    built = built_of()
    labels = torch.arange(len(STORIES)) % len(TASK.labels)
    assert_near_under_autocast(fill(built.model, filling), {**batch_of(built.tokenizer), "labels": labels})


@pytest.mark.parametrize("filling", [None, *STEP_BY_STEP], ids=str)
@pytest.mark.parametrize("tying", [ADJACENT, LAYER_WISE])
def test_padding_on_either_side_changes_nothing(tying, filling):
    built = built_of(tying=tying)
    model, tokenizer = fill(built.model.double(), filling), built.tokenizer
    right = model(**batch_of(tokenizer)).logits
    for row in range(3):
        alone = model(**batch_of(tokenizer, STORIES[row : row + 1], QUESTIONS[row : row + 1]))
        torch.testing.assert_close(alone.logits[0], right[row])
    torch.testing.assert_close(model(**batch_of(tokenizer, padding_side="left")).logits, right)


@pytest.mark.parametrize("tying", [ADJACENT, LAYER_WISE])
def test_every_parameter_gets_a_gradient_and_an_empty_side_is_finite(tying):
    built = built_of(tying=tying, labels=("garden", "the hall", "none"))
    model, tokenizer = built.model.double(), built.tokenizer
    assert model.classifier is not None
    model(**batch_of(tokenizer), labels=torch.tensor([0, 1, 2])).loss.backward()
    for path, parameter in model.named_parameters():
        assert parameter.grad.abs().max() > 0, path
    empty = batch_of(tokenizer, ["", "Mary slept."], ["Where is Mary?", ""])
    assert model(**empty).logits.isfinite().all()


def test_the_latest_sentences_are_kept_and_a_row_of_10000_words_is_read():
    built = built_of(memory_size=2)
    model, tokenizer = built.model, built.tokenizer
    whole = model(**batch_of(tokenizer, STORIES[:1], QUESTIONS[:1])).logits
    kept = model(**batch_of(tokenizer, ["John moved to the garden. Mary slept."], QUESTIONS[:1])).logits
    torch.testing.assert_close(whole, kept)
    assert model(**batch_of(tokenizer, ["slept . the " * 3_400], QUESTIONS[:1])).logits.isfinite().all()


@pytest.mark.parametrize("filling", STEP_BY_STEP, ids=str)
@pytest.mark.parametrize("tying", [ADJACENT, LAYER_WISE])
def test_supports_its_slots_saves_and_loads(filling, tying, tmp_path):
    built = built_of(tying=tying)
    batch = batch_of(built.tokenizer)
    plain = built.model(**batch).logits
    model = fill(built.model, filling)
    expected = model(**batch).logits
    assert_counts(filling, plain, expected)
    expected.sum().backward()
    own = [part for path, part in model.named_parameters() if "alignattn" in path]
    assert bool(own) == (filling.slot != "normalizer")
    assert all(part.grad is not None and part.grad.abs().max() > 0 for part in own)
    model.save_pretrained(tmp_path)
    loaded = alignattn.from_pretrained(tmp_path, AutoModelForSequenceClassification)
    torch.testing.assert_close(loaded(**batch).logits, expected)
    with pytest.raises(AlignAttnError, match="distribution"):
        alignattn.patch(built_of().model, "aa-ct")


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        (("Garden", "HALL"), ["garden", "hall"]),
        # At the end of a word, the lower() of Python and the tokenizer write different sigmas.
        (("ΚΗΠΟΣ", "ΟΔΟΣ"), ["κηποσ", "οδοσ"]),
        # Decomposed Unicode, as in some files.
        (("\u1100\u1161", "\u1102\u1161"), ["가", "나"]),
        (("garden", "Garden"), []),
        (("garden", "the hall"), []),
        (("1", "2"), []),
        ((), []),
    ],
    ids=ascii,
)
def test_answers_are_words_if_each_is_a_different_word(labels, words):
    built = built_of(labels=labels)
    assert built.tokenizer.convert_ids_to_tokens(list(built.model.config.answer_words)) == words
    assert built.model.config.ties_answers is bool(words)
    assert built.model(**batch_of(built.tokenizer)).logits.shape == (len(STORIES), len(labels) or 1)


@pytest.mark.parametrize("facts", [1, 2])
def test_made_stories_are_true(facts):
    rows = made_stories(facts, 300, seed=3)
    for story, question, answer in zip(*rows.values(), strict=True):
        place_of, holder_of, thing_at = {}, {}, {}
        for sentence in story.rstrip(".").split(". "):
            person, *_, what = sentence.split()
            if what in PLACES:
                place_of[person] = what
            elif any(verb in sentence for verb in ("took", "got", "grabbed", "picked up")):
                assert holder_of.get(what) is None
                assert thing_at.get(what, place_of[person]) == place_of[person]
                holder_of[what] = person
            else:
                assert holder_of[what] == person
                holder_of[what], thing_at[what] = None, place_of[person]
        asked = question.rstrip("?").split()[-1]
        assert answer == place_of.get(asked) or answer == place_of.get(holder_of.get(asked), thing_at.get(asked))
    assert made_stories(facts, 5, seed=3) == {column: values[:5] for column, values in rows.items()}


def test_a_split_has_the_same_stories_whichever_splits_a_run_evaluates():
    task = get_task("babi1")
    both = load_rows(task).evaluation
    alone = load_rows(replace(task, evaluation_splits=("test",))).evaluation
    assert alone.keys() == {"test"}
    assert alone["test"][:] == both["test"][:] != both["validation"][:]
    with pytest.raises(AlignAttnError, match="babi1 has no split 'dev'"):
        load_rows(replace(task, evaluation_splits=("dev",)))


BABI = "1 Mary moved to the bathroom.\n2 Where is Mary? \tbathroom\t1\n3 John slept.\n4 Where is John?\tgarden\t3\n"


def test_a_file_of_babi_is_read_and_its_mistakes_are_one_line(tmp_path):
    rows = read_babi(Path("qa.txt"), BABI + "1 Ann went.\n2 Where?\thall\n").columns
    assert rows["story"] == ["Mary moved to the bathroom.", "Mary moved to the bathroom. John slept.", "Ann went."]
    assert rows["question"] == ["Where is Mary?", "Where is John?", "Where?"]
    assert rows["answer"] == ["bathroom", "garden", "hall"]
    for text, message in [
        ("1 Mary moved.\n2 John moved.\n" + BABI, "the story of qa.txt that begins in line 1 has no question"),
        (BABI + "1 Mary moved.\n", "begins in line 5 has no question"),
        (BABI + "Mary moved.\n", "line 5 of qa.txt is not a line of a bAbI story"),
        ("1 Where is Mary?\t\t1\n", "line 1 of qa.txt has a question without an answer"),
        ("1 Mary moved.\n2 Where is Mary?\t\n", "line 2 of qa.txt has a question without an answer"),
        ("1 Mary moved.\n2 \thall\t1\n", "line 2 of qa.txt has a question without an answer"),
        ("1 Mary moved.\n2\thall\t1\n", "line 2 of qa.txt has a question without an answer"),
        ("", "qa.txt has no story"),
    ]:
        with pytest.raises(AlignAttnError, match=message):
            read_babi(Path("qa.txt"), text)


def test_it_answers_more_than_95_percent_of_task_1():
    train, test = made_stories(1, 900, seed=0), made_stories(1, 300, seed=1)
    built = MemN2NForSequenceClassification.build(
        BuildContext(get_task("babi1"), train, seed=0, config_fields={"hops": 1})
    )
    model, (memories, questions, answers) = built.model, tensors(built, train)
    draw, optimizer = torch.Generator().manual_seed(0), torch.optim.Adam(built.model.parameters(), lr=0.03)
    for _ in range(12):
        for rows in torch.randperm(len(answers), generator=draw).split(100):
            optimizer.zero_grad()
            logits = model.answered(Sentences(memories.tokens[rows], memories.mask[rows]), questions[rows])
            torch.nn.functional.cross_entropy(logits, answers[rows]).backward()
            optimizer.step()
    memories, questions, answers = tensors(built, test)
    assert (model.answered(memories, questions).argmax(1) == answers).float().mean() > 0.95


@pytest.mark.parametrize("tying", [ADJACENT, LAYER_WISE])
def test_learns_32_stories_by_heart(tying):
    rows = made_stories(1, 32, seed=2)
    built = MemN2NForSequenceClassification.build(
        BuildContext(get_task("babi1"), rows, seed=0, config_fields={"tying": tying})
    )
    model, (memories, questions, answers) = built.model, tensors(built, rows)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.03)
    for _ in range(60):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model.answered(memories, questions), answers).backward()
        optimizer.step()
    assert torch.equal(model.answered(memories, questions).argmax(1), answers)


def tensors(built, rows):
    batch = batch_of(built.tokenizer, rows["story"], rows["question"])
    story, question = split_pair(batch["input_ids"], batch["attention_mask"], batch["token_type_ids"], 0)
    labels = get_task("babi1").labels
    return built.model.memories(story), question.tokens, torch.tensor([labels.index(word) for word in rows["answer"]])


def test_a_run_on_a_file_of_babi_trains_resumes_predicts_and_is_drawn(tmp_path, capsys):
    file, run = tmp_path / "qa1_train.txt", tmp_path / "run"
    file.write_text(BABI * 8)
    words = f"--model memn2n --train_file {file} --validation_file {file} --num_train_epochs 2"
    words += " --text_columns story question --label_column answer"
    finetune(words.split(), run)
    assert_goes_on(words.split(), run, capsys)
    assert json.loads((run / "results.json").read_text())["model"] == "memn2n"
    (told,) = alignattn.load_run(run).predict([("Mary went to the garden .", "Where is Mary ?")])
    assert told["prediction"] in ("bathroom", "garden")
    picture = tmp_path / "hops.svg"
    words = [
        "figure",
        "attention",
        "--run",
        str(run),
        "--output_file",
        str(picture),
        "--text",
        "Mary moved. John slept.",
    ]
    assert main(words) == 2
    assert capsys.readouterr().err.rstrip().endswith("and task 'qa1_train' needs 2: story, question")
    assert not picture.exists()
    assert main([*words, "Where?"]) == 0
    assert "john slept" in picture.read_text()
    texts, again = ("Mary moved. John slept.", "Where?"), str(tmp_path / "again.svg")
    drawn = make_figure(FigureOptions(kind="attention", run=(str(run),), output_file=again, text=texts))
    assert [label.get_text() for label in drawn.axes[0].get_xticklabels()] == ["mary moved .", "john slept ."]
    predictor = alignattn.load_run(run)
    _, weights = by_sentences(predictor.model, predictor.tokenizer, ["mary moved .", "john slept ."], "where ?")
    shown = torch.tensor(drawn.axes[0].images[0].get_array())
    torch.testing.assert_close(shown, weights.double().mT, rtol=1e-5, atol=1e-6)


def test_a_hop_without_slots_is_blank_in_the_figure(tmp_path):
    file, run = tmp_path / "qa1_train.txt", tmp_path / "run"
    file.write_text(BABI * 8)
    words = f"--model memn2n --model_config hops=3 --normalizer sparsemax --layers 1 --train_file {file}"
    words += f" --validation_file {file} --num_train_epochs 1 --text_columns story question --label_column answer"
    finetune(words.split(), run)
    texts, picture = ("Mary moved. John slept.", "Where?"), str(tmp_path / "hops.svg")
    drawn = make_figure(FigureOptions(kind="attention", run=(str(run),), output_file=picture, text=texts))
    shown = torch.tensor(drawn.axes[0].images[0].get_array().filled(torch.nan))
    assert shown.isnan().all(dim=1).tolist() == [True, False, True]
    torch.testing.assert_close(shown[1].sum(), torch.tensor(1.0).double())
