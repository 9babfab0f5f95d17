"""A linear-chain conditional random field over the words of a text (Lafferty et al. 2001), by pytorch-crf."""

import inspect
from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from transformers import MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING, PreTrainedConfig
from transformers import initialization as init
from transformers.utils.generic import ModelOutput, can_return_tuple

from alignattn.models.word_model import to_the_front
from alignattn.tasks.tags.entities import BIO, may_follow
from alignattn.tasks.tags.tagging import IGNORED, WORD_STARTS
from alignattn.utils.errors import check_installed

CRF_FIELD = "crf_tags"
"""The config field of a model with a CRF: the `SchemeName` of its tags."""

FORBIDDEN = -1e30
"""Score of a forbidden transition: below any allowed path, and sums stay finite in float32."""

MIN_LOG = -100.0
"""Minimum log-probability; e^-100 is 0 in float32."""

FIRST_SCORES = 0.1
"""Bound of the uniform initial transition scores, as in pytorch-crf."""


@dataclass
class TagOutput(ModelOutput):
    """The output of a model with a CRF.

    Attributes:
        loss: negative log-likelihood of the labels, mean over words; None without labels.
        logits: `[B, n, C]`, in evaluation the marginal log-probability of each tag over all legal sequences (0 where no
            word begins), so that softmax returns the probabilities; in training the emission scores.
        tags: `[B, n]`, the most probable legal sequence, -100 where no word begins; None in training.
        hidden_states: as the encoder returns them.
        attentions: as the encoder returns them.
    """

    loss: Tensor | None = None
    logits: Tensor | None = None
    tags: Tensor | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None


class LinearChainCrf(nn.Module):
    """A distribution over sequences of tags.

        p(y | x) ∝ exp(s(y_1) + Σ_i e_i(y_i) + Σ_i t(y_(i-1), y_i) + f(y_m))

    with emissions e of an encoder, and learned transitions t, starts s and ends f. Training allows transitions that BIO
    forbids, so that a row with a mistake has a likelihood; prediction does not allow them.

    Args:
        config: the model's config, with the names of the tags and `CRF_FIELD`.

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
        """Return the loss with the emissions (training) or with the decoded tags (evaluation).

        Args:
            emissions: `[B, n, C]`.
            words: `[B, n]` bool, True where a word begins; a text may have no word.
            labels: `[B, n]`, the number of each word's tag, -100 where no word begins.
        """
        # Half precision is too coarse for sums over a text.
        emissions = emissions.to(torch.promote_types(emissions.dtype, torch.float32))
        loss = None if labels is None else self.negative_log_likelihood(emissions, labels)
        if self.training:
            return TagOutput(loss=loss, logits=emissions)
        return TagOutput(loss, *self.decode(emissions, words))

    def negative_log_likelihood(self, emissions: Tensor, labels: Tensor) -> Tensor:
        """Return -log p(y | x) per word, a scalar; 0 without words. Arguments as for `forward`.

        It is a mean over words like a cross-entropy of tags, so that learning rates and the alignment's weight keep
        their meaning, and accumulated batches are weighted by their number of words.
        """
        order, mask = to_the_front(labels != IGNORED)
        gathered, tags = _at(emissions, order), labels.gather(1, order).masked_fill(~mask, 0)
        has_words = mask.any(dim=1)
        # pytorch-crf adds in place to its own scores, so the sums have their type.
        scores = {name: own.to(gathered.dtype) for name, own in self.chain.named_parameters()}
        # It rejects a text without words.
        inputs = (gathered, tags, _with_a_word(mask))
        likelihoods = functional_call(self.chain, scores, inputs, {"reduction": "none"})
        return -(likelihoods * has_words).sum() / mask.sum().clamp(min=1)

    def decode(self, emissions: Tensor, words: Tensor) -> tuple[Tensor, Tensor]:
        """Return `logits` and `tags` of `TagOutput`; arguments as for `forward`."""
        order, mask = to_the_front(words)
        gathered, is_read = _at(emissions, order), _with_a_word(mask)
        chain = deepcopy(self.chain).to(emissions.dtype)
        forbidden = torch.tensor(self._forbidden, device=emissions.device)
        chain.start_transitions.data.masked_fill_(forbidden[0], FORBIDDEN)
        chain.transitions.data.masked_fill_(forbidden[1:], FORBIDDEN)
        logs = _log_marginals(chain, gathered, is_read).masked_fill(~mask[..., None], 0.0)
        paths = [torch.tensor(path, device=emissions.device) for path in chain.decode(gathered, is_read)]
        found = nn.utils.rnn.pad_sequence(paths, batch_first=True).masked_fill(~mask, IGNORED)
        tags = torch.full(words.shape, IGNORED, device=words.device).scatter(1, order, found)
        return torch.zeros_like(emissions).scatter(1, _wide(order, emissions), logs), tags


def _chain_class() -> Any:
    check_installed("torchcrf", "crf", "a CRF")
    from torchcrf import CRF

    return CRF


def init_crf(module: nn.Module) -> bool:
    """Initialise the scores of a chain that transformers has not loaded; return whether the module is a chain."""
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
        chain: has the scores of starts, transitions and ends.
        emissions: `[B, m, C]`.
        mask: `[B, m]` bool, right-padded; each text has a word.
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
    return both.log_softmax(dim=-1).clamp(min=MIN_LOG)


def tagger_with_crf(config: PreTrainedConfig) -> Any:
    """Return transformers' tagger class for a config, with a CRF over the scores of each word's first piece.

    Its forward accepts the tagger's arguments, and by keyword `word_starts`, `[B, n]`, 1 where a word begins. Without
    it, words begin at the labels, or without labels at every real token.
    """
    return _with_crf(MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING[type(config)])


@cache
def _with_crf(tagger: Any) -> Any:
    signature = inspect.signature(tagger.forward)

    class Tagger(tagger):  # type: ignore[misc]
        __doc__ = f"{tagger.__name__} with a CRF over its scores."

        def __init__(self, config: PreTrainedConfig, *args: Any, **kwargs: Any) -> None:
            super().__init__(config, *args, **kwargs)
            self.crf = LinearChainCrf(config)

        @can_return_tuple  # type: ignore[untyped-decorator]
        def forward(self, *args: Any, word_starts: Tensor | None = None, **kwargs: Any) -> TagOutput:
            inputs = signature.bind(self, *args, **kwargs)
            labels, mask = inputs.arguments.pop("labels", None), inputs.arguments.get("attention_mask")
            scored = super().forward(*inputs.args[1:], **inputs.kwargs, return_dict=True)
            real = torch.ones_like(scored.logits[..., 0]) if mask is None else mask
            output: TagOutput = self.crf(scored.logits, where_words_begin(word_starts, labels, real), labels)
            output.hidden_states, output.attentions = scored.hidden_states, scored.attentions
            return output

        def _init_weights(self, module: nn.Module) -> None:
            if not init_crf(module):
                super()._init_weights(module)

    # The Trainer reads the inputs from the signature; with **kwargs it assumes that the loss scales itself.
    named = [each for each in signature.parameters.values() if each.kind is not inspect.Parameter.VAR_KEYWORD]
    word_starts = inspect.Parameter(WORD_STARTS, inspect.Parameter.KEYWORD_ONLY, default=None)
    Tagger.forward.__signature__ = inspect.Signature([*named, word_starts])
    Tagger.__name__ = Tagger.__qualname__ = f"{tagger.__name__}WithCrf"
    return Tagger


def where_words_begin(word_starts: Tensor | None, labels: Tensor | None, real: Tensor) -> Tensor:
    """Return `[B, n]` bool: `word_starts` if given, else the positions of labels, else every real token."""
    if word_starts is not None:
        return word_starts.bool() & real.bool()
    return real.bool() if labels is None else labels != IGNORED
