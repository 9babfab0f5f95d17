"""The mixin in the trainers of TRL: each way of batching equals a padded batch of the same samples."""

import copy
import warnings
from dataclasses import dataclass

import datasets
import peft
import pytest
import tokenizers
import torch
import transformers
import trl
from decoders import decoder
from sgd_settings import SGD_SETTINGS
from torch.nn.functional import cross_entropy

import alignattn
from alignattn.patching import alignment_parameters, patch_of
from alignattn.utils.errors import AlignAttnError

WEIGHT = 0.3
LENGTHS = (3, 7, 4, 6, 3, 5)
PROMPT = 2
"""Number of tokens of each sample that a completion-only loss leaves out."""

IN_FLOAT32 = 1e-6
"""A tolerance, because TRL computes the task's loss in float32 even for a model in float64."""

SETTINGS = SGD_SETTINGS | {
    "per_device_train_batch_size": len(LENGTHS),
    "learning_rate": 0.5,
    "alignment_learning_rate": 0.5,
    "bf16": False,
}

PACKED = {"packing": True, "max_length": 10}
BATCHES = {
    "padded": {},
    "padding-free": {"padding_free": True, "max_length": None},
    "best-fit": PACKED,
    "split": PACKED | {"packing_strategy": "bfd_split"},
}
COMPLETIONS = [("padded", False, PROMPT), ("padding-free", True, PROMPT), ("split", True, PROMPT)]
"""Batches of a loss of the completions alone, and whether they accumulate."""

ACCUMULATED = {"per_device_train_batch_size": 1, "gradient_accumulation_steps": len(LENGTHS)}


@dataclass
class Arguments(alignattn.AlignmentArguments, trl.SFTConfig):
    pass


class Trainer(alignattn.AlignmentMixin, trl.SFTTrainer):
    pass


@dataclass
class PreferenceArguments(alignattn.AlignmentArguments, trl.DPOConfig):
    pass


class PreferenceTrainer(alignattn.AlignmentMixin, trl.DPOTrainer):
    pass


@dataclass
class PolicyArguments(alignattn.AlignmentArguments, trl.GRPOConfig):
    pass


class PolicyTrainer(alignattn.AlignmentMixin, trl.GRPOTrainer):
    pass


def tokenizer():
    vocabulary = {f"w{index}": index for index in range(60)}
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="w0"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=words, pad_token="w1", eos_token="w3", unk_token="w0")


def samples():
    draw = torch.Generator().manual_seed(4)
    return [torch.randint(4, 60, (length,), generator=draw).tolist() for length in LENGTHS]


def rows():
    """Return the samples with the completion masks that TRL makes from prompts and completions."""
    marks = [[0] * PROMPT + [1] * (length - PROMPT) for length in LENGTHS]
    return datasets.Dataset.from_dict({"input_ids": samples(), "completion_mask": marks})


def patched(attention="aa-ct", **options):
    return alignattn.patch(decoder("qwen2"), attention, alignment_weight=WEIGHT, **options).double()


def trainer_of(model, folder, peft_config=None, **changes):
    args = Arguments(str(folder), **SETTINGS | changes)
    return Trainer(model=model, args=args, train_dataset=rows(), processing_class=tokenizer(), peft_config=peft_config)


def by_hand(model, texts, first_label=0):
    """Return the losses of a padded batch; the model keeps their gradients."""
    ids = torch.ones(len(texts), max(map(len, texts)), dtype=torch.long)
    mask, labels = torch.zeros_like(ids), torch.full_like(ids, -100)
    for row, text in enumerate(texts):
        ids[row, : len(text)] = torch.tensor(text)
        mask[row, : len(text)] = 1
        labels[row, first_label : len(text)] = ids[row, first_label : len(text)]
    logits = model.train()(input_ids=ids, attention_mask=mask).logits[:, :-1]
    task_loss = cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten())
    aligned = alignattn.alignment_loss(model)
    (task_loss + aligned).backward()
    return {"loss": task_loss + aligned, "task_loss": task_loss, "align_loss": aligned / WEIGHT}


def assert_trained_as(expected, hand, trainer):
    (entry,) = [entry for entry in trainer.state.log_history if "loss" in entry]
    assert entry["align_loss"] == pytest.approx(expected["align_loss"].item(), rel=1e-9)
    for name, value in expected.items():
        assert entry[name] == pytest.approx(value.item(), rel=IN_FLOAT32), name
    rate = SETTINGS["learning_rate"]
    for name, parameter in hand.named_parameters():
        after = parameter if parameter.grad is None else parameter - rate * parameter.grad
        found = trainer.model.get_parameter(name)
        torch.testing.assert_close(found, after, rtol=IN_FLOAT32, atol=IN_FLOAT32, msg=name)


@pytest.mark.parametrize(
    ("batches", "accumulated", "first_label"),
    [*((batches, accumulated, 0) for batches in BATCHES for accumulated in (False, True)), *COMPLETIONS],
)
def test_each_batching_equals_the_padded_batch(batches, accumulated, first_label, tmp_path):
    changes = {**BATCHES[batches], **(ACCUMULATED if accumulated else {})}
    trainer = trainer_of(patched(), tmp_path, completion_only_loss=first_label > 0, **changes)
    trainer.train()
    hand = patched()
    assert_trained_as(by_hand(hand, samples(), first_label), hand, trainer)


@pytest.mark.parametrize("attention", ["aa-gan", "aa-ot", "aa-ct+entmax15"])
def test_packing_equals_the_padded_batch_with_other_attention(attention, tmp_path):
    trainer = trainer_of(patched(attention), tmp_path, **PACKED)
    trainer.train()
    hand = patched(attention)
    assert_trained_as(by_hand(hand, samples()), hand, trainer)


def test_chunks_of_joined_texts_are_separate_rows(tmp_path):
    """TRL marks no boundaries of texts in them, and the model attends across them."""
    trainer = trainer_of(patched(), tmp_path, packing=True, packing_strategy="wrapped", max_length=9)
    trainer.train()
    joined = [token for text in samples() for token in text]
    hand = patched()
    expected = by_hand(hand, [joined[start : start + 9] for start in range(0, len(joined), 9)])
    assert_trained_as(expected, hand, trainer)


@pytest.mark.parametrize("batches", BATCHES)
def test_the_model_receives_what_it_receives_without_an_alignment(batches, tmp_path):
    def arguments(trainer):
        seen = []
        trainer.model.model.register_forward_pre_hook(
            lambda _module, args, kwargs: seen.append(kwargs), with_kwargs=True
        )
        trainer.train()
        return seen[0]

    expected = arguments(
        trl.SFTTrainer(
            model=decoder("qwen2"),
            args=trl.SFTConfig(
                str(tmp_path),
                **{name: value for name, value in SETTINGS.items() if name != "alignment_learning_rate"},
                **BATCHES[batches],
            ),
            train_dataset=rows(),
            processing_class=tokenizer(),
        )
    )
    found = arguments(trainer_of(patched(), tmp_path, **BATCHES[batches]))
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


def adapter():
    return peft.LoraConfig(r=4, target_modules=["q_proj", "k_proj", "v_proj"], task_type="CAUSAL_LM")


def adapted_like(model):
    """Return a patched model with the weights of one that TRL adapted: a copy would call that one's forward."""
    twin = peft.get_peft_model(patched(), adapter())
    twin.load_state_dict(model.state_dict())
    return twin


def test_lora_trains_and_saves_its_adapter(tmp_path):
    trainer = trainer_of(patched(), tmp_path, peft_config=adapter(), **PACKED)
    hand = adapted_like(trainer.model)
    trainer.train()
    assert_trained_as(by_hand(hand, samples()), hand, trainer)
    assert {name for name, _ in trainer.model.named_parameters() if "lora" in name}
    trainer.save_model(str(tmp_path))
    assert (tmp_path / "adapter_model.safetensors").exists()


def test_it_resumes_bitwise(tmp_path):
    def train(resume=None):
        changes = PACKED | {"per_device_train_batch_size": 1, "save_strategy": "steps", "save_steps": 2}
        trainer = trainer_of(patched().float(), tmp_path, learning_rate=0.1, **changes)
        trainer.train(resume_from_checkpoint=resume)
        return trainer

    whole, resumed = train(), train(str(tmp_path / "checkpoint-2"))
    assert whole.state.global_step > 2
    assert alignment_parameters(whole.model)
    for name, tensor in whole.model.state_dict().items():
        assert torch.equal(resumed.model.state_dict()[name], tensor), name


@pytest.mark.parametrize("is_adapted", [False, True])
def test_a_reference_forward_leaves_no_records(is_adapted, tmp_path):
    texts = {
        "prompt": ["w5 w6", "w7 w8 w9"],
        "chosen": [" w10 w11", " w12"],
        "rejected": [" w20", " w21 w22 w23"],
    }
    trainer = PreferenceTrainer(
        model=patched(),
        ref_model=None if is_adapted else patched(),
        args=PreferenceArguments(str(tmp_path), **SETTINGS | {"per_device_train_batch_size": 2}),
        train_dataset=datasets.Dataset.from_dict(texts),
        processing_class=tokenizer(),
        peft_config=adapter() if is_adapted else None,
    )
    hand = (adapted_like(trainer.model) if is_adapted else patched()).train()
    (batch,) = trainer.get_train_dataloader()
    hand(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"])
    expected = alignattn.alignment_loss(hand).item() / WEIGHT
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*alignment")
        trainer.train()
    (entry,) = [entry for entry in trainer.state.log_history if "loss" in entry]
    assert entry["align_loss"] == pytest.approx(expected, rel=1e-9)
    assert entry["loss"] == pytest.approx(entry["task_loss"] + WEIGHT * expected)
    base = trainer.model.get_base_model() if is_adapted else trainer.model
    assert patch_of(base).collector.newest.previous is None


class KTOTrainer(alignattn.AlignmentMixin, trl.KTOTrainer):
    pass


class RLOOTrainer(alignattn.AlignmentMixin, trl.RLOOTrainer):
    pass


PREFERENCES = {
    "prompt": ["w5 w6", "w7 w8 w9"],
    "chosen": [" w10 w11", " w12"],
    "rejected": [" w20", " w21 w22 w23"],
    "completion": [" w10 w11", " w21 w22 w23"],
    "label": [True, False],
}
OF_TRAINER = {
    "dpo": (PreferenceTrainer, trl.DPOConfig, ("prompt", "chosen", "rejected"), {}),
    "kto": (KTOTrainer, trl.KTOConfig, ("prompt", "completion", "label"), {}),
    "grpo": (PolicyTrainer, trl.GRPOConfig, ("prompt",), {"max_completion_length": 3, "num_generations": 2}),
    "rloo": (RLOOTrainer, trl.RLOOConfig, ("prompt",), {"max_completion_length": 3, "num_generations": 2}),
}


@pytest.mark.parametrize("name", OF_TRAINER)
def test_a_reference_model_from_the_config_of_another_function_is_refused_with_the_way_out(name, tmp_path):
    trainer_class, config_class, columns, changes = OF_TRAINER[name]
    decoder("qwen2").float().save_pretrained(tmp_path / "base")
    settings = {key: value for key, value in SETTINGS.items() if key != "alignment_learning_rate"}

    def train(beta=0.1, **given):
        model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "base")
        alignattn.patch(model, "sparsemax")
        if "ref_model" in given:
            given["ref_model"] = copy.deepcopy(model)
        elif name in ("grpo", "rloo"):
            given["reward_funcs"] = lambda completions, **_: [float(len(completion)) for completion in completions]
        trainer = trainer_class(
            model=model,
            args=config_class(
                str(tmp_path), **settings | {"per_device_train_batch_size": 2, "max_steps": 1, "beta": beta} | changes
            ),
            train_dataset=datasets.Dataset.from_dict({column: PREFERENCES[column] for column in columns}),
            processing_class=tokenizer(),
            **given,
        )
        trainer.train()
        return next(entry for entry in trainer.state.log_history if "loss" in entry)

    with pytest.raises(AlignAttnError, match=r"built from the config of one.*ref_model= \(DPO, KTO\), .*beta=0"):
        train()
    if name in ("grpo", "rloo"):
        assert "kl" not in train(beta=0.0)
    else:
        # Before the first step the model is its own reference.
        assert train(ref_model=None)["rewards/chosen"] == 0


@pytest.mark.parametrize("is_adapted", [False, True])
def test_generation_while_training_leaves_no_records(is_adapted, tmp_path):
    # GRPO loads its reference model from the path of the trained one.
    decoder("qwen2").float().save_pretrained(tmp_path / "base")
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "base")
    lengths = {"max_completion_length": 5, "num_generations": 2, "per_device_train_batch_size": 4}
    trainer = PolicyTrainer(
        model=alignattn.patch(model, "aa-ct", alignment_weight=WEIGHT),
        reward_funcs=lambda completions, **_: [float(len(completion)) for completion in completions],
        args=PolicyArguments(str(tmp_path), **SETTINGS | lengths, beta=0.1),
        train_dataset=datasets.Dataset.from_dict({"prompt": ["w5 w6 w7", "w8 w9"]}),
        processing_class=tokenizer(),
        peft_config=adapter() if is_adapted else None,
    )
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*alignment")
        trainer.train()
    (entry,) = [entry for entry in trainer.state.log_history if "loss" in entry]
    assert entry["align_loss"] > 0
    assert entry["loss"] == pytest.approx(entry["task_loss"] + WEIGHT * entry["align_loss"], rel=IN_FLOAT32)
    base = trainer.model.get_base_model() if is_adapted else trainer.model
    assert patch_of(base).collector.newest.previous is None
