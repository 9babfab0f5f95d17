"""Loops without a Trainer: those of the documentation, and loops with a wrapped model."""

import warnings

import pytest
import torch
import torch.distributed as dist
from conftest import ROOT, tiny_batch, tiny_model
from documentation import blocks
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

import alignattn
from alignattn.patching import alignment_parameters, function_parameters, patch_of
from alignattn.utils.errors import AlignAttnError

LOOPS = [block for block in blocks("python", ROOT / "docs" / "python.md") if "loader" in block]


def encoder(variant="aa-ct", **overrides):
    model = tiny_model("bert", num_hidden_layers=2, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    return alignattn.patch(model, variant, **({"alignment_weight": 0.3} | overrides)).train()


def rows(count=8):
    batch = tiny_batch(batch=count)
    return [{name: values[index] for name, values in batch.items()} for index in range(count)]


class TestOfTheDocumentation:
    @pytest.mark.parametrize("with_accelerate", [False, True])
    def test_a_loop_minimises_both_losses(self, with_accelerate, monkeypatch):
        """Eight rows in batches of four: two steps of AdamW, or one if two batches are accumulated."""
        monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
        model = tiny_model("bert", hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
        names = {"model": model, "loader": DataLoader(rows(), batch_size=4)}
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            exec(LOOPS[0] if not with_accelerate else LOOPS[1], names)
        assert names["model"] is model

        hand = tiny_model("bert", hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
        hand = alignattn.patch(hand, "aa-ct").train()
        own = alignment_parameters(hand)
        others = [parameter for parameter in hand.parameters() if all(parameter is not mine for mine in own)]
        groups = [{"params": others, "lr": 2e-5}, {"params": own, "lr": 1e-3}]
        optimizer = torch.optim.AdamW(groups, weight_decay=0.0)
        for number, batch in enumerate(DataLoader(rows(), batch_size=4)):
            with alignattn.collect(hand) as seen:
                task_loss = hand(**batch).loss
            loss = task_loss + patch_of(hand).config.alignment_weight * seen.mean_loss()
            alignattn.alignment_loss(hand)
            (loss / 2 if with_accelerate else loss).backward()
            if not with_accelerate or number == 1:
                optimizer.step()
                optimizer.zero_grad()
        for name, parameter in hand.named_parameters():
            torch.testing.assert_close(model.get_parameter(name), parameter, rtol=1e-4, atol=2e-6, msg=name)


@pytest.fixture
def one_process(tmp_path):
    dist.init_process_group("gloo", store=dist.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def sharded(model):
    mesh = init_device_mesh("cpu", (1,))
    for layer in model.bert.encoder.layer:
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


WRAPPERS = {
    "DistributedDataParallel": DistributedDataParallel,
    "fully_shard": sharded,
    "compile of DistributedDataParallel": lambda model: torch.compile(DistributedDataParallel(model), backend="eager"),
}


@pytest.mark.parametrize("wrap", WRAPPERS.values(), ids=WRAPPERS)
def test_a_wrapped_model_takes_the_same_steps(wrap, one_process):
    def train(wrapped):
        wrapped.train()
        optimizer = torch.optim.SGD(
            alignattn.parameter_groups(wrapped, learning_rate=0.1, alignment_learning_rate=0.2), lr=0.0
        )
        losses = []
        for seed in range(2):
            loss = wrapped(**tiny_batch(seed=seed)).loss + alignattn.alignment_loss(wrapped)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        return losses

    plain, model = encoder(), encoder()
    expected = train(plain)
    assert train(wrap(model)) == pytest.approx(expected, rel=1e-5)
    for name, parameter in plain.named_parameters():
        found = model.get_parameter(name)
        found = found.full_tensor() if isinstance(found, DTensor) else found
        torch.testing.assert_close(found, parameter, rtol=1e-4, atol=1e-6, msg=name)


def half_precision_steps(variant, shard):
    model = tiny_model("bert", hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0).to(torch.bfloat16)
    alignattn.patch(model, variant, alignment_weight=0.3).train()
    shard(model)
    optimizer = torch.optim.SGD(
        alignattn.parameter_groups(model, learning_rate=0.1, alignment_learning_rate=0.2), lr=0.0
    )
    for seed in range(2):
        (model(**tiny_batch(seed=seed)).loss + alignattn.alignment_loss(model)).backward()
        optimizer.step()
        optimizer.zero_grad()
    found = {name: parameter.detach() for name, parameter in model.named_parameters()}
    return {name: value.full_tensor() if isinstance(value, DTensor) else value for name, value in found.items()}


class TestShardSlots:
    @pytest.mark.parametrize("variant", ["aa-ct", "aa-ot+qvi", "aa-gan+bilinear"])
    def test_a_model_in_half_precision_takes_the_same_steps(self, variant, one_process):
        def shard(model):
            sharded(alignattn.shard_slots(model, mesh=init_device_mesh("cpu", (1,))))
            assert all(isinstance(parameter, DTensor) for parameter in model.parameters())

        expected, found = half_precision_steps(variant, lambda _: None), half_precision_steps(variant, shard)
        assert {value.dtype for value in found.values()} == {torch.float32, torch.bfloat16}
        torch.testing.assert_close(found, expected)

    def test_sharded_slots_are_refused(self, one_process):
        model = sharded(encoder("qvi"))
        with pytest.raises(AlignAttnError, match="before fully_shard"):
            alignattn.shard_slots(model)

    def test_a_patch_without_parameters_is_left_as_it_is(self, one_process):
        model = encoder("aa-ot+sparsemax")
        assert alignattn.shard_slots(model, mesh=init_device_mesh("cpu", (1,))) is model
        assert not any(isinstance(parameter, DTensor) for parameter in model.parameters())


class TestParameterGroups:
    def test_each_parameter_is_in_one_group_with_its_rate(self):
        model = encoder("aa-ct+qvi")
        groups = alignattn.parameter_groups(
            model, learning_rate=1e-5, alignment_learning_rate=2e-3, slot_learning_rate=3e-4, weight_decay=0.1
        )
        rates = {id(parameter): group["lr"] for group in groups for parameter in group["params"]}
        assert sum(len(group["params"]) for group in groups) == len(rates) == len(list(model.parameters()))
        assert {rates[id(parameter)] for parameter in alignment_parameters(model)} == {2e-3}
        assert {rates[id(parameter)] for parameter in function_parameters(model)} == {3e-4}
        assert rates[id(model.classifier.weight)] == 1e-5
        decays = {id(parameter): group["weight_decay"] for group in groups for parameter in group["params"]}
        assert decays[id(model.classifier.weight)] == 0.1
        for name, parameter in model.named_parameters():
            if name.endswith("bias") or "LayerNorm" in name:
                assert decays[id(parameter)] == 0.0, name
        assert {decays[id(parameter)] for parameter in alignment_parameters(model)} == {0.0}

    @pytest.mark.parametrize("slot_rate", [None, 3e-4])
    def test_the_trainer_has_the_same_groups(self, slot_rate, tmp_path):
        model = encoder("aa-gan+qvi")
        args = alignattn.AlignmentTrainingArguments(
            str(tmp_path), learning_rate=1e-5, weight_decay=0.1, slot_learning_rate=slot_rate, use_cpu=True
        )
        optimizer = alignattn.AlignmentTrainer(model=model, args=args).create_optimizer()
        expected = alignattn.parameter_groups(model, learning_rate=1e-5, weight_decay=0.1, slot_learning_rate=slot_rate)

        def described(groups):
            return [(group["lr"], group["weight_decay"], [id(own) for own in group["params"]]) for group in groups]

        assert described(optimizer.param_groups) == described(expected)

    def test_frozen_parameters_are_left_out(self):
        model = encoder("aa-ct")
        for parameter in model.bert.embeddings.parameters():
            parameter.requires_grad_(False)
        groups = alignattn.parameter_groups(model, learning_rate=1e-5)
        assert all(parameter.requires_grad for group in groups for parameter in group["params"])
        plain = alignattn.parameter_groups(tiny_model("bert"), learning_rate=1e-5)
        assert len(plain) == 2
