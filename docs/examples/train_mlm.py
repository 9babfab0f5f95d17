"""Train a masked-language model for `alignattn robustness --mlm`, which BAE asks for words. It needs no network.

    python docs/examples/train_mlm.py --model minilm --train_file texts.txt --output_dir mlm

An encoder that was saved without a masked-language head gets a new one with tied embeddings. The loss is that of Devlin
et al. 2019 (BERT), section 3.1, task 1. The options are those of `transformers.TrainingArguments`, and these:
--model, --train_file (one text per line), --max_length and --mlm_probability.
"""

from dataclasses import dataclass
from pathlib import Path

import torch
from datasets import Dataset
from transformers import (
    AutoModelForMaskedLM,
    AutoTokenizer,
    DataCollatorForLanguageModeling,
    HfArgumentParser,
    Trainer,
    TrainingArguments,
    set_seed,
)

from alignattn.models.packaged import model_source


@dataclass
class Options:
    """The options of this script."""

    model: str
    train_file: str
    max_length: int = 64
    mlm_probability: float = 0.15


options, training = HfArgumentParser((Options, TrainingArguments)).parse_args_into_dataclasses()
# Distinct, so that no held-out text is also trained on.
lines = Path(options.train_file).read_text(encoding="utf-8").split("\n")
texts = list(dict.fromkeys(line.strip() for line in lines if line.strip()))

set_seed(training.seed)
tokenizer = AutoTokenizer.from_pretrained(model_source(options.model))
# Otherwise a checkpoint in half precision would be trained in half precision.
model = AutoModelForMaskedLM.from_pretrained(model_source(options.model), dtype=torch.float32)
encoded = Dataset.from_dict(
    dict(tokenizer(texts, truncation=True, max_length=options.max_length, return_special_tokens_mask=True))
)
parts = encoded.train_test_split(test_size=0.05, seed=training.seed)
training.remove_unused_columns = False  # the collator needs the mask of special tokens


def predicted(logits: torch.Tensor, _labels: torch.Tensor) -> torch.Tensor:
    """Return the most probable tokens `[B, n]`: the logits of all held-out texts would fill the memory."""
    return logits.argmax(dim=-1)


def masked_accuracy(result) -> dict[str, float]:
    """Return the share of masked tokens that are predicted correctly."""
    is_masked = result.label_ids != -100
    return {"masked_accuracy": float((result.predictions == result.label_ids)[is_masked].mean())}


trainer = Trainer(
    model,
    training,
    train_dataset=parts["train"],
    eval_dataset=parts["test"],
    data_collator=DataCollatorForLanguageModeling(tokenizer, mlm_probability=options.mlm_probability),
    processing_class=tokenizer,
    compute_metrics=masked_accuracy,
    preprocess_logits_for_metrics=predicted,
)
trainer.train(resume_from_checkpoint=training.resume_from_checkpoint)
trainer.save_model()
accuracy = trainer.evaluate()["eval_masked_accuracy"]
print(f"masked accuracy on {len(parts['test'])} held-out texts: {accuracy:.1%}; give it as --mlm {training.output_dir}")
