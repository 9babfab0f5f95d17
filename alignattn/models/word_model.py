"""What all models share that are built for the words of a run's rows: word vectors, how they begin, the loss."""

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
    """The sizes of a model of words.

    Args:
        vocab_size: number of words, padding and unknown included.
        embedding_dim: size of a word's vector.
        hidden_dim: size of the hidden layers.
        dropout: probability with which a hidden unit is dropped in training.
        train_embeddings: whether the word vectors are trained or stay as they are.
        pad_token_id: the word that fills up a batch; its vector is zero and stays so.
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
    """Take some of the words of each row, in their order.

    Args:
        input_ids: `[B, n]`.
        belongs: `[B, n]` bool, which to take.
        pad: the id that fills up the shorter ones.

    Returns:
        Them, right-padded to the longest, `[B, n']`. A batch of nothing but empty ones has the length 1, so that later
        layers have something to mask.
    """
    # A batch without any still has a column to take.
    ids, belongs = F.pad(input_ids, (0, 1), value=pad), F.pad(belongs, (0, 1))
    order, mask = to_the_front(belongs)
    return Sentences(ids.gather(1, order).masked_fill(~mask, pad), mask)


def to_the_front(belongs: Tensor) -> tuple[Tensor, Tensor]:
    """Return where some of the tokens of each row stand, in their order, and behind them others that fill it up.

    Args:
        belongs: `[B, n]` bool, which they are.

    Returns:
        Their places, `[B, n']` with n' the most that a row has and 1 at least, and which of these are of them, bool.
    """
    longest = max(int(belongs.sum(dim=1).max()), 1)
    order = belongs.int().argsort(dim=1, descending=True, stable=True)[:, :longest]
    return order, belongs.gather(1, order)


class WordModel(PreTrainedModel):
    """A classifier with a table of word vectors, `embedding`.

    Of texts it reads what BERT reads, without special tokens, so that transformers' Trainer and collators carry it.
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
    def build(cls, material: BuildContext) -> BuiltModel:
        """Return an untrained model for the words of the rows; raises as `build_word_model` does."""
        task = material.task
        assert isinstance(task, (TextClassification, MultiLabelClassification))
        return build_word_model(
            cls,
            chain.from_iterable(material.rows[column] for column in task.text_columns),
            num_labels=task.num_labels,
            embeddings=material.embeddings,
            seed=material.seed,
            skip_bad_rows=material.skip_bad_rows,
            config_fields=material.config_fields,
        )

    @classmethod
    def from_pretrained(cls, *args: Any, **kwargs: Any) -> Any:
        """Load a model; transformers' own function would leave fixed word vectors trainable."""
        loaded = super().from_pretrained(*args, **kwargs)
        model = loaded[0] if isinstance(loaded, tuple) else loaded  # a tuple with output_loading_info=True
        model._fix_embeddings()
        return loaded

    def _fix_embeddings(self) -> None:
        self.embedding.weight.requires_grad_(self.config.train_embeddings)

    def real_words(self, input_ids: Tensor, attention_mask: Tensor | None) -> Tensor:
        """Return which words are real, `[B, n]` bool: without a mask all but those of padding."""
        return input_ids != self.config.pad_token_id if attention_mask is None else attention_mask.bool()

    def output(self, logits: Tensor, labels: Tensor | None) -> SequenceClassifierOutput:
        """Return logits `[B, num_labels]`, and where there are labels transformers' loss for such."""
        loss = None
        if labels is not None:
            loss = self.loss_function(labels=labels, pooled_logits=logits, config=self.config)
        return SequenceClassifierOutput(loss=loss, logits=logits)

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """Glorot-uniform layers; word vectors of length 1 on average, as Parikh et al. 2016 scale theirs (§5.2)."""
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
    """Initialise as AllenNLP: Glorot-uniform input, orthogonal recurrent weights, an LSTM's forget gate open."""
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
