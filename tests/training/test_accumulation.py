"""A step's gradient does not depend on its split into batches and processes."""

import functools
import json

import pytest
import torch
import transformers
from conftest import ROOT
from processes import run_two_processes
from rows_of_kinds import WITHOUT_LABELS, KindRows
from sgd_settings import SGD_SETTINGS, stacked
from test_trainer import logged
from train_distributed import (
    ADAM,
    CASES,
    FSDP2_VARIANTS,
    ROWS,
    STREAMS,
    UNEVEN,
    OfTheWholeStep,
    Stream,
    train_kind,
    train_nodes,
    train_sentences,
    train_weighted,
)

from alignattn import AlignmentTrainer

LOGGED = ("loss", "task_loss", "align_loss", "alignment_weight", "train_loss")
TOLERANCE = {"rtol": 1e-5, "atol": 1e-6}
"""ModernBERT's loss is in single precision; the rest is in double."""


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A function that returns a trainer whose steps take 8 rows at once, for a kind and an attention."""
    return functools.cache(lambda kind, variant: train_kind(kind, variant, tmp_path_factory.mktemp("whole"), 8, 1))


def assert_same_weights(weights, expected):
    assert weights.keys() == expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(weights[name], tensor, msg=name, **TOLERANCE)


@pytest.mark.parametrize(("kind", "variant"), CASES)
def test_batches_of_two_equal_one_of_eight(kind, variant, whole, tmp_path):
    trainer = train_kind(kind, variant, tmp_path, 2, 4)
    assert_same_weights(trainer.model.state_dict(), whole(kind, variant).model.state_dict())
    for name in LOGGED:
        assert logged(trainer, name) == pytest.approx(logged(whole(kind, variant), name), rel=1e-5), name


def test_a_batch_without_labels_adds_only_its_alignment(whole, tmp_path):
    labels = KindRows("tags", ROWS).batch["labels"]
    assert (labels[WITHOUT_LABELS] == -100).all()
    trainer = train_kind("tags", "aa-ct", tmp_path, 1, 8)
    assert_same_weights(trainer.model.state_dict(), whole("tags", "aa-ct").model.state_dict())


def words_by_gpt2():
    sizes = {"vocab_size": 60, "n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 16}
    config = transformers.GPT2Config(**sizes, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
    ids = torch.randint(5, 60, (4, 7))
    is_real = torch.arange(7) < torch.tensor([[7], [3], [5], [2]])
    labels = ids.masked_fill(~is_real, -100)
    return transformers.GPT2LMHeadModel(config), {"input_ids": ids, "attention_mask": is_real.long(), "labels": labels}


def pixels_with_ignored_ones():
    sizes = {
        "depths": [1],
        "sr_ratios": [1],
        "hidden_sizes": [8],
        "patch_sizes": [3],
        "strides": [2],
        "mlp_ratios": [2],
    }
    rates = ("hidden_dropout_prob", "attention_probs_dropout_prob", "classifier_dropout_prob", "drop_path_rate")
    config = transformers.SegformerConfig(
        **sizes, num_encoder_blocks=1, num_attention_heads=[2], decoder_hidden_size=8, **dict.fromkeys(rates, 0.0)
    )
    config.num_labels = 3
    model = transformers.SegformerForSemanticSegmentation(config)
    model.decode_head.batch_norm = torch.nn.Identity()
    labels = torch.randint(0, 3, (4, 8, 8))
    for row in range(4):
        labels[row, : 2 * row] = config.semantic_loss_ignore_index
    return model, {"pixel_values": torch.randn(4, 3, 8, 8), "labels": labels}


def transcripts_by_ctc():
    sizes = {"vocab_size": 60, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "pad_token_id": 1}
    convolutions = {"conv_dim": (8, 8), "conv_kernel": (10, 3), "conv_stride": (5, 2), "num_conv_pos_embeddings": 8}
    rates = ("hidden_dropout", "attention_dropout", "activation_dropout", "feat_proj_dropout", "final_dropout")
    config = transformers.Wav2Vec2Config(
        **sizes,
        **convolutions,
        **dict.fromkeys((*rates, "layerdrop"), 0.0),
        num_conv_pos_embedding_groups=2,
        intermediate_size=16,
        apply_spec_augment=False,
        ctc_loss_reduction="mean",
    )
    labels = torch.randint(5, 60, (4, 6)).masked_fill(torch.arange(6) >= torch.tensor([[1], [6], [3], [2]]), -100)
    return transformers.Wav2Vec2ForCTC(config), {"input_values": torch.randn(4, 400), "labels": labels}


@pytest.mark.parametrize("make", [words_by_gpt2, pixels_with_ignored_ones, transcripts_by_ctc])
def test_batches_of_one_row_give_the_gradient_of_the_models_own_loss(make, tmp_path):
    torch.manual_seed(0)
    model, batch = make()
    model = model.double()
    batch = {name: values.double() if values.is_floating_point() else values for name, values in batch.items()}
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    model.train()(**batch).loss.backward()
    # CTC models have a parameter for masked frames, which are none here.
    found = {name: parameter.grad for name, parameter in model.named_parameters()}
    gradients = {name: gradient.clone() for name, gradient in found.items() if gradient is not None}
    model.zero_grad()
    args = transformers.TrainingArguments(
        str(tmp_path),
        max_steps=1,
        per_device_train_batch_size=1,
        gradient_accumulation_steps=4,
        learning_rate=1.0,
        **SGD_SETTINGS,
    )
    rows = [{name: values[row] for name, values in batch.items()} for row in range(4)]
    AlignmentTrainer(model=model, args=args, train_dataset=rows, data_collator=stacked).train()
    for name, gradient in gradients.items():
        torch.testing.assert_close(before[name] - model.get_parameter(name), gradient, msg=name, rtol=1e-5, atol=1e-7)


@pytest.fixture(scope="module")
def two_processes(tiny_checkpoint, made_once):
    """A folder with what two processes trained; in a step, each takes four rows one by one."""
    return made_once("two", functools.partial(train_by_two, tiny_checkpoint))


def train_by_two(checkpoint, folder):
    script = ROOT / "tests" / "training" / "train_distributed.py"
    done = run_two_processes(script, checkpoint, folder, "1", "4")
    assert done.returncode == 0, done.stderr


def assert_same_training(folder, name, one):
    assert_same_weights(torch.load(folder / f"{name}.pt", weights_only=True), one.model.state_dict())
    history = json.loads((folder / f"{name}.json").read_text())
    for quantity in LOGGED:
        values = [entry[quantity] for entry in history if quantity in entry]
        assert values == pytest.approx(logged(one, quantity), rel=1e-5), quantity


@pytest.mark.parametrize(("kind", "variant"), CASES)
def test_two_processes_equal_one(kind, variant, whole, two_processes):
    assert_same_training(two_processes, f"{kind}-{variant}", whole(kind, variant))


@pytest.mark.parametrize("name", UNEVEN)
def test_rows_that_two_processes_do_not_divide_count_once(name, two_processes, tmp_path):
    kind, rows, size, batches = UNEVEN[name]
    one = train_kind(kind, "aa-ct", tmp_path, 2 * size * batches, 1, rows=rows)
    assert_same_training(two_processes, f"uneven-{name}", one)


def test_a_loss_of_the_whole_step_counts_such_rows_once(two_processes, tmp_path):
    one = train_kind("tags", "aa-ct", tmp_path, 9, 1, OfTheWholeStep, rows=9)
    assert_same_training(two_processes, "uneven-whole-step", one)


@pytest.mark.parametrize("name", STREAMS)
def test_a_stream_that_two_processes_do_not_divide_counts_once(name, two_processes, tmp_path):
    rows, _ = STREAMS[name]
    one = train_kind("tags", "aa-ct", tmp_path, rows, 1, rows=rows, dataset=Stream, max_steps=1)
    assert_same_training(two_processes, f"stream-{name}", one)


@pytest.mark.parametrize("variant", FSDP2_VARIANTS)
def test_two_processes_that_shard_the_weights_equal_one(variant, two_processes, tmp_path):
    assert_same_training(two_processes, f"fsdp2-{variant}", train_kind("texts", variant, tmp_path, 8, 1, **ADAM))


def test_two_processes_with_weighted_classes_equal_one(two_processes, tmp_path):
    assert_same_training(two_processes, "weighted", train_weighted(tmp_path, 8, 1))


def test_two_processes_on_a_graph_equal_one(two_processes, tmp_path):
    one = train_nodes(tmp_path, 8, 1)
    weights = torch.load(two_processes / "nodes.pt", weights_only=True)
    for name, tensor in one.model.state_dict().items():
        torch.testing.assert_close(weights[name], tensor, msg=name, rtol=0, atol=1e-6)


def test_two_processes_of_sentence_transformers_equal_one(tiny_checkpoint, two_processes, tmp_path):
    one = train_sentences(tiny_checkpoint, tmp_path, 8, 1)
    assert_same_training(two_processes, "sentences", one)
