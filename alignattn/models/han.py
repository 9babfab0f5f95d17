"""A hierarchical attention network (Yang et al. 2016): words pooled to sentences, and sentences to a text."""

import torch
from huggingface_hub.dataclasses import strict
from torch import Tensor, nn

from alignattn.attention.pooling import AttentionPooling
from alignattn.models import MODEL_TYPE_PREFIX
from alignattn.models.build import BuiltModel, Material
from alignattn.models.encoders import Recurrent
from alignattn.models.text_classifier import TextClassifier, TextClassifierConfig
from alignattn.models.word_model import Sentences

SENTENCE_ENDS = (".", "!", "?", "。", "！", "？")


@strict
class HanConfig(TextClassifierConfig):
    """`hidden_dim` units a direction of both GRUs.

    Args:
        sentence_ends: ids of the words that end a sentence.
        longest_sentence: words after which a sentence is taken to end, whatever stands there.
    """

    model_type = MODEL_TYPE_PREFIX + "han"

    sentence_ends: list[int] | tuple[int, ...] = ()
    longest_sentence: int = 64


class HanForSequenceClassification(TextClassifier):
    """A GRU and a learned query over the words of each sentence, and the same over the sentences (§2.2)."""

    config_class = HanConfig
    config: HanConfig

    def __init__(self, config: HanConfig) -> None:
        size = 2 * config.hidden_dim
        super().__init__(config, size)
        self.word_encoder = Recurrent(config.embedding_dim, config.hidden_dim, nn.GRU)
        self.word_pooling = AttentionPooling(size)
        self.sentence_encoder = Recurrent(size, config.hidden_dim, nn.GRU)
        self.sentence_pooling = AttentionPooling(size)
        self.post_init()  # type: ignore[no-untyped-call]

    @classmethod
    def build(cls, material: Material) -> BuiltModel:
        """Return an untrained model, as `WordModel.build`, that knows what ends a sentence."""
        built = super().build(material)
        words = built.processor.get_vocab()
        built.model.config.sentence_ends = [words[end] for end in SENTENCE_ENDS if end in words]
        return built

    def pooled(self, input_ids: Tensor, mask: Tensor) -> Tensor:
        """Return `[B, 2 · hidden_dim]`, as `TextClassifier.pooled`."""
        ends = torch.tensor(self.config.sentence_ends, device=input_ids.device, dtype=input_ids.dtype)
        number, place = sentence_of_words(torch.isin(input_ids, ends), self.config.longest_sentence)
        rows = torch.arange(len(input_ids), device=input_ids.device)[:, None].expand_as(input_ids)
        counts = number.masked_fill(~mask, -1).amax(dim=1) + 1
        # Sentences of all texts, one after another: as many as there are, whatever the text with the most has.
        sentence = (counts.cumsum(0) - counts)[rows] + number
        words = _scattered(input_ids[mask], sentence[mask], place[mask], self.config.pad_token_id)
        sentences = self.word_pooling(*self.word_encoder(Sentences(self.embedded(words.tokens), words.mask)))
        owner = torch.arange(len(counts), device=counts.device).repeat_interleave(counts)
        turn = torch.arange(len(owner), device=counts.device) - (counts.cumsum(0) - counts)[owner]
        text: Tensor = self.sentence_pooling(*self.sentence_encoder(_scattered(sentences, owner, turn, 0)))
        return text


def sentence_of_words(ends: Tensor, longest: int) -> tuple[Tensor, Tensor]:
    """Return of each word its sentence's number in the text and its own in the sentence, both `[B, n]` from 0.

    Args:
        ends: `[B, n]` bool, whether a word ends a sentence; of several in turn, as `?!`, the last does.
        longest: words after which a sentence ends, whatever stands there.
    """
    index = torch.arange(ends.shape[1], device=ends.device).expand_as(ends)
    begins = torch.ones_like(ends)
    begins[:, 1:] = ends[:, :-1] & ~ends[:, 1:]
    since = index - index.where(begins, torch.zeros_like(index)).cummax(dim=1).values
    place = since % longest
    return (place == 0).cumsum(dim=1) - 1, place


def _scattered(items: Tensor, row: Tensor, column: Tensor, filling: int) -> Sentences:
    """Put items `[N, …]` at their row and column of a table that they make whole; what is left over is filled."""
    shape = int(row.max()) + 1, int(column.max()) + 1
    table = items.new_full((*shape, *items.shape[1:]), filling)
    mask = torch.zeros(shape, dtype=torch.bool, device=items.device)
    mask[row, column] = True
    return Sentences(table.index_put((row, column), items), mask)
