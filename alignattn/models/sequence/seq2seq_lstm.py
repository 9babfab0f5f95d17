"""An encoder and a decoder of LSTMs, between them attention (Bahdanau et al. 2015, Luong et al. 2015)."""

import torch
from huggingface_hub.dataclasses import strict
from torch import Tensor, nn
from transformers.modeling_outputs import Seq2SeqLMOutput

from alignattn.models import MODEL_TYPE_PREFIX
from alignattn.models.layers import Recurrent
from alignattn.models.sequence.lstm_writer import LstmWriter, LstmWriterConfig, Memory
from alignattn.models.word_model import Sentences


@strict
class Seq2SeqLstmConfig(LstmWriterConfig):
    """The sizes; the states of both directions of the encoder are as large as one of the decoder."""

    model_type = MODEL_TYPE_PREFIX + "seq2seq-lstm"


class Seq2SeqLstm(LstmWriter):
    """An LSTM reads in both directions; another writes, and attends at each word to what was read."""

    config_class = Seq2SeqLstmConfig
    config: Seq2SeqLstmConfig

    def __init__(self, config: Seq2SeqLstmConfig) -> None:
        super().__init__(config)
        size = config.hidden_dim
        if size % 2:
            raise ValueError(f"hidden_dim {size} is odd, and half of it is of each direction")
        self.encoder = Recurrent(config.embedding_dim, size // 2)
        self.bridge = nn.Linear(size // 2, size)
        self.post_init()  # type: ignore[no-untyped-call]

    # No **kwargs: with them, Trainer takes the loss for one that it need not divide by the accumulation steps.
    def forward(
        self,
        input_ids: Tensor,
        labels: Tensor,
        attention_mask: Tensor | None = None,
        choices: Tensor | None = None,
    ) -> Seq2SeqLMOutput:
        """Tell how probable right sequences are, as `SequenceModel.forward`; `choices` as of `told_of`."""
        return self.told_of(self.read_ids(input_ids, attention_mask), labels, choices)

    def read(self, words: Sentences) -> Memory:
        """Return the states of both directions; it begins with what the backward one ends with (Bahdanau, A.2.2)."""
        mask = words.mask
        states = self.encoder(Sentences(self.dropout(self.embedding(words.tokens)), mask)).tokens
        states = self.dropout(states)
        first = torch.tanh(self.bridge(states[:, 0, states.shape[-1] // 2 :]))
        # The end, which stands last, may be attended ever again: a sink of what is over (Malaviya et al. 2018).
        last = mask.sum(dim=1)[:, None, None, None] - 1
        spent = torch.zeros_like(states[:, None, None, :, 0]).scatter(-1, last, -torch.inf)
        return Memory(states, mask, self.attention.key_projection(states), first, spent)
