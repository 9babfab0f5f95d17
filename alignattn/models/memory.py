"""An end-to-end memory network (Sukhbaatar et al. 2015): a question attends to a story's sentences, hop by hop."""

from collections.abc import Sequence
from itertools import chain
from typing import Any, ClassVar

import torch
from huggingface_hub.dataclasses import strict
from torch import Tensor, nn
from transformers import AutoModelForSequenceClassification, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerFast
from transformers import initialization as init
from transformers.modeling_outputs import SequenceClassifierOutput

from alignattn.attention.attend import attend
from alignattn.attention.masks import CrossMask
from alignattn.models import MODEL_TYPE_PREFIX
from alignattn.models.build import BuildContext, BuiltModel, build_word_model
from alignattn.models.sentence_pairs import split_pair
from alignattn.models.text_classifiers import SENTENCE_ENDS, sentence_of_words
from alignattn.models.word_model import Sentences
from alignattn.tasks import TextClassification

ADJACENT, LAYER_WISE = "adjacent", "layer-wise"
MAX_HOPS = 3


@strict
class MemN2NConfig(PreTrainedConfig):
    """The sizes of a memory network, those of §4.2 where given.

    Args:
        vocab_size: number of words, padding and unknown included.
        embedding_dim: size d of a memory and of the state.
        hops: how often the memories are read, 1 to 3.
        tying: how embeddings are tied (§2.2). `adjacent`: a hop's values are the next hop's keys, the question uses the
            first keys, and the answers use the last values. `layer-wise`: all hops share keys and values.
        position_encoding: whether words are weighted by their place in the sentence (§4.1).
        temporal_encoding: whether a memory has an embedding of its age in sentences (§4.1).
        memory_size: number of latest sentences to keep.
        longest_sentence: maximum number of words of a sentence; longer ones are split.
        sentence_ends: ids of the words that end a sentence.
        ties_answers: whether the answers are words with the embeddings of the last values.
        answer_words: ids of the answers, in the order of the labels.
        pad_token_id: the padding word.
    """

    model_type = MODEL_TYPE_PREFIX + "memn2n"

    vocab_size: int = 2
    embedding_dim: int = 20
    hops: int = 3
    tying: str = ADJACENT
    position_encoding: bool = True
    temporal_encoding: bool = True
    memory_size: int = 50
    longest_sentence: int = 64
    sentence_ends: list[int] | tuple[int, ...] = ()
    ties_answers: bool = False
    answer_words: list[int] | tuple[int, ...] = ()
    pad_token_id: int = 0


class SentenceTable(nn.Module):
    """Sentences as vectors, Σ_j l_j ∗ E x_j + T_age (§4.1); a question has no age."""

    def __init__(self, config: MemN2NConfig, *, has_ages: bool = True) -> None:
        super().__init__()
        self.words = nn.Embedding(config.vocab_size, config.embedding_dim, padding_idx=config.pad_token_id)
        has_ages = has_ages and config.temporal_encoding
        self.ages = nn.Embedding(config.memory_size, config.embedding_dim) if has_ages else None
        self.weighs_positions = config.position_encoding
        self.out_features = config.embedding_dim

    def forward(self, ids: Tensor) -> Tensor:
        """Return memories `[B, m, d]` of words `[B, m, n]`, the latest sentence first and padding on the right."""
        memories = self.encoded(ids)
        return memories if self.ages is None else memories + self.ages.weight[: ids.shape[1]]

    def encoded(self, ids: Tensor) -> Tensor:
        """Return the vectors of sentences without their age, `[…, d]` of words `[…, n]`."""
        vectors: Tensor = self.words(ids)
        is_word = ids.ne(self.words.padding_idx or 0)
        if self.weighs_positions:
            vectors = vectors * position_weights(is_word, vectors.shape[-1]).to(vectors)
        return (vectors * is_word[..., None]).sum(dim=-2)


def position_weights(is_word: Tensor, dim: int) -> Tensor:
    """Return l_kj = (1 - j/J) - (k/d) (1 - 2 j/J) for word j of J and feature k of d, both from 1 (§4.1).

    Args:
        is_word: `[…, n]` bool, right-padded.
        dim: d.

    Returns:
        `[…, n, d]`.
    """
    places = torch.arange(1, is_word.shape[-1] + 1, device=is_word.device)
    part = (places / is_word.sum(dim=-1, keepdim=True).clamp(min=1))[..., None]
    features = torch.arange(1, dim + 1, device=is_word.device) / dim
    return (1 - part) - features * (1 - 2 * part)


def words_of_labels(tokenizer: PreTrainedTokenizerFast, labels: Sequence[str]) -> list[int]:
    """Return the ids of the labels if they are distinct single words of letters; otherwise an empty list."""
    ids = [tokenizer.encode(label) for label in labels]
    words = [of_label[0] for of_label in ids if len(of_label) == 1 and of_label[0] != tokenizer.unk_token_id]
    are_words = len(set(words)) == len(labels) and all(map(str.isalpha, tokenizer.convert_ids_to_tokens(words)))
    return words if are_words else []


class MemoryHop(nn.Module):
    """Attention of the state to memories, o = Σ_i softmax_i(u · m_i) c_i (eqs. 1 and 2); has the slots of pooling."""

    num_heads = 1
    pooling_query = None
    """The state is the query."""

    def __init__(self, table: SentenceTable) -> None:
        super().__init__()
        self.key_projection = table

    def forward(self, state: Tensor, ids: Tensor, values: Tensor, mask: Tensor) -> Tensor:
        """Return `[B, d]` for a state `[B, d]`, words `[B, m, n]`, values `[B, m, d]` and their mask `[B, m]`."""
        key = self.key_projection(ids)
        return attend(self, state[:, None, None], key[:, None], values[:, None], CrossMask(None, mask), scale=1.0)[
            :, 0, 0
        ]


class MemN2NForSequenceClassification(PreTrainedModel):
    """Answers a question about a story; each answer is a class."""

    auto_class: ClassVar[type[Any]] = AutoModelForSequenceClassification
    config_class = MemN2NConfig
    config: MemN2NConfig
    reads_pairs: ClassVar[bool] = True
    whole_words: ClassVar[bool] = False

    def __init__(self, config: MemN2NConfig) -> None:
        super().__init__(config)
        if config.tying not in (ADJACENT, LAYER_WISE) or not 1 <= config.hops <= MAX_HOPS:
            raise ValueError(
                f"hops {config.hops} and tying {config.tying!r} must be 1 to {MAX_HOPS}, and {ADJACENT} or {LAYER_WISE}"
            )
        assert config.num_labels is not None
        is_adjacent = config.tying == ADJACENT
        # A layer-wise network repeats one hop, as ALBERT repeats one layer.
        self.hops = nn.ModuleList(MemoryHop(SentenceTable(config)) for _ in range(config.hops if is_adjacent else 1))
        self.last_values = SentenceTable(config)
        self.question = None if is_adjacent else SentenceTable(config, has_ages=False)
        size = config.embedding_dim
        self.between = None if is_adjacent else nn.Linear(size, size, bias=False)
        self.classifier = None if config.ties_answers else nn.Linear(size, config.num_labels, bias=False)
        self.post_init()  # type: ignore[no-untyped-call]

    @classmethod
    def build(cls, context: BuildContext) -> BuiltModel:
        """Return an untrained model for the words of the rows; raises as `build_word_model` does."""
        task = context.task
        assert isinstance(task, TextClassification)
        is_adjacent = context.config_fields.get("tying", ADJACENT) == ADJACENT

        def of_data(tokenizer: PreTrainedTokenizerFast) -> dict[str, Any]:
            words = tokenizer.get_vocab()
            answers = words_of_labels(tokenizer, task.labels) if is_adjacent else []
            ends = [words[end] for end in SENTENCE_ENDS if end in words]
            return {"sentence_ends": ends, "ties_answers": bool(answers), "answer_words": answers}

        return build_word_model(
            cls,
            chain(task.labels, *(context.rows[column] for column in task.text_columns)),
            context,
            num_labels=task.num_labels,
            of_data=of_data,
        )

    # No **kwargs: otherwise the Trainer would not divide the loss by the accumulation steps.
    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        labels: Tensor | None = None,
    ) -> SequenceClassifierOutput:
        """Answer questions.

        Args:
            input_ids: `[B, n]`, the story and then the question.
            attention_mask: `[B, n]`, not 0 = a real word; None = all but `pad_token_id` are.
            token_type_ids: `[B, n]`, 0 = story, 1 = question; None = all words are the question.
            labels: as for transformers' classifiers.

        Returns:
            `logits` `[B, num_labels]`, and `loss` if there are labels.
        """
        pad = self.config.pad_token_id
        mask = input_ids != pad if attention_mask is None else attention_mask
        types = torch.ones_like(input_ids) if token_type_ids is None else token_type_ids
        story, question = split_pair(input_ids, mask, types, pad)
        logits = self.answered(self.memories(story), question.tokens)
        loss = None
        if labels is not None:
            loss = self.loss_function(labels=labels, pooled_logits=logits, config=self.config)
        return SequenceClassifierOutput(loss=loss, logits=logits)

    def memories(self, story: Sentences) -> Sentences:
        """Return the latest sentences of stories `[B, n]`, the last one first: words `[B, m, n']`, and their mask.

        An empty story has one empty sentence, because attention needs a key.
        """
        ids, is_word = story
        ends = torch.tensor(self.config.sentence_ends, device=ids.device, dtype=ids.dtype)
        number, place = sentence_of_words(torch.isin(ids, ends), self.config.longest_sentence)
        counts = number.masked_fill(~is_word, -1).amax(dim=1) + 1
        age = counts[:, None] - 1 - number
        kept = is_word & (age < self.config.memory_size)
        most = max(int(counts.clamp(max=self.config.memory_size).max()), 1)
        table = ids.new_full((len(ids), most, int(place.max()) + 1), self.config.pad_token_id)
        rows = torch.arange(len(ids), device=ids.device)[:, None].expand_as(ids)
        table = table.index_put((rows[kept], age[kept], place[kept]), ids[kept])
        return Sentences(table, torch.arange(most, device=ids.device) < counts.clamp(min=1)[:, None])

    def answered(self, memories: Sentences, question: Tensor) -> Tensor:
        """Return logits `[B, num_labels]` of memories, as from `memories`, and questions' words `[B, n]`."""
        ids, is_real = memories
        hops: list[Any] = list(self.hops)
        state = (hops[0].key_projection if self.question is None else self.question).encoded(question)
        for number in range(self.config.hops):
            hop = hops[number % len(hops)]
            is_last = number + 1 >= len(hops)
            values = (self.last_values if is_last else hops[number + 1].key_projection)(ids)
            carried = state if self.between is None else self.between(state)
            state = carried + hop(state, ids, values, is_real)
        if self.classifier is not None:
            return self.classifier(state)
        return state @ self.last_values.words.weight[list(self.config.answer_words)].mT

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, (nn.Linear, nn.Embedding)):
            init.normal_(module.weight, std=0.1)  # §4.2
        if isinstance(module, nn.Embedding) and module.padding_idx is not None:
            init.zeros_(module.weight[module.padding_idx])
