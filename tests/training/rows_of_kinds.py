"""Tiny models and rows for each kind of task: rows of different lengths and numbers of labels."""

import torch
import transformers
from conftest import TINY, VOCABULARY, tiny_model, without_dropout
from torch.utils.data import Dataset

import alignattn
from alignattn.models.sequence.lstm import Seq2SeqLstm, Seq2SeqLstmConfig

LENGTH = 9
CHOICES = 2
IGNORED = -100
WITHOUT_LABELS = 5
"""Index of the row without a labelled token."""
SCORE_OF_THE_IGNORED = 4
"""Index of the row whose score is the number that class labels reserve."""
CLASSES = {"answers": CHOICES, "scores": 1}
"""Size of a head, where it is not 3."""

MODELS = {
    "texts": transformers.BertForSequenceClassification,
    "scores": transformers.BertForSequenceClassification,
    "choices": transformers.BertForMultipleChoice,
    "tags": transformers.BertForTokenClassification,
    "answers": transformers.BertForQuestionAnswering,
    "masked words": transformers.ModernBertForMaskedLM,
}


class KindRows(Dataset):
    def __init__(self, kind, count):
        draw = torch.Generator().manual_seed(7)

        def integers(high, *shape, low=0):
            return torch.randint(low, high, shape, generator=draw)

        lengths = integers(LENGTH + 1, count, low=3)
        mask = (torch.arange(LENGTH) < lengths[:, None]).long()
        ids = integers(VOCABULARY, count, LENGTH, low=3) * mask
        batch = {"input_ids": ids, "attention_mask": mask}
        if kind == "choices":
            batch = {name: values[:, None].expand(-1, CHOICES, -1).contiguous() for name, values in batch.items()}
            batch["input_ids"][:, 1] = ids.flip(0) * mask
            batch["labels"] = integers(CHOICES, count)
        elif kind == "answers":
            batch["start_positions"], batch["end_positions"] = integers(3, count), integers(3, count)
        elif kind == "texts":
            batch["labels"] = integers(3, count)
        elif kind == "scores":
            labels = torch.randn(count, generator=draw, dtype=torch.double)
            labels[SCORE_OF_THE_IGNORED] = IGNORED
            batch["labels"] = labels
        elif kind == "sequences":
            written = torch.arange(LENGTH) < integers(LENGTH + 1, count, low=1)[:, None]
            batch["labels"] = integers(VOCABULARY, count, LENGTH, low=4).masked_fill(~written, IGNORED)
        else:
            labels = integers(3, count, LENGTH)
            labels[(mask == 0) | (integers(2, count, LENGTH) == 0)] = IGNORED
            labels[WITHOUT_LABELS] = IGNORED
            batch["labels"] = labels
        self.batch = batch

    def __len__(self):
        return len(self.batch["input_ids"])

    def __getitem__(self, index):
        return {name: values[index] for name, values in self.batch.items()}


def kind_model(kind, variant="aa-ct", **overrides):
    """Return a model in double precision, without dropout or drawn samples, with a λ large enough to matter."""
    torch.manual_seed(0)
    model = _untrained(kind)
    without_dropout(model)
    return alignattn.patch(model, variant, **({"alignment_weight": 0.3, "alignment_rows": 0} | overrides)).double()


def _untrained(kind):
    if kind == "sequences":
        sizes = {"embedding_dim": 4, "hidden_dim": 4, "dropout": 0.0}
        return Seq2SeqLstm(Seq2SeqLstmConfig(vocab_size=VOCABULARY, target_vocab_size=VOCABULARY, **sizes))
    if kind == "masked words":
        config = tiny_model("modernbert").config
    else:
        config = transformers.BertConfig(**TINY, num_labels=CLASSES.get(kind, 3))
    return MODELS[kind](config)
