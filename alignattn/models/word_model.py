"""The base class of models with word vectors: embedding, initialisation, loss."""

from itertools import chain
from typing import Any, ClassVar, NamedTuple

import torch
from huggingface_hub.dataclasses import strict
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import AutoModelForSequenceClassification, PreTrainedConfig, PreTrainedModel
from transformers import initialization as init
from transformers.modeling_outputs import SequenceClassifierOutput

from alignattn.models.build import BuildContext, BuiltModel, build_word_model
from alignattn.tasks import MultiLabelClassification, TextClassification


@strict
class WordModelConfig(PreTrainedConfig):
    """The sizes of a model with word vectors.

    Args:
        vocab_size: number of words, padding and unknown included.
        embedding_dim: size of a word's vector.
        hidden_dim: size of the hidden layers.
        dropout: probability of dropping a hidden unit in training.
        train_embeddings: whether the word vectors are trained.
        pad_token_id: the padding word, whose vector is always zero.
    """

    vocab_size: int = 2
    embedding_dim: int = 300
    hidden_dim: int = 300
    dropout: float = 0.0
    train_embeddings: bool = True
    pad_token_id: int = 0


class Sentences(NamedTuple):
    """Texts of a batch: token ids or vectors `[B, n]` or `[B, n, d]`, and which are real, `[B, n]` bool."""

    tokens: Tensor
    mask: Tensor


def take_words(input_ids: Tensor, belongs: Tensor, pad: int) -> Sentences:
    """Return the selected words of each row, in their order, right-padded to the longest, `[B, n']`.

    A batch of only empty rows has length 1, so that later layers have something to mask.

    Args:
        input_ids: `[B, n]`.
        belongs: `[B, n]` bool, True = selected.
        pad: the padding id.
    """
    # An extra column, in case there is no word at all.
    ids, belongs = F.pad(input_ids, (0, 1), value=pad), F.pad(belongs, (0, 1))
    order, mask = to_the_front(belongs)
    return Sentences(ids.gather(1, order).masked_fill(~mask, pad), mask)


def to_the_front(belongs: Tensor) -> tuple[Tensor, Tensor]:
    """Return the places of the selected tokens of each row, in their order, padded with places of other tokens.

    Args:
        belongs: `[B, n]` bool, True = selected.

    Returns:
        The places, `[B, n']` with n' the maximum per row and at least 1, and which of them are selected, bool.
    """
    longest = max(int(belongs.sum(dim=1).max()), 1)
    order = belongs.int().argsort(dim=1, descending=True, stable=True)[:, :longest]
    return order, belongs.gather(1, order)


class WordModel(PreTrainedModel):
    """A classifier with word vectors, `embedding`.

    Its inputs are those of BERT without special tokens, so transformers' Trainer and collators work with it.
    """

    auto_class: ClassVar[type[Any]] = AutoModelForSequenceClassification
    config_class = WordModelConfig
    config: WordModelConfig
    reads_pairs: ClassVar[bool] = False
    whole_words: ClassVar[bool] = False
    _input_embed_layer = "embedding"

    def __init__(self, config: WordModelConfig) -> None:
        super().__init__(config)
        self.embedding = nn.Embedding(config.vocab_size, config.embedding_dim, padding_idx=config.pad_token_id)
        self._fix_embeddings()

    @classmethod
    def build(cls, context: BuildContext) -> BuiltModel:
        """Return an untrained model for the words of the rows; raises as `build_word_model` does."""
        task = context.task
        assert isinstance(task, (TextClassification, MultiLabelClassification))
        return build_word_model(
            cls,
            chain.from_iterable(context.rows[column] for column in task.text_columns),
            context,
            num_labels=task.num_labels,
        )

    @classmethod
    def from_pretrained(cls, *args: Any, **kwargs: Any) -> Any:
        """Load a model; the method of transformers would leave frozen word vectors trainable."""
        loaded = super().from_pretrained(*args, **kwargs)
        model = loaded[0] if isinstance(loaded, tuple) else loaded  # a tuple with output_loading_info=True
        model._fix_embeddings()
        return loaded

    def _fix_embeddings(self) -> None:
        self.embedding.weight.requires_grad_(self.config.train_embeddings)

    def real_words(self, input_ids: Tensor, attention_mask: Tensor | None) -> Tensor:
        """Return which words are real, `[B, n]` bool; without a mask, all but padding."""
        return input_ids != self.config.pad_token_id if attention_mask is None else attention_mask.bool()

    def output(self, logits: Tensor, labels: Tensor | None) -> SequenceClassifierOutput:
        """Return logits `[B, num_labels]`, and transformers' loss if there are labels."""
        loss = None
        if labels is not None:
            loss = self.loss_function(labels=labels, pooled_logits=logits, config=self.config)
        return SequenceClassifierOutput(loss=loss, logits=logits)

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """Use Glorot-uniform layers, and word vectors of mean length 1, as scaled by Parikh et al. 2016 (§5.2)."""
        if isinstance(module, (nn.Linear, nn.Conv1d)):
            init.xavier_uniform_(module.weight)
            if module.bias is not None:
                init.zeros_(module.bias)
        elif isinstance(module, nn.LayerNorm):
            init.ones_(module.weight)
            init.zeros_(module.bias)
        elif isinstance(module, (nn.RNNBase, nn.RNNCellBase)):
            init_recurrent(module)
        elif isinstance(module, nn.Embedding):
            vectors = torch.randn_like(module.weight) * module.embedding_dim**-0.5
            vectors[module.padding_idx] = 0.0
            init.copy_(module.weight, vectors)


def init_recurrent(module: nn.RNNBase | nn.RNNCellBase) -> None:
    """Initialise as AllenNLP does: Glorot-uniform input weights, orthogonal recurrent weights, an open forget gate."""
    for name, parameter in module.named_parameters():
        if name.startswith("weight_ih"):
            init.xavier_uniform_(parameter)
        elif name.startswith("weight_hh"):
            init.orthogonal_(parameter)
        else:
            bias = torch.zeros_like(parameter)
            if isinstance(module, (nn.LSTM, nn.LSTMCell)) and name.startswith("bias_hh"):
                bias.view(4, -1)[1] = 1.0  # PyTorch's gates: input, forget, cell, output
            init.copy_(parameter, bias)
