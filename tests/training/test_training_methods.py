"""R-Drop and FreeLB against loops written from the papers."""

import dataclasses
import math
from types import SimpleNamespace

import pytest
import torch
import transformers
from conftest import tiny_batch, tiny_model
from test_trainer import ROWS, TinyRows, logged, train, without_dropout
from torch import nn
from transformers.modeling_outputs import ModelOutput

import alignattn
from alignattn.models import MODELS
from alignattn.models.build import build_model
from alignattn.training.arguments import AlignmentTrainingArguments
from alignattn.training.methods import METHODS
from alignattn.training.methods.freelb import FreeLB
from alignattn.training.methods.mc_dropout import can_drop
from alignattn.training.methods.r_drop import RDrop
from alignattn.training.step import step_losses
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
    args.torch_compile = False
    return method(args, model)


def freelb(model, steps, step_size, max_norm):
    """FreeLB; without a step size, with a third of the norm."""
    return method_of(FreeLB, model, freelb_steps=steps, freelb_step_size=step_size, freelb_max_norm=max_norm)


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


def freelb_by_hand(model, batch, steps, step_size, max_norm):
    """Zhu et al. 2020, algorithm 1, sequence by sequence; returns the losses of the K forwards."""
    embedded = model.get_input_embeddings()(batch["input_ids"]).detach()
    real = batch["input_ids"].ne(0)[..., None]
    delta = torch.empty_like(embedded).uniform_(-1, 1) * real
    for row, length in enumerate(real.sum(dim=(1, 2)).tolist()):
        delta[row] *= max_norm / math.sqrt(length * embedded.shape[-1])
    losses = []
    for _ in range(steps):
        delta = delta.detach().requires_grad_()
        rest = {name: value for name, value in batch.items() if name != "input_ids"}
        loss = model(inputs_embeds=model.get_input_embeddings()(batch["input_ids"]) + delta, **rest).loss
        losses.append(loss)
        (slope,) = torch.autograd.grad(loss, delta, retain_graph=True)
        moved = []
        for one, gradient in zip(delta.detach(), slope, strict=True):
            one = one + step_size * gradient / gradient.norm()
            moved.append(one * max_norm / one.norm() if one.norm() > max_norm else one)
        delta = torch.stack(moved)
    return losses


@pytest.mark.parametrize(
    ("family", "max_norm", "has_padding_id"),
    [("bert", 0.3, True), ("bert", 0.3, False), ("albert", 0.05, True), ("distilbert", 0.3, True)],
)
def test_freelb_is_the_papers_algorithm(family, max_norm, has_padding_id):
    model, batch = without_dropout(tiny_model(family)).train(), tiny_batch()
    if not has_padding_id:  # as in GPT-2: only the mask marks padding
        model.get_input_embeddings().padding_idx = None
    torch.manual_seed(5)
    losses = freelb_by_hand(model, batch, 3, 0.1, max_norm)
    torch.stack(losses).mean().backward()
    expected = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    model.zero_grad()

    seen = []

    def forward(inputs):
        seen.append(model(**inputs).loss)
        return seen[-1], None

    torch.manual_seed(5)
    step_size = None if max_norm == 0.3 else 0.1  # a third is the default
    task_loss, _, _ = step_losses([freelb(model, 3, step_size, max_norm)], forward, model, batch)
    assert [loss.item() for loss in seen] == pytest.approx([loss.item() for loss in losses], rel=1e-6)
    assert losses[-1].item() > losses[0].item()
    task_loss.backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, expected[name], rtol=1e-4, atol=1e-7)


def test_freelb_keeps_one_dropout_mask():
    model, batch, logits = tiny_model("bert").train(), tiny_batch(), []

    def forward(inputs):
        outputs = model(**inputs)
        logits.append(outputs.logits)
        return outputs.loss, outputs

    step_losses([freelb(model, 2, 1e-12, 1e-12)], forward, model, batch)
    torch.testing.assert_close(logits[0], logits[1])
    assert not torch.allclose(logits[0], model(**batch).logits)
    assert not model.get_input_embeddings()._forward_hooks


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


def test_freelb_logs_the_parts_of_its_loss(tmp_path):
    model = alignattn.patch(tiny_model("albert"), "aa-ct")
    trainer = train(model, tmp_path, freelb_steps=2, freelb_max_norm=0.3, bf16=True)
    parts = (logged(trainer, name) for name in ("loss", "task_loss", "align_loss"))
    for loss, task, aligned in zip(*parts, strict=True):
        assert loss == pytest.approx(task + 0.01 * aligned, rel=1e-5)


def test_freelb_with_a_vanishing_perturbation_trains_as_without(tmp_path):
    plain, perturbed = (
        train(without_dropout(tiny_model("bert")), tmp_path, **options)
        for options in ({}, {"freelb_steps": 1, "freelb_max_norm": 1e-9})
    )
    assert logged(perturbed, "loss") == pytest.approx(logged(plain, "loss"), rel=1e-4)


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"r_drop_weight": -0.1}, "r_drop_weight -0.1 must be at least 0"),
        ({"freelb_steps": 0, "freelb_max_norm": 0.3}, "freelb_steps 0 must be at least 1"),
        ({"freelb_steps": 2, "freelb_max_norm": 0.0}, "freelb_max_norm 0.0 must be above 0"),
        ({"freelb_steps": 2}, "freelb_steps needs --freelb_max_norm"),
        (
            {"r_drop_weight": 1.0, "freelb_steps": 2, "freelb_max_norm": 0.3},
            "r_drop_weight does not go with --freelb_steps",
        ),
        ({"weight_averaging": "mean"}, "weight_averaging.*ema, swa"),
        ({"weight_averaging": "ema", "ema_decay": 1.0}, "ema_decay 1.0 must be at least 0 and below 1"),
    ],
)
def test_options_out_of_range_or_in_conflict_are_refused(values, reason, tmp_path):
    with pytest.raises(AlignAttnError, match=reason):
        AlignmentTrainingArguments(output_dir=str(tmp_path), use_cpu=True, **values)


def test_freelb_refuses_a_compiled_model_and_one_without_word_embeddings(tmp_path):
    with pytest.raises(AlignAttnError, match="torch_compile"):
        train(tiny_model("bert"), tmp_path, freelb_steps=2, freelb_max_norm=0.3, torch_compile=True)
    model = tiny_model("bert")
    model.set_input_embeddings(torch.nn.Linear(1, 1))
    with pytest.raises(AlignAttnError, match="BertForSequenceClassification has no single table of them: leave it out"):
        train(model, tmp_path, freelb_steps=2, freelb_max_norm=0.3)


@pytest.mark.parametrize(
    "option",
    [{"neftune_noise_alpha": 5.0}, {"neftune_noise_alpha": 0.0}, {"freelb_steps": 2, "freelb_max_norm": 0.3}],
)
@pytest.mark.parametrize("name", MODELS)
def test_a_model_without_one_table_of_embeddings_is_refused_before_it_trains(name, option, tmp_path):
    args = AlignmentTrainingArguments(output_dir=str(tmp_path), use_cpu=True, report_to=[], **option)
    model_class = MODELS.load(name)
    small = {"hidden_dim": 8} if hasattr(model_class.config_class, "hidden_dim") else {}
    model = build_model(model_class, {"vocab_size": 4} | small, seed=0)
    if name not in ("gat", "gatv2", "memn2n"):
        assert isinstance(model.get_input_embeddings(), nn.Embedding)
        alignattn.AlignmentTrainer(model=model, args=args, train_dataset=TinyRows(ROWS))
        return
    said = f"{next(iter(option))} perturbs word embeddings, and {model_class.__name__} has no single table of them"
    with pytest.raises(AlignAttnError, match=f"^{said}: leave it out$"):
        alignattn.AlignmentTrainer(model=model, args=args, train_dataset=TinyRows(ROWS))


def test_methods_declare_options_that_trainers_have():
    declared = {field.name for field in dataclasses.fields(AlignmentTrainingArguments)}
    for method in METHODS:
        assert method.predicts or method.switch in declared


@pytest.mark.parametrize(("rate", "expected"), [(0.0, False), (0.1, True)])
def test_a_flag_named_like_a_dropout_is_not_a_rate(rate, expected):
    config = transformers.EsmConfig(token_dropout=True, hidden_dropout_prob=rate, attention_probs_dropout_prob=0.0)
    assert can_drop(SimpleNamespace(config=config)) is expected
