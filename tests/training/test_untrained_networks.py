"""An optimizer that lacks the alignment's own networks, or networks that are frozen: said at the first step."""

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
    """How often a loop of two steps says that the networks do not learn."""
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


@pytest.mark.parametrize("variant", ["aa-gan", "aa-ct", "aa-gan+qvi"])
class TestItIsSaid:
    def test_of_an_optimizer_made_by_name(self, variant):
        model = encoder(variant)
        own, others = own_and_others(model)
        before = [one.clone() for one in own]
        (message,) = warned(model, torch.optim.AdamW(others))
        assert f"{len(own)} of the {len(own)}" in message
        assert all(torch.equal(now, then) for now, then in zip(own, before, strict=True))

    def test_of_an_optimizer_made_before_the_patch(self, variant):
        model = tiny_model("bert")
        optimizer = torch.optim.AdamW(model.parameters())
        assert len(warned(alignattn.patch(model, variant).train(), optimizer)) == 1

    def test_of_networks_that_a_loop_froze(self, variant):
        model = encoder(variant)
        for name, own in model.named_parameters():
            own.requires_grad_("query" in name or "key" in name or "classifier" in name)
        assert len(warned(model, torch.optim.AdamW(named(model, lambda _: True)))) == 1

    def test_of_a_part_of_them(self, variant):
        model = encoder(variant)
        own, others = own_and_others(model)
        (message,) = warned(model, torch.optim.AdamW([*others, *own[1:]]))
        assert f"1 of the {len(own)}" in message

    def test_of_each_model_by_itself(self, variant):
        models = [encoder(variant), encoder(variant)]
        assert [len(warned(model, torch.optim.SGD(own_and_others(model)[1]))) for model in models] == [1, 1]

    def test_of_models_that_step_in_turn(self, variant):
        """The step of one model must not hide what is missing in that of another."""
        first, second = encoder(variant), encoder(variant)
        good, bad = torch.optim.SGD(first.parameters()), torch.optim.SGD(own_and_others(second)[1])
        for model in (first, second):
            (model(**tiny_batch()).loss + alignattn.alignment_loss(model)).backward()
        good.step()
        with pytest.warns(UserWarning, match=CULPRIT):
            bad.step()

    def test_in_the_trainer(self, variant, tmp_path):
        model = encoder(variant)
        args = alignattn.AlignmentTrainingArguments(
            str(tmp_path), use_cpu=True, max_steps=2, report_to="none", disable_tqdm=True, save_strategy="no"
        )
        optimizer = torch.optim.AdamW(own_and_others(model)[1])
        trainer = alignattn.AlignmentTrainer(model=model, args=args, train_dataset=rows(), optimizers=(optimizer, None))
        with pytest.warns(UserWarning, match=CULPRIT):
            trainer.train()

    def test_of_adapters_alone(self, variant):
        model = peft.get_peft_model(encoder(variant), peft.LoraConfig(target_modules=["query", "key"]))
        assert len(warned(model.train(), torch.optim.AdamW(named(model, lambda name: "lora" in name)))) == 1


class TestNothingIsSaid:
    @pytest.mark.parametrize("variant", ["aa-gan", "aa-ct", "aa-ot", "aa-moments", "aa-mmd", "aa-sliced"])
    def test_of_the_parameter_groups(self, variant):
        model = encoder(variant)
        assert not warned(model, torch.optim.AdamW(alignattn.parameter_groups(model, learning_rate=1e-3)))

    @pytest.mark.parametrize("variant", ["aa-ot", "aa-moments", "aa-mmd", "aa-sliced"])
    def test_of_an_alignment_without_networks(self, variant):
        model = tiny_model("bert")
        optimizer = torch.optim.AdamW(model.parameters())
        assert not warned(alignattn.patch(model, variant).train(), optimizer)

    @pytest.mark.parametrize("is_first", [True, False])
    def test_of_an_optimizer_of_their_own(self, is_first):
        model = encoder("aa-gan")
        pair = [torch.optim.SGD(group) for group in own_and_others(model)]
        assert not warned(model, *(pair if is_first else pair[::-1]))

    def test_of_an_optimizer_that_steps_more_rarely(self):
        model = encoder("aa-gan")
        own, others = own_and_others(model)
        rare = torch.optim.SGD(own)
        assert not warned(model, torch.optim.SGD(others))
        rare.step()

    def test_of_a_step_of_another_model(self):
        other = torch.nn.Linear(2, 2)
        optimizer = torch.optim.SGD(other.parameters())
        other(torch.ones(2)).sum().backward()
        assert not warned(encoder("aa-gan"), optimizer)

    def test_of_adapters(self):
        model = peft.get_peft_model(encoder("aa-gan"), peft.LoraConfig(target_modules=["query", "key"]))
        trained = [own for own in model.parameters() if own.requires_grad]
        assert not warned(model.train(), torch.optim.AdamW(trained))

    @pytest.mark.parametrize(
        "wrap",
        [DistributedDataParallel, sharded, lambda model: torch.compile(model, backend="eager")],
        ids=["DistributedDataParallel", "fully_shard", "compile"],
    )
    def test_of_a_wrapped_model(self, wrap, one_process):  # noqa: F811
        model = encoder("aa-gan")
        wrapped = wrap(model).train()
        optimizer = torch.optim.AdamW(alignattn.parameter_groups(wrapped, learning_rate=1e-3))
        assert not warned(model, optimizer, wrapped=wrapped)

    def test_of_a_copy_of_the_parameters(self):
        """As DeepSpeed's and other optimizers of master weights have them."""
        model = encoder("aa-gan")
        copies = [own.detach().clone().requires_grad_() for own in model.parameters()]
        assert not warned(model, torch.optim.SGD(copies))

    def test_in_the_trainer(self, tmp_path):
        model = encoder("aa-gan")
        args = alignattn.AlignmentTrainingArguments(
            str(tmp_path), use_cpu=True, max_steps=2, report_to="none", disable_tqdm=True, save_strategy="no"
        )
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            alignattn.AlignmentTrainer(model=model, args=args, train_dataset=rows()).train()
        assert not [one for one in caught if CULPRIT in str(one.message)]
