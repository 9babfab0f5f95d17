"""Whatever computes the task's loss, the alignment is added to it once."""

import pytest
import torch
from rows_of_kinds import KindRows, kind_model
from test_trainer import arguments, logged
from torch import nn
from train_distributed import train_kind

import alignattn
from alignattn.patching import patch_of
from alignattn.training.trainer import AlignmentTrainer


class OfItsOwn(AlignmentTrainer):
    """Ignores `num_items_in_batch`."""

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        labels = inputs.pop("labels")
        outputs = model(**inputs)
        loss = nn.functional.cross_entropy(outputs.logits.flatten(0, -2), labels.flatten())
        return (loss, outputs) if return_outputs else loss


class OfSuper(AlignmentTrainer):
    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        loss, outputs = super().compute_loss(model, inputs, True, num_items_in_batch)
        return (loss, outputs) if return_outputs else loss


class OfItself(AlignmentTrainer):
    """Calls `self.compute_loss` again."""

    is_inner = False

    def compute_loss(self, model, inputs, **kwargs):
        if self.is_inner:
            return super().compute_loss(model, inputs, **kwargs)
        self.is_inner = True
        try:
            return self.compute_loss(model, inputs, **kwargs)
        finally:
            self.is_inner = False


class OfTheWholeStep(AlignmentTrainer):
    """Divides by the number of labels of the step, and declares it (`loss_is_scaled_for_ga`)."""

    loss_is_scaled_for_ga = True

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        labels = inputs.pop("labels")
        logits = model(**inputs).logits.flatten(0, -2)
        return nn.functional.cross_entropy(logits, labels.flatten(), reduction="sum") / num_items_in_batch


def sum_over_labels(outputs, labels, num_items_in_batch=None):
    loss = nn.functional.cross_entropy(outputs.logits.flatten(0, -2), labels.flatten(), reduction="sum")
    return loss / num_items_in_batch


def mean_over_labels(outputs, labels, num_items_in_batch=None):
    return nn.functional.cross_entropy(outputs.logits.flatten(0, -2), labels.flatten())


def by_function(function):
    def trainer(**kwargs):
        return AlignmentTrainer(compute_loss_func=function, **kwargs)

    return trainer


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    return {kind: train_kind(kind, "aa-ct", tmp_path_factory.mktemp("expected"), 8, 1) for kind in ("texts", "tags")}


@pytest.mark.parametrize("kind", ["texts", "tags"])
@pytest.mark.parametrize(
    "trainer_class",
    [OfItsOwn, OfSuper, OfItself, OfTheWholeStep, by_function(sum_over_labels), by_function(mean_over_labels)],
    ids=["its own", "super", "itself", "whole step", "function of sum", "function of mean"],
)
def test_the_alignment_is_added_once_to_every_task_loss(kind, trainer_class, expected, tmp_path):
    trainer = train_kind(kind, "aa-ct", tmp_path, 2, 4, trainer_class)
    for name in ("loss", "task_loss", "align_loss", "train_loss"):
        assert logged(trainer, name) == pytest.approx(logged(expected[kind], name)), name
    for name, tensor in expected[kind].model.state_dict().items():
        torch.testing.assert_close(trainer.model.state_dict()[name], tensor, rtol=1e-7, atol=1e-8, msg=name)


@pytest.mark.parametrize("trainer_class", [OfItsOwn, OfSuper, by_function(mean_over_labels)])
def test_no_records_are_kept_after_a_step(trainer_class, tmp_path):
    trainer = train_kind("texts", "aa-ct", tmp_path, 2, 4, trainer_class)
    assert patch_of(trainer.model).collector.newest.previous is None


def test_forwards_of_one_loss_are_averaged_by_samples(tmp_path):
    """As in a loss of each text and of a noisy copy."""

    class Twice(AlignmentTrainer):
        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            twin = {name: values[:3] for name, values in inputs.items()}
            return model(**inputs).loss + model(**twin).loss

    rows = KindRows("texts", 8)
    args = arguments(tmp_path, max_steps=1, per_device_train_batch_size=8, optim="sgd", max_grad_norm=0.0)
    args.learning_rate = args.alignment_learning_rate = 1.0
    model, hand = kind_model("texts"), kind_model("texts").train()
    in_order = type("InOrder", (Twice,), {"_get_train_sampler": lambda *_: torch.utils.data.SequentialSampler(rows)})
    in_order(model=model, args=args, train_dataset=rows).train()
    distances, losses = [], []
    for count in (8, 3):
        losses.append(hand(**{name: values[:count] for name, values in rows.batch.items()}).loss)
        distances.append(alignattn.alignment_loss(hand))
    (losses[0] + losses[1] + (8 * distances[0] + 3 * distances[1]) / 11).backward()
    for name, parameter in hand.named_parameters():
        torch.testing.assert_close(model.get_parameter(name), parameter - parameter.grad, msg=name)


def test_batches_whose_rows_cannot_be_counted_weigh_the_same(tmp_path):
    """Such as batches that are tuples."""

    class Wrapped(AlignmentTrainer):
        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            return model(**inputs[0]).loss

    class Collated:
        def __call__(self, rows):
            return (torch.utils.data.default_collate(rows),)

    def trainer(**kwargs):
        return Wrapped(data_collator=Collated(), **kwargs)

    counted = train_kind("texts", "aa-ct", tmp_path, 2, 2)
    uncounted = train_kind("texts", "aa-ct", tmp_path, 2, 2, trainer)
    assert logged(uncounted, "loss") == pytest.approx(logged(counted, "loss"))
