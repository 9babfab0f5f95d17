"""The mixin in the trainers of sentence-transformers."""

from dataclasses import dataclass

import datasets
import pytest
import sentence_transformers as st
import torch
from conftest import WORDS, without_dropout
from documentation import python_block
from sentence_transformers import cross_encoder
from sentence_transformers.sentence_transformer import losses
from sgd_settings import SGD_SETTINGS
from torch import nn

import alignattn
from alignattn.patching import alignment_parameters, patch_of
from alignattn.utils.errors import AlignAttnError

WEIGHT = 0.3
SCALE = 20.0
"""Factor of the cosines, the default of MultipleNegativesRankingLoss."""

ANCHORS = ["cat", "dog runs", "old bird sees", "man"]
POSITIVES = ["red small woman", "every", "likes chases", "not some and sleeps"]
"""No word is in two texts: the gradient of its embedding is that of its text."""


@dataclass
class Arguments(alignattn.AlignmentArguments, st.SentenceTransformerTrainingArguments):
    pass


@dataclass
class CrossArguments(alignattn.AlignmentArguments, cross_encoder.CrossEncoderTrainingArguments):
    pass


class Trainer(alignattn.AlignmentMixin, st.SentenceTransformerTrainer):
    pass


class CrossTrainer(alignattn.AlignmentMixin, cross_encoder.CrossEncoderTrainer):
    pass


SETTINGS = SGD_SETTINGS | {
    "per_device_train_batch_size": len(ANCHORS),
    "learning_rate": 1.0,
    "alignment_learning_rate": 1.0,
}


def pairs(repeats=1):
    return datasets.Dataset.from_dict({"anchor": ANCHORS * repeats, "positive": POSITIVES * repeats})


def in_double_without_dropout(model):
    without_dropout(model)
    return model.double()


def embedder(folder, scope="projections", attention="aa-ct"):
    torch.manual_seed(0)
    model = in_double_without_dropout(st.SentenceTransformer(str(folder), device="cpu"))
    alignattn.patch(model[0].auto_model, attention, alignment_weight=WEIGHT, gradient_scope=scope)
    model.double()
    return model


@pytest.mark.parametrize("scope", ["projections", "all"])
def test_each_text_of_a_ranking_has_the_gradient_of_both_losses(scope, tiny_checkpoint, tmp_path):
    assert len({word for text in ANCHORS + POSITIVES for word in text.split()}) == 17
    model, hand = embedder(tiny_checkpoint, scope), embedder(tiny_checkpoint, scope)
    trainer = Trainer(
        model=model,
        args=Arguments(str(tmp_path), **SETTINGS),
        train_dataset=pairs(),
        loss=losses.MultipleNegativesRankingLoss(model),
    )
    trainer.train()

    hand.train()
    encoder, embeddings, distances = hand[0].auto_model, [], []
    for texts in (ANCHORS, POSITIVES):
        batch = hand.tokenizer(texts, padding=True, return_tensors="pt")
        states = encoder(**batch).last_hidden_state
        distances.append(alignattn.alignment_loss(hand) / WEIGHT)
        real = batch["attention_mask"][..., None]
        embeddings.append(nn.functional.normalize((states * real).sum(1) / real.sum(1)))
    task_loss = nn.functional.cross_entropy(SCALE * embeddings[0] @ embeddings[1].T, torch.arange(len(ANCHORS)))
    aligned = (distances[0] + distances[1]) / 2
    (task_loss + WEIGHT * aligned).backward()

    (entry,) = [entry for entry in trainer.state.log_history if "loss" in entry]
    found = [entry[name] for name in ("loss", "task_loss", "align_loss")]
    assert found == pytest.approx([part.item() for part in (task_loss + WEIGHT * aligned, task_loss, aligned)])
    for name, parameter in hand.named_parameters():
        expected = parameter if parameter.grad is None else parameter - parameter.grad
        torch.testing.assert_close(model.get_parameter(name), expected, rtol=1e-9, atol=1e-9, msg=name)
    of_words = encoder.get_input_embeddings().weight.grad[hand.tokenizer.convert_tokens_to_ids(WORDS)]
    assert (of_words.abs().sum(-1) > 0).sum() == 17
    assert patch_of(model[0].auto_model).collector.newest.previous is None


def test_a_cross_encoder_minimises_both_losses(tiny_checkpoint, tmp_path):
    def encoder():
        torch.manual_seed(0)
        model = in_double_without_dropout(cross_encoder.CrossEncoder(str(tiny_checkpoint), num_labels=1, device="cpu"))
        alignattn.patch(model[0].auto_model, "aa-gan", alignment_weight=WEIGHT)
        return model.double()

    labels = [1.0, 0.0, 0.0, 1.0]
    model, hand = encoder(), encoder()
    rows = pairs().add_column("label", labels)
    CrossTrainer(model=model, args=CrossArguments(str(tmp_path), **SETTINGS), train_dataset=rows).train()

    batch = hand.tokenizer(ANCHORS, POSITIVES, padding=True, return_tensors="pt")
    logits = hand.train()[0].auto_model(**batch).logits[:, 0]
    task_loss = nn.functional.binary_cross_entropy_with_logits(logits, torch.tensor(labels).double())
    (task_loss + alignattn.alignment_loss(hand)).backward()
    for name, parameter in hand.named_parameters():
        torch.testing.assert_close(
            model.get_parameter(name), parameter - parameter.grad, rtol=1e-6, atol=1e-8, msg=name
        )


def test_a_loss_that_caches_embeddings_is_refused(tiny_checkpoint, tmp_path):
    model = embedder(tiny_checkpoint)
    trainer = Trainer(
        model=model,
        args=Arguments(str(tmp_path), **SETTINGS),
        train_dataset=pairs(),
        loss=losses.CachedMultipleNegativesRankingLoss(model, mini_batch_size=2),
    )
    with pytest.raises(AlignAttnError, match="cache embeddings"):
        trainer.train()


def test_it_resumes_and_restores_the_best_model_with_the_alignments_networks(tiny_checkpoint, tmp_path):
    settings = SETTINGS | {
        "per_device_train_batch_size": 2,
        "learning_rate": 0.1,
        "save_strategy": "steps",
        "save_steps": 2,
        "eval_strategy": "steps",
        "eval_steps": 2,
    }

    def train(resume=None, **changes):
        model = embedder(tiny_checkpoint)
        trainer = Trainer(
            model=model,
            args=Arguments(str(tmp_path), **(settings | changes)),
            train_dataset=pairs(2),
            eval_dataset=pairs(),
            loss=losses.MultipleNegativesRankingLoss(model),
        )
        trainer.train(resume_from_checkpoint=resume)
        return trainer

    whole = train()
    resumed = train(resume=str(tmp_path / "checkpoint-2"))
    assert alignment_parameters(whole.model)
    for name, tensor in whole.model.state_dict().items():
        torch.testing.assert_close(resumed.model.state_dict()[name], tensor, msg=name)
    best = train(load_best_model_at_end=True, metric_for_best_model="eval_loss", greater_is_better=True)
    assert best.state.best_model_checkpoint.endswith("checkpoint-2")
    own = zip(alignment_parameters(best.model), alignment_parameters(whole.model), strict=True)
    assert any(not torch.equal(*pair) for pair in own)
    at_end = {name: tensor.clone() for name, tensor in best.model.state_dict().items()}
    best._load_from_checkpoint(best.state.best_model_checkpoint)
    for name, tensor in best.model.state_dict().items():
        assert torch.equal(at_end[name], tensor), name


def test_a_best_model_that_cannot_be_loaded_is_refused_at_the_start(tiny_checkpoint, tmp_path):
    model = embedder(tiny_checkpoint, attention="aa-ct+entmax15")
    settings = SETTINGS | {"save_strategy": "epoch", "eval_strategy": "epoch", "load_best_model_at_end": True}
    with pytest.raises(AlignAttnError, match="load_best_model_at_end"):
        Trainer(model=model, args=Arguments(str(tmp_path), **settings), train_dataset=pairs(), eval_dataset=pairs())


def test_the_classes_of_the_documentation_train(tiny_checkpoint, tmp_path):
    model = st.SentenceTransformer(str(tiny_checkpoint), device="cpu")
    names = {"sentence_transformer": model}
    exec(python_block("SentenceTransformerTrainer"), names)
    args = names["Arguments"](str(tmp_path), **SETTINGS)
    trainer = names["Trainer"](
        model=model, args=args, train_dataset=pairs(), loss=losses.MultipleNegativesRankingLoss(model)
    )
    trainer.train()
    (entry,) = [entry for entry in trainer.state.log_history if "loss" in entry]
    assert entry["loss"] == pytest.approx(entry["task_loss"] + 0.01 * entry["align_loss"])
