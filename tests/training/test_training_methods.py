"""R-Drop against its equation written out, and the options of all methods."""

import dataclasses
import math
from types import SimpleNamespace

import pytest
import torch
import transformers
from conftest import tiny_model
from test_trainer import ROWS, TinyRows, logged, train
from torch import nn
from transformers.modeling_outputs import ModelOutput

import alignattn
from alignattn.models import MODELS
from alignattn.models.build import build_model
from alignattn.training.arguments import AlignmentTrainingArguments
from alignattn.training.methods import METHODS
from alignattn.training.methods.mc_dropout import can_drop, mc_dropout
from alignattn.training.methods.r_drop import RDrop
from alignattn.training.trainer import step_losses
from alignattn.utils.errors import AlignAttnError


def divergence(first, second):
    """Liang et al. 2021, eq. 2: the mean of both Kullback-Leibler divergences of two distributions."""
    there = sum(p * math.log(p / q) for p, q in zip(first, second, strict=True))
    back = sum(q * math.log(q / p) for p, q in zip(first, second, strict=True))
    return (there + back) / 2


def softmax(logits):
    total = sum(math.exp(logit) for logit in logits)
    return [math.exp(logit) / total for logit in logits]


def sigmoid(logit):
    return 1 / (1 + math.exp(-logit))


def mean(values):
    values = list(values)
    return sum(values) / len(values)


def of_classes(first, second, labels):
    return mean(divergence(softmax(one), softmax(other)) for one, other in zip(first, second, strict=True))


def of_tags(first, second, labels):
    pairs = zip(first, second, labels, strict=True)
    return mean(
        divergence(softmax(one), softmax(other))
        for row in pairs
        for one, other, label in zip(*row, strict=True)
        if label != -100
    )


def of_sequences(first, second, labels):
    """A sum over the words, because the task's loss is a mean over rows."""
    return of_tags(first, second, labels) * sum(label != -100 for row in labels for label in row) / len(labels)


def of_labels(first, second, labels):
    pairs = [pair for row in zip(first, second, strict=True) for pair in zip(*row, strict=True)]
    return mean(
        divergence([sigmoid(one), 1 - sigmoid(one)], [sigmoid(other), 1 - sigmoid(other)]) for one, other in pairs
    )


def of_scores(first, second, labels):
    return mean((one[0] - other[0]) ** 2 for one, other in zip(first, second, strict=True))


KINDS = {
    "classes": ((4, 3), torch.tensor([0, 2, 1, 1]), of_classes),
    "tags": ((2, 3, 4), torch.tensor([[0, 3, -100], [2, -100, -100]]), of_tags),
    "sequences": ((2, 3, 4), torch.tensor([[0, 3, -100], [2, 1, 1]]), of_sequences),
    "labels": ((4, 3), torch.tensor([[0.0, 1, 1]] * 4), of_labels),
    "scores": ((4, 1), torch.tensor([0.5, 1.0, 2.0, 3.0]), of_scores),
    "spans": ((4, 6), None, of_classes),
}


def method_of(method, model=None, **values):
    args = SimpleNamespace(**{field.name: field.default for field in dataclasses.fields(method.options)} | values)
    return method(args, model)


@pytest.mark.parametrize("kind", KINDS)
def test_r_drop_is_the_papers_loss(kind):
    shape, labels, expected = KINDS[kind]
    logits, task_losses = torch.randn(2, *shape), torch.tensor([0.75, 0.25])
    forwards = iter(zip(task_losses, logits, strict=True))

    def forward(inputs):
        loss, numbers = next(forwards)
        inputs.clear()  # as a loss may do that pops the labels
        names = ("start_logits", "end_logits") if labels is None else ("logits",)
        return loss, ModelOutput(dict.fromkeys(names, numbers))

    model = SimpleNamespace(loss_is_of_rows=kind == "sequences")
    batch = {} if labels is None else {"labels": labels}
    task_loss, _, [(method, extra)] = step_losses([method_of(RDrop, r_drop_weight=0.6)], forward, model, batch)
    divergence = expected(*logits.tolist(), None if labels is None else labels.tolist())
    whole = (0.75 + 0.25 + 0.6 * divergence) / 2
    assert float(task_loss + method.extra_weight * extra) == pytest.approx(whole, rel=1e-5)


@pytest.mark.parametrize("attention", ["soft", "aa-ct"])
def test_r_drop_trains_and_logs_its_parts(attention, tmp_path):
    model = alignattn.patch(tiny_model("bert"), attention)
    trainer = train(model, tmp_path, r_drop_weight=0.8, gradient_accumulation_steps=2)
    parts = (logged(trainer, name) for name in ("loss", "task_loss", "r_drop_loss"))
    aligned = logged(trainer, "align_loss") or [0.0] * trainer.state.global_step
    for loss, task, divergence, alignment in zip(*parts, aligned, strict=True):
        assert divergence > 0
        assert loss == pytest.approx(task + 0.8 * divergence + 0.01 * alignment, rel=1e-5)


def test_r_drop_refuses_a_model_without_dropout_and_takes_a_batch_without_labels():
    outputs = [ModelOutput(logits=torch.randn(2, 3, 4)) for _ in range(2)]
    none = {"labels": torch.full((2, 3), -100)}
    forwards = iter([*outputs, outputs[0], outputs[0]])

    def forward(inputs):
        return torch.zeros(()), next(forwards)

    def extra_loss():
        return step_losses([method_of(RDrop, r_drop_weight=1.0)], forward, SimpleNamespace(), none)[2][0][1]

    assert float(extra_loss()) == 0
    with pytest.raises(AlignAttnError, match="no dropout"):
        extra_loss()


def test_the_alignment_of_a_step_is_the_mean_over_both_forwards(tmp_path):
    model = alignattn.patch(tiny_model("bert"), "aa-ct")
    seen = []

    def keep(module, args, kwargs):
        seen.append((torch.get_rng_state(), {name: tensor.clone() for name, tensor in kwargs.items()}))

    hook = model.register_forward_pre_hook(keep, with_kwargs=True)
    still = {"learning_rate": 0.0, "alignment_learning_rate": 1e-12, "max_steps": 1, "logging_steps": 1}
    trainer = train(model, tmp_path, r_drop_weight=0.8, **still)
    hook.remove()
    assert len(seen) == 2
    distances = []
    for state, batch in seen:
        torch.set_rng_state(state)
        model.train()(**batch)
        distances.append(alignattn.alignment_loss(model).item())
    assert distances[0] != pytest.approx(distances[1], rel=1e-4)
    assert [0.01 * loss for loss in logged(trainer, "align_loss")] == [pytest.approx(sum(distances) / 2, rel=1e-5)]


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"r_drop_weight": -0.1}, "r_drop_weight -0.1 must be at least 0"),
        ({"weight_averaging": "mean"}, "weight_averaging.*ema, swa"),
        ({"weight_averaging": "ema", "ema_decay": 1.0}, "ema_decay 1.0 must be at least 0 and below 1"),
    ],
)
def test_options_out_of_range_or_in_conflict_are_refused(values, reason, tmp_path):
    with pytest.raises(AlignAttnError, match=reason):
        AlignmentTrainingArguments(output_dir=str(tmp_path), use_cpu=True, **values)


@pytest.mark.parametrize("alpha", [5.0, 0.0])
@pytest.mark.parametrize("name", ["gat", "memn2n", "lstm"])
def test_a_model_without_one_table_of_embeddings_is_refused_before_it_trains(name, alpha, tmp_path):
    args = AlignmentTrainingArguments(output_dir=str(tmp_path), use_cpu=True, report_to=[], neftune_noise_alpha=alpha)
    model_class = MODELS.load(name)
    small = {"hidden_dim": 8} if hasattr(model_class.config_class, "hidden_dim") else {}
    model = build_model(model_class, {"vocab_size": 4} | small, seed=0)
    if name == "lstm":
        assert isinstance(model.get_input_embeddings(), nn.Embedding)
        alignattn.AlignmentTrainer(model=model, args=args, train_dataset=TinyRows(ROWS))
        return
    said = f"neftune_noise_alpha perturbs word embeddings, and {model_class.__name__} has no single table of them"
    with pytest.raises(AlignAttnError, match=f"^{said}: leave it out$"):
        alignattn.AlignmentTrainer(model=model, args=args, train_dataset=TinyRows(ROWS))


def test_methods_declare_options_that_trainers_have():
    declared = {field.name for field in dataclasses.fields(AlignmentTrainingArguments)}
    for method in METHODS:
        assert method.predicts or method.switch in declared


def test_batch_normalisation_stays_as_it_is_under_mc_dropout():
    """In training it would normalise a row by its batch, and change its running statistics."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Dropout(0.5)).eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    inputs = torch.randn(6, 4)
    expected = model(inputs).detach()
    with torch.no_grad(), mc_dropout(model, 0, torch.device("cpu")):
        passes = [model(inputs) for _ in range(2)]
        model(inputs[:1])
    assert not torch.equal(*passes)
    for each in passes:
        kept = each != 0
        torch.testing.assert_close(each[kept], 2 * expected[kept])
    torch.testing.assert_close(dict(model.state_dict()), before, rtol=0, atol=0)
    assert not any(part.training for part in model.modules())


@pytest.mark.parametrize(("rate", "expected"), [(0.0, False), (0.1, True)])
def test_a_flag_named_like_a_dropout_is_not_a_rate(rate, expected):
    config = transformers.EsmConfig(token_dropout=True, hidden_dropout_prob=rate, attention_probs_dropout_prob=0.0)
    assert can_drop(SimpleNamespace(config=config)) is expected
