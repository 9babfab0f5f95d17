"""What the classifiers of single texts share: words, an encoder, a pooling, a classifier (Wu et al. 2020, table 1)."""

from abc import abstractmethod

from huggingface_hub.dataclasses import strict
from torch import Tensor, nn
from transformers.modeling_outputs import SequenceClassifierOutput

from alignattn.models.word_model import WordModel, WordModelConfig, take_words


@strict
class TextClassifierConfig(WordModelConfig):
    """Sizes of Wu et al. 2020, §4.1: vectors of 300, 256 filters, or units a direction; the dropout is ours."""

    hidden_dim: int = 256
    dropout: float = 0.2


class TextClassifier(WordModel):
    """Hands the words of texts to `pooled`, which a subclass gives, and classifies what it makes of them.

    Args:
        config: the sizes.
        pooled_dim: size of what `pooled` returns.
    """

    config_class = TextClassifierConfig
    config: TextClassifierConfig

    def __init__(self, config: TextClassifierConfig, pooled_dim: int) -> None:
        super().__init__(config)
        assert config.num_labels is not None
        self.dropout = nn.Dropout(config.dropout)
        self.classifier = nn.Linear(pooled_dim, config.num_labels)

    @abstractmethod
    def pooled(self, input_ids: Tensor, mask: Tensor) -> Tensor:
        """Return a vector a text, `[B, pooled_dim]`.

        Args:
            input_ids: `[B, n]`, padded on the right.
            mask: `[B, n]` bool, True = a real word, of which each row has one.
        """

    def embedded(self, input_ids: Tensor) -> Tensor:
        """Return word vectors `[…, n, embedding_dim]` of ids `[…, n]`, some numbers dropped in training."""
        vectors: Tensor = self.dropout(self.embedding(input_ids))
        return vectors

    # No **kwargs: with them, Trainer takes the loss for one that it need not divide by the accumulation steps.
    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, labels: Tensor | None = None
    ) -> SequenceClassifierOutput:
        """Classify texts.

        Args:
            input_ids: `[B, n]`.
            attention_mask: `[B, n]`, not 0 = a real word; None = all but `pad_token_id` are.
            labels: as of transformers' classifiers: `[B]` integers for classes, floats for a regression; `[B,
                num_labels]` floats where each label is right or wrong by itself.

        Returns:
            `logits` `[B, num_labels]`, and `loss` where there are labels.
        """
        words = take_words(input_ids, self.real_words(input_ids, attention_mask), self.config.pad_token_id)
        # An empty text is read as one word of padding, whose vector is 0: no pooling is finite over nothing.
        words.mask[:, 0] = True
        return self.output(self.classifier(self.dropout(self.pooled(*words))), labels)
