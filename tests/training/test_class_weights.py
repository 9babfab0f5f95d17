"""Class weights against PyTorch and scikit-learn, in double precision."""

import json
from functools import partial

import datasets
import numpy as np
import pandas as pd
import pytest
import torch
import yaml
from conftest import WORDS, tiny_model
from rows_of_kinds import IGNORED, KindRows, kind_model
from sklearn.metrics import f1_score, precision_recall_fscore_support
from sklearn.utils.class_weight import compute_class_weight
from test_trainer import TinyRows, arguments, logged, steepened, without_dropout
from torch.nn import functional as F
from train_distributed import ROWS, WEIGHTS, train_kind, weighted_trainer
from transformers.trainer_pt_utils import LabelSmoother

import alignattn
from alignattn.cli import main
from alignattn.finetuning.results import RunResult, render_metrics
from alignattn.finetuning.task_trainer import TaskTrainer
from alignattn.patching import alignment_parameters
from alignattn.tasks.definitions import TASKS
from alignattn.tasks.metrics import class_scores
from alignattn.training.weights import weighted_loss

CLASSES = 3


def draw(*shape):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def scaled(weights, labels):
    """Return the weights scaled to a mean of 1 over the labels."""
    return weights * len(labels) / weights[labels].sum()


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("shape", [(16,), (4, 9)])
def test_the_loss_of_all_rows_matches_pytorch(shape, smoothing):
    logits = draw(*shape, CLASSES)
    labels = torch.randint(CLASSES, shape, generator=torch.Generator().manual_seed(2))
    labels.view(-1)[:3] = torch.arange(CLASSES)
    if len(shape) > 1:
        labels[1:3, 4:] = IGNORED
    there = labels[labels != IGNORED]
    loss = weighted_loss({"logits": logits}, labels, weights=scaled(WEIGHTS, there), label_smoothing=smoothing)
    expected = F.cross_entropy(logits.flatten(0, -2), labels.flatten(), WEIGHTS, label_smoothing=smoothing)
    torch.testing.assert_close(loss, expected, rtol=1e-12, atol=0)


def test_with_equal_weights_label_smoothing_matches_transformers():
    logits, labels = draw(8, CLASSES), torch.tensor([0, 1, 2, 2, 1, 0, 0, 0])
    loss = weighted_loss((logits,), labels, weights=torch.ones(CLASSES), label_smoothing=0.3)
    torch.testing.assert_close(loss, LabelSmoother(0.3)({"logits": logits}, labels))


def test_multilabel_weights_apply_to_true_labels():
    logits, labels = draw(16, CLASSES), (draw(16, CLASSES) > 0.8).double()
    expected = F.binary_cross_entropy_with_logits(logits, labels, pos_weight=WEIGHTS)
    torch.testing.assert_close(weighted_loss((logits,), labels, weights=WEIGHTS), expected, rtol=1e-12, atol=0)


@pytest.mark.parametrize("changes", [{}, {"label_smoothing_factor": 0.1}, {"r_drop_weight": 1.0}])
@pytest.mark.parametrize("kind", ["texts", "tags"])
def test_a_step_in_batches_equals_the_step_at_once(kind, changes, tmp_path, monkeypatch):
    monkeypatch.setattr("alignattn.training.methods.r_drop.RDrop.__init__", _r_drop_of_equals)
    trainer = partial(weighted_trainer, changes.get("label_smoothing_factor", 0.0))
    once = train_kind(kind, "aa-ct", tmp_path, 8, 1, trainer, **changes)
    batches = train_kind(kind, "aa-ct", tmp_path, 2, 4, trainer, **changes)
    for name, tensor in once.model.state_dict().items():
        torch.testing.assert_close(batches.model.state_dict()[name], tensor, rtol=1e-5, atol=1e-7, msg=name)
    assert logged(batches, "task_loss") == pytest.approx(logged(once, "task_loss"), rel=1e-6)


def _r_drop_of_equals(self, args, model):
    self.extra_weight, self._has_differed = args.r_drop_weight, True


@pytest.mark.parametrize("kind", ["texts", "tags"])
@pytest.mark.parametrize("changes", [{}, {"r_drop_weight": 1.0}])
def test_every_methods_task_loss_is_weighted(kind, changes, tmp_path, monkeypatch):
    """Dropout is off: R-Drop's divergence is 0, and its two forwards are equal."""
    monkeypatch.setattr("alignattn.training.methods.r_drop.RDrop.__init__", _r_drop_of_equals)
    trainer = train_kind(kind, "soft", tmp_path, ROWS, 1, weighted_trainer, max_steps=1, **changes)
    hand, batch = kind_model(kind, "soft"), dict(KindRows(kind, ROWS).batch)
    labels = batch.pop("labels")
    order = list(trainer.get_train_dataloader().sampler)
    assert sorted(order) == list(range(ROWS))
    sums = F.cross_entropy(hand(**batch).logits.flatten(0, -2), labels.flatten(), WEIGHTS, reduction="sum")
    loss = sums / (labels != IGNORED).sum()
    assert logged(trainer, "loss") == [pytest.approx(float(loss), rel=1e-6)]
    loss.backward()
    for name, parameter in hand.named_parameters():
        moved = parameter if parameter.grad is None else parameter - 0.1 * parameter.grad
        torch.testing.assert_close(trainer.model.get_parameter(name), moved, rtol=1e-5, atol=1e-7, msg=name)


LABELS = ["bad", "good", "rare=odd"]


@pytest.mark.parametrize(("weights", "most"), [(dict.fromkeys("abc", 1.0), 1.0), (None, None)])
def test_weights_turn_off_the_clipping_of_the_model_alone(weights, most, tmp_path):
    """A rare row's gradient is large on purpose; an adversary's is not, and it was unclipped with class weights."""
    model = alignattn.patch(without_dropout(tiny_model("bert")), "aa-gan", alignment_weight=0.3).double()
    before = [parameter.detach().clone() for parameter in alignment_parameters(model)]
    options = {"optim": "sgd", "learning_rate": 1.0, "alignment_learning_rate": 1.0, "max_grad_norm": 0.0}
    args = arguments(tmp_path, max_steps=1, **options)
    rows = {"train_dataset": TinyRows(), "task": TASKS["rte"], "splits": {}}
    steepened(TaskTrainer(model=model, args=args, class_weights=weights, **rows), 1e4).train()
    after = alignment_parameters(model)
    moved = torch.stack([(a - b).norm() for a, b in zip(before, after, strict=True)]).norm().item()
    assert moved == pytest.approx(most, rel=1e-3) if weights else moved > 2


def uneven(folder, name, counts, seed):
    rng = np.random.default_rng(seed)
    labels = np.repeat(LABELS, counts)
    texts = [f"{WORDS[LABELS.index(label)]} {' '.join(rng.choice(WORDS, 4))}" for label in labels]
    frame = pd.DataFrame({"text": texts, "label": labels, "score": rng.normal(size=len(labels))})
    path = folder / f"{name}.tsv"
    frame.sample(frac=1, random_state=seed).to_csv(path, sep="\t", index=False)
    return path


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("uneven")
    return uneven(folder, "train", (150, 60, 2), 0), uneven(folder, "validation", (20, 10, 4), 1)


def words_of(model, files, folder, *more):
    return [
        *("finetune", "--model", str(model), "--train_file", str(files[0]), "--validation_file", str(files[1])),
        *("--text_columns", "text", "--num_train_epochs", "1", "--per_device_train_batch_size", "16"),
        *("--max_length", "16", "--disable_tqdm", "true", "--use_cpu", "--output_dir", str(folder), *more),
    ]


def test_a_run_balances_its_classes_and_reports_each(tiny_checkpoint, files, tmp_path, capsys):
    folder = tmp_path / "run"
    assert main(words_of(tiny_checkpoint, files, folder, "--class_weights", "balanced")) == 0
    result = json.loads((folder / "results.json").read_text())
    labels = pd.read_csv(files[0], sep="\t")["label"]
    expected = compute_class_weight("balanced", classes=np.array(LABELS), y=labels)
    assert result["class_weights"] == pytest.approx(dict(zip(LABELS, expected, strict=True)))
    predicted = pd.read_parquet(folder / "predictions.parquet")
    scores = precision_recall_fscore_support(predicted["label"], predicted["prediction"], labels=range(3))
    for name, *of_class in zip(LABELS, *scores, strict=True):
        assert list(result["classes"]["validation"][name].values()) == pytest.approx(of_class)
    macro = f1_score(predicted["label"], predicted["prediction"], average="macro")
    assert result["metrics"]["validation"]["macro_f1"] == pytest.approx(macro)
    printed = capsys.readouterr()
    assert "by class" in printed.out
    assert "rare=odd (2)" in printed.err
    assert "| class weights | balanced: bad" in (folder / "README.md").read_text()


def test_named_weights_keep_their_ratios_and_have_a_mean_of_one(tiny_checkpoint, files, tmp_path):
    folder = tmp_path / "run"
    assert main(words_of(tiny_checkpoint, files, folder, "--class_weights", "rare=odd=30", "good=2")) == 0
    config = yaml.safe_load((folder / "config.yaml").read_text())
    assert (config["class_weights"], config["max_grad_norm"]) == (["rare=odd=30", "good=2"], 0)
    weights = json.loads((folder / "results.json").read_text())["class_weights"]
    ratios = np.array(list(weights.values())) / weights["bad"]
    assert ratios == pytest.approx([1, 2, 30])
    assert np.array(list(weights.values())) @ [150, 60, 2] == pytest.approx(212)


@pytest.mark.parametrize(
    ("given", "named"),
    [
        (["good=0"], "good=0"),
        (["good=-1"], "good=-1"),
        (["good=nan"], "good=nan"),
        (["good=inf"], "good=inf"),
        (["good"], "--class_weights good: give"),
        (["=2"], "=2"),
        (["balanced", "good=2"], "--class_weights balanced: give"),
        (["good=2", "good=3"], "'good' twice"),
        (["fine=2"], "no class 'fine'"),
        (["balanced", "--label_column", "score"], "no classes"),
    ],
)
def test_invalid_weights_are_refused(given, named, tiny_checkpoint, files, tmp_path, capsys):
    assert main(words_of(tiny_checkpoint, files, tmp_path / "run", "--class_weights", *given)) == 2
    assert named in capsys.readouterr().err


def test_balancing_a_class_without_rows_is_refused(tiny_checkpoint, files, tmp_path, capsys):
    path = tmp_path / "lacking.parquet"
    names = datasets.ClassLabel(names=[*LABELS, "never"])
    features = datasets.Features({"text": datasets.Value("string"), "label": names})
    rows = {"text": ["the cat", "a dog", "some bird"] * 4, "label": [0, 1, 2] * 4}
    datasets.Dataset.from_dict(rows, features=features).to_parquet(path)
    words = words_of(tiny_checkpoint, (path, path), tmp_path / "run", "--class_weights", "balanced")
    assert main(words) == 2
    assert "never" in capsys.readouterr().err


def test_only_the_worst_of_many_classes_are_printed():
    names = [str(number) for number in range(500)]
    labels = np.arange(5000) % 500
    classes = class_scores(labels, np.where(labels < 490, labels, 0), names)
    fields = {name: {} for name in RunResult.__dataclass_fields__} | {"best": None, "stopped_at": None, "start": None}
    lines = render_metrics(RunResult(**fields | {"classes": {"validation": classes}})).splitlines()
    assert len(lines) < 20
    assert any("490" in line for line in lines)
