"""Encoder-decoders as `DataCollatorForSeq2Seq` feeds them: padded labels, and no mask of the decoder."""

import pytest
import torch
import transformers

import alignattn
from alignattn.patching.collector import has_recording_hook

SIZES = {
    "bart": {"d_model": 32, "encoder_attention_heads": 2, "decoder_attention_heads": 2, "dropout": 0.0}
    | {"encoder_layers": 1, "decoder_layers": 2, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32},
    "t5": {"d_model": 32, "d_kv": 8, "d_ff": 32, "num_layers": 2, "num_heads": 4, "dropout_rate": 0.0}
    | {"decoder_start_token_id": 0},
}
LENGTHS = (9, 2)
"""Of the targets; the sources of the same batch have the first length, too."""


@pytest.fixture(params=SIZES)
def model(request):
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(request.param, vocab_size=50, **SIZES[request.param])
    model = transformers.AutoModelForSeq2SeqLM.from_config(config)
    for weights in model.parameters():
        if weights.dim() > 1:
            torch.nn.init.normal_(weights, std=0.3)
    return model.double()


@pytest.mark.parametrize("cross_attention", [False, True])
@pytest.mark.parametrize("attention", ["aa-ct", "aa-gan"])
def test_padding_of_the_labels_does_not_enter(model, attention, cross_attention):
    sources, targets = torch.randint(3, 50, (2, 2, LENGTHS[0]))
    labels = targets.masked_fill(torch.arange(LENGTHS[0]) >= torch.tensor(LENGTHS)[:, None], -100)
    # A position without a target in the middle is real: later ones attend to it.
    labels[0, 4] = -100
    alignattn.patch(model, attention, cross_attention=cross_attention, alignment_weight=1.0).train()

    def loss_of(**batch):
        model(**batch)
        return alignattn.alignment_loss(model)

    def gradient_of(loss):
        weights = [one for one in model.parameters() if one.requires_grad]
        return torch.autograd.grad(loss, weights, allow_unused=True, materialize_grads=True)

    padded = loss_of(input_ids=sources, labels=labels)
    gradient = gradient_of(padded)
    # The mean over samples, each by itself and without padding.
    alone = [
        loss_of(input_ids=sources[row : row + 1], labels=labels[row : row + 1, :length])
        for row, length in enumerate(LENGTHS)
    ]
    mean = torch.stack(alone).mean()
    torch.testing.assert_close(padded, mean)
    torch.testing.assert_close(gradient, gradient_of(mean))
    # A mask that the caller passes counts, and says the same here.
    mask = (torch.arange(LENGTHS[0]) < torch.tensor(LENGTHS)[:, None]).long()
    torch.testing.assert_close(loss_of(input_ids=sources, labels=labels, decoder_attention_mask=mask), mean)


@pytest.mark.parametrize("attention", ["soft", "aa-ct"])
def test_collected_records_leave_out_the_padding_of_a_decoder(model, attention):
    labels = torch.full((2, LENGTHS[0]), 7).masked_fill(
        torch.arange(LENGTHS[0]) >= torch.tensor(LENGTHS)[:, None], -100
    )
    real = labels != -100
    alignattn.patch(model.eval(), attention, cross_attention=attention != "soft")
    with torch.no_grad(), alignattn.collect(model) as seen:
        model(input_ids=torch.full((2, LENGTHS[0] + 1), 5), labels=labels)
    of_decoder = [layer for layer in seen.layers if layer.query.shape[2] == LENGTHS[0]]
    assert len(of_decoder) == (2 if attention == "soft" else 4)
    assert all(torch.equal(layer.mask, real) for layer in of_decoder)
    assert not any(has_recording_hook(module) for module in model.modules())


def test_padding_of_labels_that_the_trainer_keeps_from_the_model_does_not_enter(tmp_path):
    """With label smoothing, transformers' Trainer takes the labels out of the batch before the forward."""
    ids = torch.arange(3, 3 + LENGTHS[0])
    rows = [{"input_ids": ids, "labels": ids.masked_fill(ids >= 3 + length, -100)} for length in LENGTHS]
    losses = []
    for smoothing in (0.0, 0.1):
        torch.manual_seed(0)
        model = transformers.BartForConditionalGeneration(transformers.BartConfig(vocab_size=50, **SIZES["bart"]))
        alignattn.patch(model, "aa-moments", alignment_weight=1.0)
        settings = {"max_steps": 1, "logging_steps": 1, "per_device_train_batch_size": 2, "report_to": "none"}
        arguments = transformers.TrainingArguments(
            str(tmp_path), label_smoothing_factor=smoothing, use_cpu=True, save_strategy="no", **settings
        )

        def collated(rows, model=model):
            batch = torch.utils.data.default_collate(rows)
            return batch | {"decoder_input_ids": model.prepare_decoder_input_ids_from_labels(batch["labels"])}

        trainer = alignattn.AlignmentTrainer(model, arguments, train_dataset=rows, data_collator=collated)
        trainer.train()
        losses.append(trainer.state.log_history[0]["align_loss"])
    assert losses[1] == pytest.approx(losses[0], rel=1e-6)
