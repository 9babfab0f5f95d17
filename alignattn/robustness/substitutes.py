"""Replacements of parts of TextAttack's recipes: the same rules with other resources, or faster.

Importing this module imports TextAttack; `recipes` imports it to build an attack.
"""

import string
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from nltk.corpus import wordnet
from nltk.tag import PerceptronTagger, map_tag
from numpy.typing import NDArray
from torch import Tensor

from alignattn.robustness.library import load_textattack
from alignattn.robustness.models import CachedEncoder, MeanPooling, ModelInputs, longest_input
from alignattn.utils.errors import AlignAttnError

load_textattack()

from textattack.constraints import Constraint, PreTransformationConstraint  # noqa: E402
from textattack.constraints.grammaticality import PartOfSpeech  # noqa: E402
from textattack.constraints.semantics.sentence_encoders import SentenceEncoder  # noqa: E402
from textattack.shared import AbstractWordEmbedding, AttackedText, WordEmbedding  # noqa: E402
from textattack.shared.utils import (  # noqa: E402
    check_if_punctuations,
    check_if_subword,
    is_one_word,
    strip_BPE_artifacts,
)
from textattack.transformations import WordSwapHomoglyphSwap, WordSwapMaskedLM  # noqa: E402

TOKEN_MARKS = {"##": "bert", "Ġ": "roberta"}
"""The mark of word pieces in a vocabulary, and the model type whose rule TextAttack applies to them."""


class CandidateLists(AbstractWordEmbedding):
    """Candidates of each word without vectors, for `WordSwapEmbedding`; a word is its own index.

    Args:
        candidates: maps a lower-case word to its candidates, best first.
    """

    def __init__(self, candidates: Callable[[str], Sequence[str]]) -> None:
        self._candidates = candidates

    def word2index(self, word: str) -> str:
        """Return the word."""
        return word

    def index2word(self, index: str) -> str:
        """Return the word."""
        return index

    def nearest_neighbours(self, index: str, topn: int) -> list[str]:
        """Return at most `topn` candidates, best first."""
        return list(self._candidates(index)[:topn])

    def __getitem__(self, index: str) -> None:
        """Return None: there are no vectors."""
        return

    def get_mse_dist(self, a: str, b: str) -> float:
        """Raise: there are no vectors."""
        raise NotImplementedError("candidate lists hold no distances")

    def get_cos_sim(self, a: str, b: str) -> float:
        """Raise: there are no vectors."""
        raise NotImplementedError("candidate lists hold no distances")


def wordnet_synonyms(word: str) -> list[str]:
    """Return the single words that share a synset with `word`, those of its more frequent senses first."""
    names = (name for synset in wordnet.synsets(word) for name in synset.lemma_names())
    return list(dict.fromkeys(name for name in names if name.lower() != word and "_" not in name and is_one_word(name)))


class VectorEmbedding(WordEmbedding):
    """Vectors `[N, d]` of N words whose nearest neighbours are computed on demand, once.

    TextAttack's own class raises without a table of all neighbours.
    """

    def __init__(self, words: Sequence[str], vectors: NDArray[np.float32]) -> None:
        super().__init__(vectors, {word: index for index, word in enumerate(words)}, list(words))
        norms = np.linalg.norm(vectors, axis=1, keepdims=True)
        self._unit_vectors = torch.from_numpy(vectors / np.maximum(norms, np.finfo(np.float32).tiny))

    def nearest_neighbours(self, index: int, topn: int) -> list[int]:
        """Return the `topn` words of the largest cosine with word `index`, nearest first, without itself."""
        if (index, topn) not in self._nn_cache:
            cosines = self._unit_vectors @ self._unit_vectors[index]
            cosines[index] = -torch.inf
            self._nn_cache[index, topn] = cosines.topk(min(topn, len(cosines) - 1)).indices.tolist()
        neighbors: list[int] = self._nn_cache[index, topn]
        return neighbors

    def get_cos_sim(self, a: int, b: int) -> float:
        """Return the cosine of two words."""
        return float(self._unit_vectors[a] @ self._unit_vectors[b])


class SentenceSimilarity(SentenceEncoder):
    """The recipes' sentence similarity with any encoder; the arguments are those of `UniversalSentenceEncoder`.

    If the recipe skips texts shorter than its window, they are not encoded; TextAttack encodes them and then sets the
    score to 1.
    """

    def __init__(
        self,
        encoder: CachedEncoder | MeanPooling,
        threshold: float = 0.8,
        large: bool = False,
        metric: str = "angular",
        **kwargs: Any,
    ) -> None:
        super().__init__(threshold=threshold, metric=metric, **kwargs)
        self.model = encoder

    def encode(self, sentences: Sequence[str]) -> Tensor:
        """Return `[N, d]` for N sentences."""
        return self.model.encode(sentences)

    def clear_cache(self) -> None:
        """Remove the vectors; TextAttack calls this on each constraint after an attack."""
        self.model.clear_cache()

    def _score_list(self, starting_text: AttackedText, transformed_texts: Sequence[AttackedText]) -> Tensor:
        scores = torch.ones(len(transformed_texts))
        shortest = self.window_size if self.skip_text_shorter_than_window else 0
        rows = [row for row, text in enumerate(transformed_texts) if len(text.words) >= shortest]
        if rows:
            scores[rows] = super()._score_list(starting_text, [transformed_texts[row] for row in rows])
        return scores


class LoadedPartOfSpeech(PartOfSpeech):
    """TextAttack's constraint with NLTK's tagger loaded once: `nltk.pos_tag` reads its weights at every call."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._tagger = PerceptronTagger()

    def _get_pos(self, before_ctx: list[str], word: str, after_ctx: list[str]) -> str:
        words = [*before_ctx, word, *after_ctx]
        key = " ".join(words)
        if key not in self._pos_tag_cache:
            tags = [map_tag("en-ptb", self.tagset, tag) for _, tag in self._tagger.tag(words)]
            self._pos_tag_cache[key] = (tuple(words), tuple(tags))
        tag: str = super()._get_pos(before_ctx, word, after_ctx)
        return tag


class HomoglyphSwap(WordSwapHomoglyphSwap):
    """TextAttack's swap without a file that the wheel of 0.3.11 lacks and only another recipe needs."""

    def __init__(self, **kwargs: Any) -> None:
        try:
            super().__init__(**kwargs)
        except FileNotFoundError:
            self.homos_intentional: dict[str, list[str]] = {}


class PaddedToLongest(WordSwapMaskedLM):
    """TextAttack's BAE swap with batches for the device, padded to their longest text, and only the mask's logits."""

    def __init__(self, masked_language_model: Any, tokenizer: Any, **kwargs: Any) -> None:
        super().__init__(masked_language_model=masked_language_model, tokenizer=tokenizer, **kwargs)
        self.max_length: int = min(self.max_length, longest_input(masked_language_model, tokenizer))
        self._token_rule = _token_rule(tokenizer)
        self._words: dict[tuple[int, bool], str | None] = {}

    @torch.inference_mode()
    def _bae_replacement_words(self, current_text: AttackedText, indices_to_modify: Iterable[int]) -> list[list[str]]:
        mask = self._lm_tokenizer.mask_token
        texts = [current_text.replace_word_at_index(index, mask).text for index in indices_to_modify]
        # A truncated mask token has no candidates.
        words: list[list[str]] = [[] for _ in texts]
        if not texts:
            return words
        inputs = ModelInputs.of(self._lm_tokenizer, [texts], self.max_length)
        for rows, batch in inputs.batches(self._language_model.device):
            is_mask = batch["input_ids"] == self._lm_tokenizer.mask_token_id
            is_first_mask = is_mask & (is_mask.cumsum(dim=1) == 1)
            features = {name: values for name, values in batch.items() if name in self._lm_tokenizer.model_input_names}
            logits = self._mask_logits(features, is_first_mask)
            masked, positions = (indices.tolist() for indices in is_first_mask.nonzero(as_tuple=True))
            probabilities = logits.float().softmax(dim=-1).cpu()
            for row, position, values in zip(rows[masked].tolist(), positions, probabilities, strict=True):
                for probability, token in _ranked(values):
                    if len(words[row]) == self.max_candidates or probability < self.min_confidence:
                        break
                    if (word := self._word(token, is_first=position == 1)) is not None:
                        words[row].append(word)
        return words

    def _mask_logits(self, features: dict[str, Tensor], is_mask: Tensor) -> Tensor:
        """Return the logits `[M, vocabulary]` of the M tokens of a batch where `is_mask`, `[B, n]`, is true.

        The head sees each token by itself. Applied to all of them, it would take most of the time.
        """

        def select(_module: Any, _args: Any, output: Any) -> Any:
            output.last_hidden_state = output.last_hidden_state[is_mask][None]
            return output

        hook = self._language_model.base_model.register_forward_hook(select)
        try:
            logits: Tensor = self._language_model(**features).logits[0]
        finally:
            hook.remove()
        return logits

    def _word(self, token: int, is_first: bool) -> str | None:
        """Return the word of a token, or None if the token is not a word."""
        key = (token, is_first)
        if key not in self._words:
            word = self._lm_tokenizer.convert_ids_to_tokens(token)
            if check_if_subword(word, self._token_rule, is_first):
                word = strip_BPE_artifacts(word, self._token_rule)
            self._words[key] = word if is_one_word(word) and not check_if_punctuations(word) else None
        return self._words[key]


def _ranked(values: Tensor) -> Iterator[tuple[float, int]]:
    """Yield values `[V]` and their indices, the largest value first, and the first index first among equal values."""
    # BAE keeps at most 50 words and skips word pieces, so 128 tokens mostly suffice. Sorting the whole vocabulary
    # and converting it to Python costs 20 times as much.
    least = values.topk(min(128, len(values))).values[-1]
    for is_next in (values >= least, values < least):
        places = is_next.nonzero().squeeze(1)
        ranked = values[places].sort(descending=True, stable=True)
        yield from zip(ranked.values.tolist(), places[ranked.indices].tolist(), strict=True)


def _token_rule(tokenizer: Any) -> str:
    if tokenizer.mask_token is None:
        raise AlignAttnError("the --mlm model's tokenizer has no mask token: give a masked-language model")
    for mark, model_type in TOKEN_MARKS.items():
        if any(token.startswith(mark) and token.strip(mark + string.punctuation) for token in tokenizer.get_vocab()):
            return model_type
    raise AlignAttnError(
        f"the --mlm model's tokens use none of the marks {' '.join(TOKEN_MARKS)} of TextAttack's BAE: give a "
        "BERT-like or RoBERTa-like masked-language model"
    )


class LeftOut(Constraint):
    """Replaces a constraint that needs missing resources, until it is removed from the built recipe."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(compare_against_original=True)

    def _check_constraint(self, transformed_text: AttackedText, reference_text: AttackedText) -> bool:
        return True


class OnlyColumns(PreTransformationConstraint):
    """Allows changes only in some columns of a text."""

    def __init__(self, columns: Iterable[str]) -> None:
        self.columns = frozenset(columns)

    def _get_modifiable_indices(self, current_text: AttackedText) -> set[int]:
        if not self.columns & set(current_text.column_labels):
            chosen, labels = " ".join(sorted(self.columns)), ", ".join(current_text.column_labels)
            raise AlignAttnError(f"--attack_columns {chosen}: the text has {labels}")
        indices: set[int] = set()
        start = 0
        for column, words in zip(current_text.column_labels, current_text.words_per_input, strict=True):
            if column in self.columns:
                indices.update(range(start, start + len(words)))
            start += len(words)
        return indices
