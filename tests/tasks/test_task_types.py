"""Every task type in `finetune`: its rows are checked, its head is trained, and its predictions are scored."""

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import transformers
from datasets import ClassLabel, Dataset, Features, List, Value
from task_rows import MAKERS, make_rows, sentence, write_rows
from transformers import (
    AutoConfig,
    AutoModelForMultipleChoice,
    AutoModelForQuestionAnswering,
    AutoModelForTokenClassification,
    AutoTokenizer,
    Trainer,
    TrainingArguments,
)

import alignattn
from alignattn.cli import main
from alignattn.commands.robustness import RobustnessOptions, target_loaders
from alignattn.finetuning.options import TrainingOptions
from alignattn.tasks import TokenClassification
from alignattn.tasks.answers.squad_metric import squad_scores
from alignattn.tasks.definitions import TASK_TYPES, TASKS
from alignattn.tasks.rows import load_task_files
from alignattn.tasks.tags.entities import entity_scores
from alignattn.tasks.tags.tagging import WORDS_READ
from alignattn.tasks.task import EncodedSplit, TaskOptions
from alignattn.utils.errors import AlignAttnError, plural
from alignattn.utils.options import resolve

ROWS = 24


@pytest.fixture
def rows_file(tmp_path):
    def write(task, *changed):
        rows = make_rows(TASKS[task], ROWS)
        for index, values in changed:
            rows[index] |= values
        return write_rows(tmp_path / f"{task}.jsonl", rows)

    return write


@pytest.fixture
def finetune(tiny_checkpoint, tmp_path):
    def run(train, *words):
        return main(
            f"finetune --model {tiny_checkpoint} --train_file {train} --validation_file {train} "
            f"--output_dir {tmp_path / 'run'} --num_train_epochs 2 --per_device_train_batch_size 8 "
            "--learning_rate 1e-3 --disable_tqdm true --use_cpu true".split()
            + list(words)
        )

    return run


def is_part(task):
    """Whether a task uses only a third of the rows of another."""
    return bool(getattr(task, "length_third", ""))


def windows_of(task):
    return ("--doc_stride", "8") if task.startswith("squad") else ()


def result_of(tmp_path):
    return json.loads((tmp_path / "run" / "results.json").read_text())


def predictions_of(tmp_path):
    return pq.read_table(tmp_path / "run" / "predictions.parquet").to_pylist()


def test_every_task_type_has_a_task_and_test_rows():
    of_own_files, of_files = (
        {"multi-label-classification"},
        {
            "image-classification",
            "image-to-text",
            "node-classification",
            "text2text-generation",
            "visual-question-answering",
        },
    )
    assert {task.kind for task in TASKS.values()} | of_own_files == set(TASK_TYPES) == set(MAKERS) | of_files


@pytest.mark.parametrize(
    ("splits", "watched"),
    [
        (["validation", "test"], ["validation"]),
        (["validation_matched", "validation_mismatched"], ["validation_matched", "validation_mismatched"]),
        (["test"], ["test"]),
        ([], []),
    ],
)
def test_training_does_not_evaluate_the_test_split_if_there_are_others(splits, watched):
    for task in (TASKS["agnews"], TASKS["squad"], TASKS["cora"]):
        assert task.splits_in_training(splits) == watched


def test_the_test_split_is_evaluated_only_at_the_end(tmp_path):
    folder = tmp_path / "data" / "ag_news"
    folder.mkdir(parents=True)
    for split in ("train", "test"):
        pd.DataFrame(make_rows(TASKS["agnews"], ROWS)).to_parquet(folder / f"{split}.parquet")
    words = "finetune --model lstm --model_config hidden_dim=4 embedding_dim=4 --task agnews --num_train_epochs 2 "
    words += "--eval_strategy epoch --metric_for_best_model accuracy --use_cpu true --disable_tqdm true"
    run = tmp_path / "run"
    assert main([*words.split(), "--data_dir", str(tmp_path / "data"), "--output_dir", str(run)]) == 0
    logged = {key for entry in json.loads((run / "trainer_state.json").read_text())["log_history"] for key in entry}
    assert "eval_accuracy" in logged
    assert not [key for key in logged if "test" in key]
    assert json.loads((run / "results.json").read_text())["metrics"].keys() == {"validation", "test"}


@pytest.mark.parametrize("name", [name for name, task in TASKS.items() if task.kind in MAKERS and not is_part(task)])
def test_rows_of_every_task_go_from_their_file_to_scores(name, tiny_checkpoint, tmp_path):
    made = make_rows(TASKS[name], ROWS)
    file = write_rows(tmp_path / "rows.jsonl", made)
    rows = load_task_files(TASKS[name], file, file)
    task, tokenizer = rows.task, AutoTokenizer.from_pretrained(tiny_checkpoint)
    chosen = TaskOptions(max_length=32, doc_stride=8)
    dataset = rows.evaluation["validation"]
    split = EncodedSplit(dataset, task.encode(dataset, tokenizer, chosen), chosen)
    config = AutoConfig.from_pretrained(tiny_checkpoint)
    task.configure(config)
    trainer = Trainer(
        getattr(transformers, task.auto_class).from_config(config),
        TrainingArguments(tmp_path / "out", use_cpu=True, disable_tqdm=True, report_to="none"),
        data_collator=task.collator(tokenizer, split),
    )
    outputs = trainer.predict(split.encoded)
    evaluation = task.evaluate(split, outputs.predictions, outputs.label_ids)
    assert set(evaluation.metrics) >= set(task.metrics)
    assert all(-1 <= value <= 1 for value in evaluation.metrics.values())
    others = {"token-classification": "ner_tags", "question-answering": None}
    written = others.get(task.kind, getattr(task, "label_column", None))
    labels = [row["answers"]["text"] if written is None else row[written] for row in made]
    assert evaluation.predictions["label"].to_pylist() == labels


@pytest.mark.parametrize("task", ["hellaswag", "swag"])
def test_multiple_choice(task, rows_file, finetune, tmp_path):
    assert finetune(rows_file(task), "--task", task, "--attention", "aa-ct", "--max_length", "32") == 0
    result, rows = result_of(tmp_path), predictions_of(tmp_path)
    assert result["metrics"]["validation"]["accuracy"] == pytest.approx(
        sum(row["label"] == row["prediction"] for row in rows) / ROWS
    )
    assert [row["label"] for row in rows] == [number % 4 for number in range(ROWS)]
    assert all(len(row["probabilities"]) == 4 for row in rows)
    model = alignattn.from_pretrained(tmp_path / "run", AutoModelForMultipleChoice)
    assert model.alignattn.config.alignment == "ct"


def test_the_common_start_of_swag_endings_is_joined_to_each_ending(tiny_checkpoint, tmp_path):
    (row,) = make_rows(TASKS["swag"], 1)
    rows = load_task_files(TASKS["swag"], write_rows(tmp_path / "swag.jsonl", [row]), None)
    tokenizer = AutoTokenizer.from_pretrained(tiny_checkpoint)
    encoded = rows.task.encode(rows.train, tokenizer, TaskOptions(64))
    expected = [f"[CLS] {row['sent1']} [SEP] {row['sent2']} {row[f'ending{index}']} [SEP]" for index in range(4)]
    assert [tokenizer.decode(ids) for ids in encoded[0]["input_ids"]] == expected


def test_tagging(rows_file, finetune, tmp_path):
    words = ("--task", "msra", "--max_length", "32", "--num_train_epochs", "40", "--attention", "soft")
    assert finetune(rows_file("msra"), *words, "--eval_strategy", "no") == 0
    result, rows = result_of(tmp_path), predictions_of(tmp_path)
    scores = entity_scores([row["prediction"] for row in rows], [row["label"] for row in rows])
    assert result["metrics"]["validation"] == pytest.approx(scores)
    assert scores["f1"] > 0.5  # the word determines the tag
    model = alignattn.from_pretrained(tmp_path / "run", AutoModelForTokenClassification)
    assert model.config.id2label == {0: "O", 1: "B-ANIMAL"}


def test_a_conll_file_needs_no_other_option(finetune, tmp_path):
    path = tmp_path / "own.conll"
    lines = [
        "\n".join(f"{token} X {tag}" for token, tag in zip(row["tokens"], row["ner_tags"], strict=True))
        for row in make_rows(TASKS["msra"], ROWS)
    ]
    path.write_text("-DOCSTART- X O\n\n" + "\n\n".join(lines) + "\n")
    assert finetune(path, "--max_length", "32") == 0
    result = result_of(tmp_path)
    assert (result["task"], result["train_rows"]) == ("own", ROWS)
    assert set(result["metrics"]["validation"]) == {"f1", "precision", "recall", "token_accuracy"}


@pytest.mark.parametrize(
    ("names", "expected", "metrics"),
    [
        (["O", "B-X", "I-X"], ("O", "B-X", "I-X"), {"f1", "precision", "recall", "token_accuracy"}),
        (None, ("0", "1", "2"), {"token_accuracy"}),
    ],
)
def test_class_numbers_have_the_names_of_their_feature(names, expected, metrics, finetune, tmp_path):
    tag = Value("int64") if names is None else ClassLabel(names=names)
    rows = {"words": [sentence(3) for _ in range(ROWS)], "pos": [[0, 1, 2]] * ROWS}
    features = Features({"words": List(Value("string")), "pos": List(tag)})
    path = tmp_path / "own.parquet"
    Dataset.from_dict(rows, features=features).to_parquet(path)
    assert finetune(path, "--tokens_column", "words", "--label_column", "pos", "--max_length", "32") == 0
    assert set(result_of(tmp_path)["metrics"]["validation"]) == metrics
    model = alignattn.from_pretrained(tmp_path / "run", AutoModelForTokenClassification)
    assert tuple(model.config.id2label.values()) == expected


PARTS_OF_SPEECH = {"tokens": ["The", "dog", "ran", "home", "fast"], "ner_tags": ["DT", "NN", "VB", "IN", "RB"]}


@pytest.mark.parametrize("listed", [(), ("DT", "NN", "VB", "IN", "RB")])
def test_tags_that_mark_no_entities_are_scored_by_word(listed, tmp_path, capsys):
    file = write_rows(tmp_path / "pos.jsonl", [PARTS_OF_SPEECH])
    rows = load_task_files(TokenClassification(name="own", labels=listed), file, None)
    assert rows.task.metrics == ("token_accuracy",)
    (line,) = capsys.readouterr().err.splitlines()
    assert line == f"{file}: the tag 'DT' does not mark an entity as B-DT and I-DT would: the metric is token accuracy"
    # Predicted: VB as RB and RB as VB. Without their first letters, these are the same.
    numbers = [rows.task.labels.index(tag) for tag in ("DT", "NN", "RB", "IN", "VB")]
    encoded = Dataset.from_dict({WORDS_READ: [[True] * 5]})
    labels = np.array([[rows.task.labels.index(tag) for tag in PARTS_OF_SPEECH["ner_tags"]]])
    evaluation = rows.task.evaluate(EncodedSplit(rows.train, encoded, TaskOptions(64)), np.eye(5)[[numbers]], labels)
    assert evaluation.metrics == {"token_accuracy": 0.6}
    assert {name: scores["f1"] for name, scores in evaluation.classes.items()} == {
        "DT": 1.0,
        "NN": 1.0,
        "VB": 0.0,
        "IN": 1.0,
        "RB": 0.0,
    }


@pytest.mark.parametrize("task", ["squad", "squadv2"])
def test_question_answering(task, rows_file, finetune, tmp_path):
    file = rows_file(task)
    words = ("--task", task, "--attention", "aa-ct", "--max_length", "32", "--doc_stride", "8", "--n_best_size", "5")
    assert finetune(file, *words, "--eval_strategy", "epoch") == 0
    result, rows = result_of(tmp_path), predictions_of(tmp_path)
    assert (result["train_rows"], result["evaluation_rows"]) == (ROWS, {"validation": ROWS})
    asked = [json.loads(line) for line in file.read_text().splitlines()]
    for row, question in zip(rows, asked, strict=True):
        assert row["id"] == question["id"]
        assert row["label"] == question["answers"]["text"]
        assert 1 <= len(row["n_best"]) <= 5
        for text, start in zip(row["n_best"], row["n_best_starts"], strict=True):
            assert question["context"].startswith(text, start)
    best, golds = [row["n_best"][0] for row in rows], [row["label"] for row in rows]
    no_answer = [row["no_answer_score"] for row in rows] if task == "squadv2" else None
    scores = squad_scores(best, golds, no_answer)
    assert result["metrics"]["validation"] == pytest.approx(scores.metrics)
    assert result["thresholds"] == ({"validation": scores.thresholds} if scores.thresholds else {})
    if no_answer:
        assert all((row["prediction"] == "") == (row["no_answer_score"] > 0) for row in rows)
    assert alignattn.from_pretrained(tmp_path / "run", AutoModelForQuestionAnswering).alignattn.config.alignment == "ct"


def test_a_split_of_unanswerable_questions_with_numbers_as_ids(rows_file, tiny_checkpoint, tmp_path):
    rows = [json.loads(line) for line in rows_file("squadv2").read_text().splitlines()]
    nothing = {"answers": {"text": [], "answer_start": []}}
    test = [row | nothing | {"id": number} for number, row in enumerate(rows)]
    splits = {"train": rows, "validation": rows, "test": test}
    files = {split: str(write_rows(tmp_path / f"{split}.jsonl", of)) for split, of in splits.items()}
    task = {"kind": "question-answering", "has_unanswerable": True, "evaluation_splits": ["validation", "test"]}
    (tmp_path / "own.yaml").write_text(json.dumps(task | {"sources": {"files": files}}))
    words = (
        f"finetune --task {tmp_path}/own.yaml --model {tiny_checkpoint} --max_steps 1 --max_length 32 --use_cpu true"
    )
    assert main([*words.split(), "--doc_stride", "8", "--output_dir", str(tmp_path / "run")]) == 0
    of_test = [row for row in predictions_of(tmp_path) if row["split"] == "test"]
    assert [(row["id"], row["label"]) for row in of_test] == [(str(number), []) for number in range(ROWS)]


def test_no_answer_has_no_probability():
    told = {"n_best": [["cat"]] * 2, "n_best_starts": [[4]] * 2, "n_best_probabilities": [[1.0]] * 2}
    table = pa.table({"prediction": ["cat", ""], "no_answer_score": [-1.0, 1.0], **told})
    found = TASKS["squadv2"].readable_predictions(table, 1).to_pylist()
    assert [(row["start"], row["probability"]) for row in found] == [(4, 1.0), (None, None)]


BAD = {
    "squad": [
        ({"answers": {"text": ["no such words"], "answer_start": [0]}}, "its answer 'no such words' is not at"),
        (
            {"answers": {"text": ["the"], "answer_start": [9999]}},
            "its answer starts at character 9999",
        ),
        ({"answers": {"text": [], "answer_start": []}}, "its question has no answer"),
        ({"question": " "}, "its question is empty"),
    ],
    "msra": [
        ({"tokens": ["a", "cat"], "ner_tags": ["O"]}, "it has 2 tokens and 1 tags"),
        ({"tokens": ["a", ""], "ner_tags": ["O", "O"]}, "its token 2 is empty"),
    ],
    "hellaswag": [
        ({"endings": ["a", "b", "c"]}, "it has 3 endings and must have 4"),
        ({"endings": ["a", "b", "", "d"]}, "its ending 2 is empty"),
        ({"label": 4}, "label 4 is not a class number from 0 to 3"),
        ({"ctx": None}, "column 'ctx' is empty"),
    ],
}


@pytest.mark.parametrize("task", BAD)
def test_bad_rows_are_refused_or_left_out_counted_and_listed(task, rows_file, finetune, tmp_path, capsys):
    changes = [(3 * index + 1, values) for index, (values, _) in enumerate(BAD[task])]
    file = rows_file(task, *changes)
    words = ("--task", task, "--max_length", "32", *windows_of(task), "--num_train_epochs", "1")
    assert finetune(file, *words) == 2
    (error,) = capsys.readouterr().err.splitlines()
    assert f"{file}, line 2, row 2: {BAD[task][0][1]}" in error
    assert "--skip_bad_rows" in error
    assert not (tmp_path / "run").exists()
    assert finetune(file, *words, "--skip_bad_rows") == 0
    result = result_of(tmp_path)
    assert result["train_rows"] == result["evaluation_rows"]["validation"] == ROWS - len(changes)
    assert len(predictions_of(tmp_path)) == ROWS - len(changes)
    for split in ("train", "validation"):
        listed = result["bad_rows"][split]
        assert [bad["row"] for bad in listed] == [index + 1 for index, _ in changes]
        for bad, (_, problem) in zip(listed, BAD[task], strict=True):
            assert problem in bad["problem"]
    assert f"left out of train: {plural(len(changes), 'bad row')}, listed in results.json" in capsys.readouterr().out


def test_bad_rows_of_own_texts_are_left_out(finetune, tmp_path):
    path = tmp_path / "own.csv"
    rows = [(" ".join(sentence(4)), "yes" if number % 2 else "no") for number in range(ROWS)]
    rows[2], rows[5] = ("", "maybe"), (rows[5][0], "")
    pd.DataFrame(rows, columns=["text", "label"]).to_csv(path, index=False)
    assert finetune(path, "--text_columns", "text", "--skip_bad_rows", "--max_length", "32") == 0
    result = result_of(tmp_path)
    assert result["bad_rows"]["train"] == [
        {"row": 3, "problem": "column 'text' is empty", "line": 4},
        {"row": 6, "problem": "it has no label", "line": 7},
    ]
    # The label of a skipped row is not a class.
    assert all(len(row["probabilities"]) == 2 for row in predictions_of(tmp_path))


@pytest.mark.parametrize(
    ("option", "value", "tasks"),
    [("label_smoothing_factor", "0.1", ("vqav2", "squad")), ("r_drop_weight", "1", ("vqav2",))],
)
def test_options_for_one_class_per_row_are_refused_for_other_answers(option, value, tasks):
    training = resolve(TrainingOptions, {"output_dir": "run", option: value})
    for name in tasks:
        # As after its rows are read.
        task = replace(TASKS[name], labels=("yes", "no")) if name == "vqav2" else TASKS[name]
        with pytest.raises(AlignAttnError, match=f"--{option}: task {name!r}"):
            training.check(task)
    training.check(TASKS["easyvqa"])


@pytest.mark.parametrize("task", ["cora", "easyvqacaptions"])
def test_rows_without_a_length_cannot_be_grouped_by_length(task):
    training = resolve(TrainingOptions, {"output_dir": "run", "train_sampling_strategy": "group_by_length"})
    with pytest.raises(AlignAttnError, match=f"rows of task {task!r} are not sequences"):
        training.check(TASKS[task])
    training.check(TASKS["mrpc"])


def test_domain_shift_of_multiple_choice(tiny_checkpoint, tmp_path):
    for task, splits in (("swag", ("train", "validation")), ("hellaswag", ("validation",))):
        folder = tmp_path / "data" / task
        folder.mkdir(parents=True)
        for split in splits:
            pd.DataFrame(make_rows(TASKS[task], ROWS)).to_parquet(folder / f"{split}.parquet")
    words = (
        f"domain-shift --pair swag-hellaswag --model {tiny_checkpoint} --data_dir {tmp_path / 'data'} --max_length 32 "
        f"--output_dir {tmp_path / 'out'} --attention aa-ct --num_train_epochs 1 --disable_tqdm true --use_cpu true"
    )
    assert main(words.split()) == 0
    result = json.loads((tmp_path / "out" / "results.json").read_text())
    assert {name: side["held_out_rows"] for name, side in result["sides"].items()} == {
        "in-domain": ROWS // 2,
        "out-of-domain": ROWS // 2,
    }
    table = pq.read_table(tmp_path / "out" / "predictions.parquet").to_pylist()
    assert len(table) == 2 * ROWS
    assert all(sum(row["probabilities"]) == pytest.approx(1) for row in table)
    assert (tmp_path / "out" / "report.html").is_file()


@pytest.mark.parametrize("task", ["msra", "squad"])
def test_training_options_do_not_change_which_rows_are_scored_or_their_order(task, rows_file, finetune, tmp_path):
    file = rows_file(task)
    # At a learning rate of 0 the order of the training rows changes nothing.
    words = ("--max_length", "32", *windows_of(task), "--num_train_epochs", "1", "--learning_rate", "0")
    training = ("--dataloader_drop_last", "true", "--train_sampling_strategy", "group_by_length")
    predictions = []
    for chosen in ((), training):
        assert finetune(file, "--task", task, *words, "--per_device_eval_batch_size", "7", *chosen) == 0
        predictions.append([(row["label"], row["prediction"]) for row in predictions_of(tmp_path)])
        (tmp_path / "run").rename(tmp_path / f"run-{len(predictions)}")
    assert len(predictions[0]) == ROWS
    assert predictions[0] == predictions[1]


def test_a_class_number_is_never_taken_for_another_tag(finetune, tmp_path, capsys):
    train = write_rows(tmp_path / "train.jsonl", make_rows(TASKS["msra"], ROWS))
    words = ("--tokens_column", "tokens", "--label_column", "ner_tags", "--max_length", "32")
    numbered = write_rows(tmp_path / "numbered.jsonl", [{"tokens": ["a", "cat"], "ner_tags": [0, 1]}])
    assert finetune(train, *words, "--validation_file", str(numbered)) == 2
    assert "row 1: its tag 1, '0', is not in the training split (O, B-ANIMAL)" in capsys.readouterr().err
    many = [{"tokens": sentence(11), "ner_tags": list(range(11))} for _ in range(ROWS)]
    rows = load_task_files(TASKS["msra"], write_rows(tmp_path / "many.jsonl", many), None)
    assert rows.task.labels == tuple(str(number) for number in range(11))
    assert rows.train["ner_tags"][0] == list(rows.task.labels)


def test_the_best_checkpoint_is_chosen_by_the_first_of_two_splits(tiny_checkpoint, tmp_path):
    folder = tmp_path / "data" / "glue" / "mnli"
    folder.mkdir(parents=True)
    rows = pd.DataFrame(make_rows(TASKS["mnli"], 40))
    for split in ("train", "validation_matched"):
        rows.to_parquet(folder / f"{split}.parquet")
    # Other shares of the classes, so that the accuracies of the two splits differ.
    rows.assign(label=[0] * 20 + [1] * 15 + [2] * 5).to_parquet(folder / "validation_mismatched.parquet")
    words = (
        f"finetune --model {tiny_checkpoint} --task mnli --data_dir {tmp_path / 'data'} "
        f"--output_dir {tmp_path / 'run'} --max_length 32 --num_train_epochs 2 --eval_strategy epoch "
        "--save_strategy best --metric_for_best_model accuracy "
        "--disable_tqdm true --use_cpu true"
    )
    assert main(words.split()) == 0
    state = json.loads((tmp_path / "run" / "trainer_state.json").read_text())
    logged, metric = state["log_history"], "eval_validation_matched_accuracy"
    assert state["best_metric"] == pytest.approx(max(entry[metric] for entry in logged if metric in entry))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--tokens_column tokens --label_column tokens", "duplicate column"),
        ("--tokens_column tokens --label_column ctx", "has no column 'ctx'"),
        ("--task squad --n_best_size 0", "--n_best_size 0 must be at least 1"),
        ("--task squad --metric_for_best_model best_f1 --max_length 32 --doc_stride 8", "'best_f1' is not measured"),
        ("--task squad --max_length 32 --doc_stride 32", "--doc_stride 32"),
    ],
)
def test_wrong_options_are_refused(words, message, rows_file, finetune, tmp_path, capsys):
    file = rows_file("squad" if "squad" in words else "msra")
    assert finetune(file, *words.split()) == 2
    assert message in capsys.readouterr().err.splitlines()[-1]
    assert not (tmp_path / "run" / "results.json").exists()


def test_attacks_use_the_good_rows_of_the_run(tiny_checkpoint, tmp_path):
    folder = tmp_path / "data" / "glue" / "sst2"
    folder.mkdir(parents=True)
    texts = [" ".join(sentence(4)) for _ in range(ROWS)]
    for split in ("train", "validation"):
        rows = {"sentence": [*texts[:3], "", *texts[4:]], "label": [number % 2 for number in range(ROWS)]}
        pd.DataFrame(rows).to_parquet(folder / f"{split}.parquet")
    words = (
        f"finetune --model {tiny_checkpoint} --task sst2 --data_dir {tmp_path / 'data'} "
        f"--output_dir {tmp_path / 'run'} --max_length 32 --skip_bad_rows --max_eval_samples 5 "
        "--num_train_epochs 1 --disable_tqdm true --use_cpu true"
    )
    assert main(words.split()) == 0
    (load,) = target_loaders(RobustnessOptions(run=[str(tmp_path / "run")]))
    target = load()
    assert [row.texts["sentence"] for row in target.rows] == texts[:3] + texts[4:]
    assert (target.name, target.split) == ("run", "validation")


@pytest.mark.parametrize("task", ["sst2", "stsb"])
def test_empty_predictions_have_the_columns_and_types_of_real_ones(task):
    task = TASKS[task]
    logits = np.zeros((2, task.num_labels), dtype=np.float32)
    real = task.readable_predictions(task.predictions(None, logits, None), None)
    assert task.empty_predictions(None).schema == real.schema
