"""The first step warns if the alignment's own networks are frozen or in no optimizer."""

import warnings

import peft
import pytest
import torch
from conftest import tiny_batch, tiny_model
from test_own_loops import encoder, one_process, rows, sharded  # noqa: F401
from torch.nn.parallel import DistributedDataParallel

import alignattn
from alignattn.patching import alignment_parameters

CULPRIT = "alignattn.parameter_groups"


def named(model, wanted):
    return [own for name, own in model.named_parameters() if wanted(name)]


def own_and_others(model):
    own = alignment_parameters(model)
    return own, [one for one in model.parameters() if all(one is not mine for mine in own)]


def warned(model, *optimizers, steps=2, wrapped=None):
    """Return the warnings of a loop of a few steps that the networks do not learn."""
    wrapped = model if wrapped is None else wrapped
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for seed in range(steps):
            loss = wrapped(**tiny_batch(seed=seed)).loss + alignattn.alignment_loss(wrapped)
            loss.backward()
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
    return [str(one.message) for one in caught if CULPRIT in str(one.message)]


def frozen(variant):
    model = encoder(variant)
    for name, own in model.named_parameters():
        own.requires_grad_("query" in name or "key" in name or "classifier" in name)
    return model, model.parameters()


def built_before_the_patch(variant):
    model = tiny_model("bert")
    parameters = list(model.parameters())
    return alignattn.patch(model, variant).train(), parameters


def adapters_alone(variant):
    model = peft.get_peft_model(encoder(variant), peft.LoraConfig(target_modules=["query", "key"]))
    return model.train(), named(model, lambda name: "lora" in name)


@pytest.mark.parametrize("variant", ["aa-ct", "aa-gan+qvi"])
class TestItIsSaid:
    @pytest.mark.parametrize("missing", ["all", "one"])
    def test_an_optimizer_without_some_of_the_networks_warns(self, missing, variant):
        model = encoder(variant)
        own, others = own_and_others(model)
        before = [one.clone() for one in own]
        (message,) = warned(model, torch.optim.AdamW(others if missing == "all" else [*others, *own[1:]]))
        untrained = len(own) if missing == "all" else 1
        assert f"{untrained} of the {len(own)}" in message
        assert all(map(torch.equal, own[:untrained], before[:untrained]))

    @pytest.mark.parametrize("make", [built_before_the_patch, frozen, adapters_alone])
    def test_another_optimizer_that_cannot_train_them_warns(self, make, variant):
        model, parameters = make(variant)
        assert len(warned(model, torch.optim.AdamW(parameters))) == 1

    def test_each_model_warns_once(self, variant):
        models = [encoder(variant), encoder(variant)]
        assert [len(warned(model, torch.optim.SGD(own_and_others(model)[1]))) for model in models] == [1, 1]

    def test_a_step_of_another_model_does_not_hide_the_warning(self, variant):
        first, second = encoder(variant), encoder(variant)
        good, bad = torch.optim.SGD(first.parameters()), torch.optim.SGD(own_and_others(second)[1])
        for model in (first, second):
            (model(**tiny_batch()).loss + alignattn.alignment_loss(model)).backward()
        good.step()
        with pytest.warns(UserWarning, match=CULPRIT):
            bad.step()


@pytest.mark.parametrize("trains", [False, True])
def test_the_trainer_warns_of_an_optimizer_that_lacks_them(trains, tmp_path):
    model = encoder("aa-gan")
    args = alignattn.AlignmentTrainingArguments(
        str(tmp_path), use_cpu=True, max_steps=2, report_to="none", disable_tqdm=True, save_strategy="no"
    )
    optimizers = (None if trains else torch.optim.AdamW(own_and_others(model)[1]), None)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        alignattn.AlignmentTrainer(model=model, args=args, train_dataset=rows(), optimizers=optimizers).train()
    assert any(CULPRIT in str(one.message) for one in caught) != trains


class TestNothingIsSaid:
    @pytest.mark.parametrize("variant", ["aa-gan", "aa-ct", "aa-ot", "aa-moments", "aa-means"])
    def test_parameter_groups_do_not_warn(self, variant):
        model = encoder(variant)
        assert not warned(model, torch.optim.AdamW(alignattn.parameter_groups(model, learning_rate=1e-3)))

    @pytest.mark.parametrize("variant", ["aa-ot", "aa-moments", "aa-means"])
    def test_an_alignment_without_networks_does_not_warn(self, variant):
        model, parameters = built_before_the_patch(variant)
        assert not warned(model, torch.optim.AdamW(parameters))

    @pytest.mark.parametrize("is_first", [True, False])
    def test_a_separate_optimizer_of_the_networks_does_not_warn(self, is_first):
        model = encoder("aa-gan")
        pair = [torch.optim.SGD(group) for group in own_and_others(model)]
        assert not warned(model, *(pair if is_first else pair[::-1]))

    def test_an_optimizer_that_steps_less_often_does_not_warn(self):
        model = encoder("aa-gan")
        own, others = own_and_others(model)
        rare = torch.optim.SGD(own)
        assert not warned(model, torch.optim.SGD(others))
        rare.step()

    def test_a_step_of_another_model_does_not_warn(self):
        other = torch.nn.Linear(2, 2)
        optimizer = torch.optim.SGD(other.parameters())
        other(torch.ones(2)).sum().backward()
        assert not warned(encoder("aa-gan"), optimizer)

    def test_an_optimizer_of_adapters_and_networks_does_not_warn(self):
        model, _ = adapters_alone("aa-gan")
        assert not warned(model, torch.optim.AdamW([own for own in model.parameters() if own.requires_grad]))

    @pytest.mark.parametrize(
        "wrap",
        [sharded, lambda model: torch.compile(DistributedDataParallel(model), backend="eager")],
        ids=["fully_shard", "compile of DistributedDataParallel"],
    )
    def test_a_wrapped_model_does_not_warn(self, wrap, one_process):  # noqa: F811
        model = encoder("aa-gan")
        wrapped = wrap(model).train()
        optimizer = torch.optim.AdamW(alignattn.parameter_groups(wrapped, learning_rate=1e-3))
        assert not warned(model, optimizer, wrapped=wrapped)

    def test_an_optimizer_of_copies_does_not_warn(self):
        """DeepSpeed and other optimizers of master weights have such copies."""
        model = encoder("aa-gan")
        copies = [own.detach().clone().requires_grad_() for own in model.parameters()]
        assert not warned(model, torch.optim.SGD(copies))
