"""A captioner: an LSTM decoder that attends to the cells of a picture (Xu et al. 2015)."""

from typing import Any

import torch
from huggingface_hub.dataclasses import strict
from torch import Tensor, nn
from transformers import AutoModelForImageTextToText
from transformers.modeling_outputs import Seq2SeqLMOutput

from alignattn.models import MODEL_TYPE_PREFIX
from alignattn.models.build import BuildContext, BuiltModel, EmbeddingsReport, build_model, checked_fields
from alignattn.models.sequence.lstm import LstmGenerator, LstmGeneratorConfig, Memory
from alignattn.models.sequence.model import build_sequence_tokenizer, longest_output
from alignattn.models.vqa import PictureGrid
from alignattn.tasks import ImageToText
from alignattn.tasks.sequence_to_sequence import SPECIAL, units_of
from alignattn.tasks.vqa.images import COLOURS, colour_moments


@strict
class CaptionerConfig(LstmGeneratorConfig):
    """The sizes.

    Args:
        conv_channels: channels of each convolution; each halves the sides of a picture, and the last returns the cells.
        pixel_mean: mean of each colour of the training pictures.
        pixel_deviation: standard deviation of each colour.
    """

    model_type = MODEL_TYPE_PREFIX + "captioner"

    embedding_dim: int = 64
    hidden_dim: int = 128
    conv_channels: list[int] | tuple[int, ...] = (16, 32, 64)
    pixel_mean: list[float] | tuple[float, ...] = (0.0,) * COLOURS
    pixel_deviation: list[float] | tuple[float, ...] = (1.0,) * COLOURS


class Captioner(LstmGenerator):
    """Convolutions turn a picture into cells; an LSTM decoder attends to them and starts from their mean."""

    auto_class = AutoModelForImageTextToText
    config_class = CaptionerConfig
    config: CaptionerConfig
    main_input_name = "image"
    reads_words = False

    def __init__(self, config: CaptionerConfig) -> None:
        super().__init__(config)
        size = config.hidden_dim
        self.encoder = PictureGrid(config.conv_channels, size, config.pixel_mean, config.pixel_deviation)
        self.bridge = nn.Linear(size, size)
        self.post_init()  # type: ignore[no-untyped-call]

    @classmethod
    def build(cls, context: BuildContext) -> BuiltModel:
        """Return an untrained model for the words of the captions and the colours of the pictures."""
        task, fields = context.task, checked_fields(context.config_fields, cls.config_class)
        assert isinstance(task, ImageToText)
        targets = [units_of(texts[0], task.target_units) for texts in context.rows[task.target_column]]
        tokenizer, num_words = build_sequence_tokenizer([], targets, task.target_units)
        mean, deviation = colour_moments(context.rows[task.source_column], task.image_size)
        fields = {"longest_output": longest_output(targets)} | fields
        fields |= {"vocab_size": num_words, "target_vocab_size": num_words}
        fields |= {"pixel_mean": mean, "pixel_deviation": deviation}
        report = EmbeddingsReport(None, num_words - len(SPECIAL), 0)
        return BuiltModel(build_model(cls, fields, context.seed), tokenizer, report)

    # No **kwargs: otherwise the Trainer would not divide the loss by the accumulation steps.
    def forward(self, image: Tensor, labels: Tensor, choices: Tensor | None = None) -> Seq2SeqLMOutput:
        """Compute the loss and logits of captions `[B, T]` of pictures `[B, 3, height, width]`; see `forward_from`."""
        return self.forward_from(self.read_image(image), labels, choices)

    @torch.no_grad()
    def generate(  # type: ignore[override]
        self, image: Tensor, *, num_beams: int = 1, max_length: int | None = None
    ) -> tuple[Tensor, Tensor]:
        """Generate captions of pictures, as `SequenceModel.generate`."""
        return self.generate_from(self.read_image(image), num_beams, max_length)

    def read_image(self, image: Tensor) -> Memory:
        """Return the cells of pictures."""
        cells = self.dropout(self.encoder(image))
        mask = torch.ones(cells.shape[:2], dtype=torch.bool, device=cells.device)
        first = torch.tanh(self.bridge(cells.mean(dim=1)))
        spent: Any = torch.zeros_like(cells[:, None, None, :, 0])
        return Memory(cells, mask, self.attention.key_projection(cells), first, spent)
