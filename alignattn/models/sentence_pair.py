"""What the classifiers of pairs share: two sentences out of one batch, and what is between them."""

import torch
from torch import Tensor
from transformers.modeling_outputs import SequenceClassifierOutput

from alignattn.models.word_model import Sentences, WordModel, take_words
from alignattn.support.errors import AlignAttnError
from alignattn.tasks.task import MOST_TEXTS


def split_pair(input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor, pad: int) -> list[Sentences]:
    """Take joined pairs apart.

    Args:
        input_ids: `[B, n]`.
        attention_mask: `[B, n]`, not 0 = a real token.
        token_type_ids: `[B, n]`, 0 = a token of the first sentence, 1 = of the second.
        pad: the id that fills up the shorter sentences.

    Returns:
        The first and the second sentences, as `take_words` gives them, `[B, n_a]` and `[B, n_b]`.
    """
    return [
        take_words(input_ids, attention_mask.bool() & (token_type_ids == sentence), pad)
        for sentence in range(MOST_TEXTS)
    ]


def masked_softmax(scores: Tensor, mask: Tensor) -> Tensor:
    """Softmax over the last dimension among what `mask` keeps.

    Args:
        scores: `[..., n]`.
        mask: bool, broadcasts to `scores`, True = kept.

    Returns:
        Weights like `scores`, exactly 0 where not kept; all 0 where nothing is kept.
    """
    return scores.masked_fill(~mask, torch.finfo(scores.dtype).min).softmax(dim=-1) * mask


def attend_both_ways(scores: Tensor, a: Sentences, b: Sentences) -> tuple[Tensor, Tensor]:
    """Soft alignment: each token's weighted mean of the other sentence (Parikh et al. 2016, eq. 2).

    Args:
        scores: e, `[B, n_a, n_b]`.
        a: vectors `[B, n_a, d]` and their mask.
        b: vectors `[B, n_b, d]` and their mask.

    Returns:
        For each token of a what it meets in b, `[B, n_a, d]`, and for each of b what it meets in a, `[B, n_b, d]`;
        zeros where the other sentence is empty.
    """
    of_b = masked_softmax(scores, b.mask[:, None]) @ b.tokens
    of_a = masked_softmax(scores.mT, a.mask[:, None]) @ a.tokens
    return of_b, of_a


def side_by_side(first: Tensor, second: Tensor) -> Tensor:
    """Return two vectors, their difference and their product, `[…, 4 · d]` of `[…, d]` each (Mou et al. 2016, §3)."""
    return torch.cat([first, second, first - second, first * second], dim=-1)


class SentencePairClassifier(WordModel):
    """Embeds the words of joined pairs and hands the two sentences to `classify`, which a subclass gives."""

    reads_pairs = True

    def classify(self, a: Sentences, b: Sentences) -> Tensor:
        """Logits `[B, num_labels]` of embedded sentences `[B, n_a, embedding_dim]` and `[B, n_b, embedding_dim]`."""
        raise NotImplementedError

    # No **kwargs: with them, Trainer takes the loss for one that it need not divide by the accumulation steps.
    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        labels: Tensor | None = None,
    ) -> SequenceClassifierOutput:
        """Classify joined pairs.

        Args:
            input_ids: `[B, n]`.
            attention_mask: `[B, n]`, not 0 = a real token; None = all but `pad_token_id` are.
            token_type_ids: `[B, n]`, 0 = premise, 1 = hypothesis.
            labels: `[B]`, integers for cross entropy; floats for the squared error where `num_labels` is 1.

        Returns:
            `logits` `[B, num_labels]`, and `loss` where there are labels.

        Raises:
            AlignAttnError: if `token_type_ids` is None.
        """
        if token_type_ids is None:
            name = type(self).__name__
            raise AlignAttnError(
                f"{name} needs token_type_ids to tell two texts apart: use the tokenizer saved with it"
            )
        words = self.real_words(input_ids, attention_mask)
        a, b = split_pair(input_ids, words, token_type_ids, self.config.pad_token_id)
        logits = self.classify(*(Sentences(self.embedding(ids), mask) for ids, mask in (a, b)))
        return self.output(logits, labels)
