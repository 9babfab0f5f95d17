"""MCAN, the deep modular co-attention network for questions about images (Yu et al. 2019)."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from huggingface_hub.dataclasses import strict
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import AutoModelForVisualQuestionAnswering
from transformers import initialization as init
from transformers.modeling_outputs import SequenceClassifierOutput

from alignattn.attention.masks import CrossMask
from alignattn.models import MODEL_TYPE_PREFIX
from alignattn.models.build import BuildContext, BuiltModel, build_word_model
from alignattn.models.layers import GuidedAttentionUnit, SelfAttentionUnit, masked_softmax
from alignattn.models.word_model import WordModel, WordModelConfig, take_words
from alignattn.tasks import VisualQuestionAnswering
from alignattn.tasks.names import IMAGE, QUESTION
from alignattn.tasks.vqa.images import COLOURS, PICTURE_DIMS, REGION_DIMS, colour_moments
from alignattn.utils.errors import AlignAttnError

Sides = tuple[str, str]
"""The modalities of queries and of keys in an attention call."""
WORDS, REGIONS = "words", "regions"


@dataclass(frozen=True)
class Tokens:
    """Words or regions, and their mask.

    Attributes:
        states: `[B, n, size]`.
        mask: `[B, n]` bool, True = a real one; None = all are.
    """

    states: Tensor
    mask: Tensor | None

    @property
    def pairs(self) -> Tensor | None:
        """The self-attention mask `[B, 1, n, n]`, bool, True = may attend; None = all may."""
        if self.mask is None:
            return None
        # Expanded, because its diagonal marks the real tokens.
        return self.mask[:, None, None, :].expand(-1, 1, self.mask.shape[1], -1)


class CoAttention(nn.Module):
    """The co-attention encoder-decoder: L SA units on words, then L SGA units on regions (§3.2, figure 5b)."""

    def __init__(self, size: int, num_heads: int, num_layers: int, dropout: float) -> None:
        super().__init__()
        units = (size, num_heads, dropout)
        self.encoder = nn.ModuleList(SelfAttentionUnit(*units) for _ in range(num_layers))
        self.decoder = nn.ModuleList(GuidedAttentionUnit(*units) for _ in range(num_layers))

    @property
    def attention_sides(self) -> tuple[Sides, ...]:
        """The modalities of each attention call of a forward, in order."""
        of_words, of_regions = (WORDS, WORDS), ((REGIONS, REGIONS), (REGIONS, WORDS))
        return (*(of_words for _ in self.encoder), *(sides for _ in self.decoder for sides in of_regions))

    def forward(self, words: Tokens, regions: Tokens) -> tuple[Tensor, Tensor]:
        """Return the states of words and of regions, shaped like the inputs."""
        question, image = words.states, regions.states
        # Made once: the alignment recognises by identity that all layers share these masks.
        of_words, of_regions, across = words.pairs, regions.pairs, CrossMask(regions.mask, words.mask)
        for unit in self.encoder:
            question = unit(question, of_words)
        for unit in self.decoder:
            image = unit(image, of_regions, question, across)
        return question, image


class AttentionReduction(nn.Module):
    """The mean of the tokens with weights softmax(MLP(x)), projected to one vector (§3.3, eqs. 9 and 10).

    A pooling without slots, because it has neither queries nor keys.

    Args:
        size: size of the states.
        inner: size of the MLP's hidden layer.
        out: size of the vector.
        dropout: dropout in the hidden layer.
    """

    def __init__(self, size: int, inner: int, out: int, dropout: float) -> None:
        super().__init__()
        self.inner = nn.Linear(size, inner)
        self.weigh = nn.Linear(inner, 1)
        self.dropout = nn.Dropout(dropout)
        self.merge = nn.Linear(size, out)

    def forward(self, tokens: Tokens) -> Tensor:
        """Return `[B, out]`."""
        return self.merge((self.weights(tokens)[:, None] @ tokens.states)[:, 0])

    def weights(self, tokens: Tokens) -> Tensor:
        """Return the weights of the tokens, `[B, n]`; 0 for padding."""
        scores = self.weigh(self.dropout(self.inner(tokens.states).relu()))[..., 0]
        return scores.softmax(dim=-1) if tokens.mask is None else masked_softmax(scores, tokens.mask)


NORM_GROUPS = 8
"""Group normalisation (Wu & He 2018) does not depend on the batch size."""
KERNEL, STRIDE = 3, 2


@strict
class McanConfig(WordModelConfig):
    """The sizes of Yu et al. 2019, §4.2: MCAN with 6 layers.

    Args:
        hidden_dim: size of the states of words and regions.
        num_attention_heads: heads of each attention.
        num_hidden_layers: units of words, and of regions.
        reduction_dim: size of the hidden layer of the attention reduction.
        joint_dim: size of the vector that is classified.
        feature_width: number of features of a region; 0 for pictures.
        conv_channels: channels of each convolution; each halves the sides of a picture, and the last returns the
            regions.
        pixel_mean: mean of each colour of the training pictures.
        pixel_deviation: standard deviation of each colour.
    """

    model_type = MODEL_TYPE_PREFIX + "mcan"

    hidden_dim: int = 512
    num_attention_heads: int = 8
    num_hidden_layers: int = 6
    reduction_dim: int = 512
    joint_dim: int = 1024
    dropout: float = 0.1
    feature_width: int = 0
    conv_channels: list[int] | tuple[int, ...] = (16, 32, 64, 64)
    pixel_mean: list[float] | tuple[float, ...] = (0.0,) * COLOURS
    pixel_deviation: list[float] | tuple[float, ...] = (1.0,) * COLOURS


class PictureGrid(nn.Module):
    """Convolutions that turn a picture, standardised by colour, into a grid of cells; trained with the model.

    Args:
        channels: channels of each convolution.
        out: size of a cell's state.
        mean: mean of each colour.
        deviation: standard deviation of each colour.

    Raises:
        ValueError: if there are no channels, or no multiples of 8, the number of groups of a normalisation.
    """

    def __init__(self, channels: Sequence[int], out: int, mean: Sequence[float], deviation: Sequence[float]) -> None:
        super().__init__()
        if not channels or any(size % NORM_GROUPS for size in channels):
            raise ValueError(f"conv_channels {list(channels)} must be multiples of {NORM_GROUPS}")
        self.moments = (tuple(mean), tuple(deviation))
        sizes = [COLOURS, *channels]
        layers: list[nn.Module] = []
        for size, following in pairwise(sizes):
            layers += [nn.Conv2d(size, following, KERNEL, STRIDE, padding=KERNEL // 2, bias=False)]
            layers += [nn.GroupNorm(NORM_GROUPS, following), nn.ReLU()]
        self.layers = nn.Sequential(*layers)
        self.project = nn.Linear(sizes[-1], out)

    def forward(self, pictures: Tensor) -> Tensor:
        """Return the cells, `[B, rows · columns, out]`, of pictures `[B, 3, height, width]` with values from 0 to 1."""
        mean, deviation = (pictures.new_tensor(moment)[:, None, None] for moment in self.moments)
        cells = self.layers((pictures - mean) / deviation)
        return self.project(cells.flatten(2).transpose(1, 2))


class McanForVisualQuestionAnswering(WordModel):
    """Co-attention of words and regions; each side is reduced to a vector, and their sum is classified (figure 4)."""

    config_class = McanConfig
    auto_class = AutoModelForVisualQuestionAnswering
    config: McanConfig

    def __init__(self, config: McanConfig) -> None:
        super().__init__(config)
        assert config.num_labels is not None
        size = config.hidden_dim
        self.lstm = nn.LSTM(config.embedding_dim, size, batch_first=True)
        self.image: nn.Module = (
            nn.Linear(config.feature_width, size)
            if config.feature_width
            else PictureGrid(config.conv_channels, size, config.pixel_mean, config.pixel_deviation)
        )
        self.co_attention = CoAttention(size, config.num_attention_heads, config.num_hidden_layers, config.dropout)
        reduction = (size, config.reduction_dim, config.joint_dim, config.dropout)
        self.reduce_words = AttentionReduction(*reduction)
        self.reduce_regions = AttentionReduction(*reduction)
        self.norm = nn.LayerNorm(config.joint_dim)
        self.classifier = nn.Linear(config.joint_dim, config.num_labels)
        self.post_init()  # type: ignore[no-untyped-call]

    @classmethod
    def build(cls, context: BuildContext) -> BuiltModel:
        """Return an untrained model for the words of the questions and the images of the task."""
        task = context.task
        assert isinstance(task, VisualQuestionAnswering)
        of_data: dict[str, Any] = {"feature_width": task.feature_width}
        if not task.reads_features:
            mean, deviation = colour_moments(context.rows.unique(IMAGE), task.image_size)
            of_data |= {"pixel_mean": mean, "pixel_deviation": deviation}
        return build_word_model(
            cls, context.rows[QUESTION][:], context, num_labels=task.num_labels, of_data=lambda _: of_data
        )

    @property
    def attention_sides(self) -> tuple[Sides, ...]:
        """The modalities of each attention call, in the order of `layers` of an `AttentionConfig`."""
        return self.co_attention.attention_sides

    # No **kwargs: otherwise the Trainer would not divide the loss by the accumulation steps.
    def forward(
        self,
        input_ids: Tensor,
        image: Tensor,
        attention_mask: Tensor | None = None,
        image_mask: Tensor | None = None,
        answer_ids: Tensor | None = None,
        answer_scores: Tensor | None = None,
        labels: Tensor | None = None,
    ) -> SequenceClassifierOutput:
        """Answer questions about images.

        Args:
            input_ids: `[B, n]`, the words of the questions.
            image: `[B, 3, height, width]` from 0 to 1, or the features of regions `[B, boxes, feature_width]`.
            attention_mask: `[B, n]`, not 0 = a real word; None = all but `pad_token_id` are.
            image_mask: `[B, boxes]`, not 0 = a real region; None = all are.
            answer_ids: `[B, a]`, the classes of the human answers.
            answer_scores: `[B, a]`, the accuracy of each answer, from 0 to 1; 0 for padding.
            labels: `[B]`, integers; ignored if there are answer scores.

        Returns:
            `logits` `[B, num_labels]`, and `loss` if there are labels: the cross entropy, or with answer scores the
            binary cross entropy of every class (Yu et al. 2019, §3.3), summed over classes.

        Raises:
            AlignAttnError: if the model was built for other images.
        """
        width = self.config.feature_width
        if width and (image.dim() != REGION_DIMS or image.shape[2] != width):
            raise AlignAttnError(
                f"an image of {list(image.shape)} does not have the {width} features per region of this model"
            )
        if not width and (image.dim() != PICTURE_DIMS or image.shape[1] != COLOURS):
            raise AlignAttnError(f"an image of {list(image.shape)} must be [B, {COLOURS}, height, width]")
        # The LSTM reads in one direction: padding on the left would come first.
        ids, mask = take_words(input_ids, self.real_words(input_ids, attention_mask), self.config.pad_token_id)
        words = Tokens(self._read(ids), mask)
        regions = Tokens(self.image(image), None if image_mask is None else image_mask.bool())
        question, seen = self.co_attention(words, regions)
        joint = self.reduce_words(Tokens(question, words.mask)) + self.reduce_regions(Tokens(seen, regions.mask))
        logits = self.classifier(self.norm(joint))
        loss = None
        if labels is not None and answer_ids is not None and answer_scores is not None:
            # A padding answer has the score 0 and changes nothing.
            targets = torch.zeros_like(logits).scatter_add(1, answer_ids, answer_scores.to(logits.dtype))
            loss = F.binary_cross_entropy_with_logits(logits, targets, reduction="sum") / len(logits)
        elif labels is not None:
            loss = F.cross_entropy(logits, labels)
        return SequenceClassifierOutput(loss=loss, logits=logits)

    def _read(self, input_ids: Tensor) -> Tensor:
        # On a CPU, LSTMs have no kernel for some dtypes.
        with torch.autocast(input_ids.device.type, enabled=False):
            states: Tensor = self.lstm(self.embedding(input_ids))[0]
        return states

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, nn.Linear):
            init.xavier_uniform_(module.weight)
            init.zeros_(module.bias)
