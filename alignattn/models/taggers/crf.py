"""A linear-chain conditional random field over the words of a text (Lafferty et al. 2001), by pytorch-crf."""

import inspect
from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from transformers import MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING, PreTrainedConfig
from transformers import initialization as init
from transformers.utils.generic import ModelOutput

from alignattn.models.word_model import to_the_front
from alignattn.tasks.tags.scheme import BIO, may_follow
from alignattn.tasks.tags.tagging import IGNORED, WORD_STARTS
from alignattn.utils.errors import AlignAttnError, install_extra

CRF_FIELD = "crf_tags"
"""The field of a model's config that says that it has a CRF: the `SchemeName` of its tags."""

FORBIDDEN = -1e30
"""The score of a transition that may not be: no path of others weighs less, and sums of it are finite in float32."""

LEAST_LOG = -100.0
"""Of the logarithm of a probability; e^-100 is no number of float32 but the smallest."""

FIRST_SCORES = 0.1
"""The first scores of transitions are uniform between this and its negative, as pytorch-crf draws them."""


@dataclass
class TagOutput(ModelOutput):
    """What a model with a CRF says of the words of texts.

    Attributes:
        loss: negative log-likelihood of the labels, a mean over their words; None without labels.
        logits: `[B, n, C]`, in evaluation the logarithms of each tag's probability at a word, over all legal sequences
            (0 where no word is), so that a softmax gives these; in training the scores that the CRF is given.
        tags: `[B, n]`, the numbers of the likeliest legal sequence, -100 where no word begins; None in training.
        hidden_states: as the encoder returns them.
        attentions: likewise.
    """

    loss: Tensor | None = None
    logits: Tensor | None = None
    tags: Tensor | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None


class LinearChainCrf(nn.Module):
    """Scores of tags at words and of tags that follow one another, as one distribution over sequences of tags.

        p(y | x) ∝ exp(s(y_1) + Σ_i e_i(y_i) + Σ_i t(y_(i-1), y_i) + f(y_m))

    with emissions e of an encoder, and transitions t, starts s and ends f that are learned. What BIO forbids is learned
    from as it comes, so that a row with a mistake has a likelihood; it is left out of what is predicted.

    Args:
        config: of the model, with the names of the tags and `CRF_FIELD`.

    Raises:
        AlignAttnError: if pytorch-crf is not installed.
    """

    def __init__(self, config: PreTrainedConfig) -> None:
        super().__init__()
        id2label: Any = config.id2label
        names = [id2label[number] for number in sorted(id2label)]
        is_bio = getattr(config, CRF_FIELD) == BIO
        self._forbidden = [[is_bio and not may_follow(before, tag) for tag in names] for before in (None, *names)]
        self.chain = _chain_class()(len(names), batch_first=True)

    def forward(self, emissions: Tensor, words: Tensor, labels: Tensor | None = None) -> TagOutput:
        """Return what the class says.

        Args:
            emissions: `[B, n, C]`.
            words: `[B, n]` bool, where a word begins; a text may have none.
            labels: `[B, n]`, the number of each word's tag, -100 where no word begins.
        """
        # Sums over a text in half precision would not do.
        emissions = emissions.to(torch.promote_types(emissions.dtype, torch.float32))
        loss = None if labels is None else self.negative_log_likelihood(emissions, labels)
        if self.training:
            return TagOutput(loss=loss, logits=emissions)
        return TagOutput(loss, *self.decode(emissions, words))

    def negative_log_likelihood(self, emissions: Tensor, labels: Tensor) -> Tensor:
        """Return -log p(y | x) a word, a scalar; 0 of no word. Arguments as of `forward`.

        It is a mean over words as a cross-entropy of tags is, so that learning rates and the alignment's weight mean
        the same with it, and batches of a step are weighed by their words.
        """
        order, mask = to_the_front(labels != IGNORED)
        gathered, tags = _at(emissions, order), labels.gather(1, order).masked_fill(~mask, 0)
        has_words = mask.any(dim=1)
        # pytorch-crf takes no text without words.
        likelihoods = self.chain(gathered, tags, _with_a_word(mask), reduction="none")
        return -(likelihoods * has_words).sum() / mask.sum().clamp(min=1)

    def decode(self, emissions: Tensor, words: Tensor) -> tuple[Tensor, Tensor]:
        """Return `logits` and `tags` of `TagOutput`; arguments as of `forward`."""
        order, mask = to_the_front(words)
        gathered, is_read = _at(emissions, order), _with_a_word(mask)
        chain = deepcopy(self.chain)
        forbidden = torch.tensor(self._forbidden, device=emissions.device)
        chain.start_transitions.data.masked_fill_(forbidden[0], FORBIDDEN)
        chain.transitions.data.masked_fill_(forbidden[1:], FORBIDDEN)
        logs = _log_marginals(chain, gathered, is_read).masked_fill(~mask[..., None], 0.0)
        paths = [torch.tensor(path, device=emissions.device) for path in chain.decode(gathered, is_read)]
        found = nn.utils.rnn.pad_sequence(paths, batch_first=True).masked_fill(~mask, IGNORED)
        tags = torch.full(words.shape, IGNORED, device=words.device).scatter(1, order, found)
        return torch.zeros_like(emissions).scatter(1, _wide(order, emissions), logs), tags


def _chain_class() -> Any:
    try:
        from torchcrf import CRF
    except ImportError as error:
        raise AlignAttnError(f"a CRF is that of pytorch-crf: {install_extra('crf')}") from error
    return CRF


def drew_scores(module: nn.Module) -> bool:
    """Draw the scores of a chain that transformers has not loaded; return whether the module is one."""
    if not isinstance(module, _chain_class()):
        return False
    for scores in module.parameters():
        init.uniform_(scores, -FIRST_SCORES, FIRST_SCORES)
    return True


def _wide(order: Tensor, emissions: Tensor) -> Tensor:
    return order[..., None].expand(-1, -1, emissions.shape[-1])


def _at(emissions: Tensor, order: Tensor) -> Tensor:
    return emissions.gather(1, _wide(order, emissions))


def _with_a_word(mask: Tensor) -> Tensor:
    first = torch.zeros_like(mask)
    first[:, 0] = True
    return mask | first


def _log_marginals(chain: Any, emissions: Tensor, mask: Tensor) -> Tensor:
    """Return log p(y_i | x), `[B, m, C]`, by the forward and backward recursions (Rabiner 1989, eqs. 18 to 27).

    Args:
        chain: the scores of starts, transitions and ends.
        emissions: `[B, m, C]`.
        mask: `[B, m]` bool, right-padded, each text with a word.
    """
    steps, transitions = emissions.unbind(1), chain.transitions
    before = [chain.start_transitions + steps[0]]
    for step, is_word in zip(steps[1:], mask.T[1:], strict=True):
        reached = torch.logsumexp(before[-1][:, :, None] + transitions, dim=1) + step
        before.append(torch.where(is_word[:, None], reached, before[-1]))
    after = [chain.end_transitions.expand_as(steps[0])]
    for step, is_word in zip(steps[:0:-1], mask.T[1:].flip(0), strict=True):
        reached = torch.logsumexp(transitions + (step + after[-1])[:, None], dim=2)
        after.append(torch.where(is_word[:, None], reached, after[-1]))
    both = torch.stack(before, dim=1) + torch.stack(after[::-1], dim=1)
    return both.log_softmax(dim=-1).clamp(min=LEAST_LOG)


def tagger_with_crf(config: PreTrainedConfig) -> Any:
    """Return the class of pretrained taggers of a config, with a CRF over the scores of each word's first piece.

    Beside what that of transformers takes it takes `word_starts`, `[B, n]`, 1 where a word begins: without it, that is
    where a label stands, or where there are none, everywhere but at padding.
    """
    return _with_crf(MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING[type(config)])


@cache
def _with_crf(tagger: Any) -> Any:
    class Tagger(tagger):  # type: ignore[misc]
        __doc__ = f"{tagger.__name__} with a CRF over its scores."

        def __init__(self, config: PreTrainedConfig, *args: Any, **kwargs: Any) -> None:
            super().__init__(config, *args, **kwargs)
            self.crf = LinearChainCrf(config)

        def forward(
            self, input_ids: Tensor, word_starts: Tensor | None = None, labels: Tensor | None = None, **inputs: Any
        ) -> TagOutput:
            scored = super().forward(input_ids=input_ids, **inputs)
            mask = inputs.get("attention_mask")
            real = torch.ones_like(input_ids) if mask is None else mask
            output: TagOutput = self.crf(scored.logits, where_words_begin(word_starts, labels, real), labels)
            output.hidden_states, output.attentions = scored.hidden_states, scored.attentions
            return output

        def _init_weights(self, module: nn.Module) -> None:
            if not drew_scores(module):
                super()._init_weights(module)

    # The Trainer asks the signature what a model reads, and takes **kwargs for a loss that is scaled by itself.
    known = inspect.signature(tagger.forward).parameters.values()
    named = [each for each in known if each.kind is not inspect.Parameter.VAR_KEYWORD]
    word_starts = inspect.Parameter(WORD_STARTS, inspect.Parameter.KEYWORD_ONLY, default=None)
    Tagger.forward.__signature__ = inspect.Signature([*named, word_starts])  # type: ignore[attr-defined]
    Tagger.__name__ = Tagger.__qualname__ = f"{tagger.__name__}WithCrf"
    return Tagger


def where_words_begin(word_starts: Tensor | None, labels: Tensor | None, real: Tensor) -> Tensor:
    """Return `[B, n]` bool by what is known, each `[B, n]`: what is said, where a label stands, or every real token."""
    if word_starts is not None:
        return word_starts.bool() & real.bool()
    return real.bool() if labels is None else labels != IGNORED
