"""Training of a masked-language head on an encoder, for attacks that propose words in context.

The loss is that of Devlin et al. 2019 (BERT), section 3.1, task 1: 80 % of the masked tokens become the mask token,
10 % a random token, and 10 % stay.
"""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path

import datasets
import torch
from transformers import (
    AutoModelForMaskedLM,
    BatchEncoding,
    DataCollatorForLanguageModeling,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    TrainingArguments,
    set_seed,
)
from transformers.utils import CONFIG_NAME, SAFE_WEIGHTS_NAME

from alignattn.commands.robustness.masked_texts import (
    encode_texts,
    masked_batches,
    most_frequent_token,
    read_texts,
    split_texts,
)
from alignattn.commands.robustness.options import MaskedLanguageOptions
from alignattn.finetuning.results import RESULTS_FILE, device_name, package_versions
from alignattn.finetuning.resuming import check_checkpoint
from alignattn.finetuning.training_arguments import check_full_batch, training_arguments
from alignattn.models.lengths import most_tokens
from alignattn.patching.checkpoints import load_pretrained
from alignattn.robustness.encoders import CHECKPOINT
from alignattn.robustness.masked_head import masked_positions, masked_tokens_alone
from alignattn.training.arguments import refuse_data_parallel
from alignattn.training.saved_state import SavedState
from alignattn.training.trainer import AlignmentTrainer
from alignattn.utils.errors import AlignAttnError, one_line
from alignattn.utils.files import check_free, unfinished, write_json
from alignattn.utils.network import log_reports
from alignattn.utils.progress import counted


@dataclass(frozen=True)
class MaskedAccuracy:
    """The share of held-out masked tokens that are predicted correctly.

    Attributes:
        before: the share for the untrained head, or the model's own.
        after: the share for the trained model.
        most_frequent_token: the share for always predicting the most frequent token of the training texts.
    """

    before: float
    after: float
    most_frequent_token: float


@dataclass(frozen=True)
class MaskedLanguageResult:
    """The content of `results.json`.

    Attributes:
        model: the encoder as given.
        text: the files of texts.
        text_columns: the text columns of the tables.
        train_texts: number of distinct texts to train on.
        held_out_texts: number of distinct held-out texts.
        cut_texts: number of truncated texts.
        masked_tokens: number of held-out masked tokens.
        masked_accuracy: shares.
        most_frequent_token: the token itself.
        max_length: the maximum number of tokens per text.
        mlm_probability: share of the tokens that are masked.
        seed: the seed of the held-out choice, the head, the masks and the row order.
        training: epochs, steps, learning rate, texts per step and device, mean loss and seconds.
        versions: the versions of Python and the packages.
        device: the name of the device.
    """

    model: str
    text: Sequence[str]
    text_columns: Sequence[str] | None
    train_texts: int
    held_out_texts: int
    cut_texts: int
    masked_tokens: int
    masked_accuracy: MaskedAccuracy
    most_frequent_token: str
    max_length: int
    mlm_probability: float
    seed: int
    training: dict[str, float]
    versions: dict[str, str]
    device: str


def train_masked_language_model(arguments: MaskedLanguageOptions) -> MaskedLanguageResult:
    """Train a masked-language head and its encoder on texts; save them, and print and write their accuracy.

    The folder loads with `AutoModelForMaskedLM` and `AutoTokenizer`. A twentieth of the distinct texts is held out. An
    encoder saved without a head gets a random one with tied embeddings.

    Returns:
        The content of `results.json`, which is written last.
    """
    folder, args = Path(arguments.training.output_dir), training_arguments(arguments.training, TrainingArguments)
    check_free(folder, [RESULTS_FILE, CONFIG_NAME, SAFE_WEIGHTS_NAME])
    if args.resume_from_checkpoint is not None:
        check_checkpoint(Path(args.resume_from_checkpoint), record=SavedState)
    parts = split_texts(read_texts([Path(name) for name in arguments.train_file], arguments.text_columns), args.seed)
    set_seed(args.seed)
    model, tokenizer = _load(arguments)
    if args.resume_from_checkpoint is not None:
        check_checkpoint(Path(args.resume_from_checkpoint), model, SavedState)
    train, held_out = (encode_texts(part, tokenizer, arguments.max_length) for part in parts)
    batches = masked_batches(held_out, tokenizer, arguments.mlm_probability, args.per_device_eval_batch_size, args.seed)
    frequent = most_frequent_token(train)
    trainer = _build_trainer(model, tokenizer, (train, held_out), arguments.mlm_probability, args)
    before = masked_accuracy(model, batches, "before")
    with masked_tokens_alone(model):
        training = _train(trainer, args)
    after = masked_accuracy(model, batches, "after")
    result = MaskedLanguageResult(
        model=arguments.model,
        text=arguments.train_file,
        text_columns=arguments.text_columns,
        train_texts=len(train),
        held_out_texts=len(held_out),
        cut_texts=sum(chain(train["is_cut"], held_out["is_cut"])),
        masked_tokens=sum(int(masked_positions(batch).sum()) for batch in batches),
        masked_accuracy=MaskedAccuracy(before, after, _share_of(frequent, batches)),
        most_frequent_token=str(tokenizer.convert_ids_to_tokens(frequent)),
        max_length=arguments.max_length,
        mlm_probability=arguments.mlm_probability,
        seed=args.seed,
        training=training,
        versions=package_versions(),
        device=device_name(args.device),
    )
    with unfinished(folder) if trainer.is_world_process_zero() else nullcontext():
        trainer.save_model()
        if trainer.is_world_process_zero():
            write_json(folder / RESULTS_FILE, asdict(result))
    if trainer.is_world_process_zero():
        print(accuracy_lines(result, folder))
    return result


def accuracy_lines(result: MaskedLanguageResult, folder: Path) -> str:
    """Return the result in lines, shares as percentages."""
    accuracy = result.masked_accuracy
    lines = [
        f"masked accuracy on {result.masked_tokens} tokens of {result.held_out_texts} held-out texts "
        f"(trained on {result.train_texts}):",
        f"  before training                      {accuracy.before:.1%}",
        f"  after training                       {accuracy.after:.1%}",
        f"  always guessing {result.most_frequent_token!r:<20} {accuracy.most_frequent_token:.1%}",
    ]
    if result.cut_texts:
        lines.append(f"--max_length {result.max_length} truncated {result.cut_texts} texts")
    return "\n".join([*lines, f"written to {folder}; give it as --mlm {folder}"])


def masked_accuracy(model: PreTrainedModel, batches: Sequence[BatchEncoding], description: str = "measure") -> float:
    """Return the share of the masked tokens that the model predicts correctly; its mode does not change.

    Args:
        model: a model with a masked-language head.
        batches: `input_ids`, `attention_mask` and `labels`, `[B, n]`; labels are -100 where no token is masked.
        description: the description of the progress bar.
    """
    was_training = model.training
    model.eval()
    right = masked = 0
    with torch.inference_mode(), masked_tokens_alone(model):
        for batch in counted(batches, f"masked accuracy {description}", len(batches), "batch"):
            labels = batch["labels"][masked_positions(batch)]
            inputs = {name: values.to(model.device) for name, values in batch.items()}
            right += int((model(**inputs).logits[0].argmax(-1).cpu() == labels).sum())
            masked += len(labels)
    model.train(was_training)
    return right / masked


def _share_of(token: int, batches: Sequence[BatchEncoding]) -> float:
    labels = torch.cat([batch["labels"][masked_positions(batch)] for batch in batches])
    return float((labels == token).double().mean())


def _load(arguments: MaskedLanguageOptions) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    # Otherwise a checkpoint in half precision would be trained in half precision.
    model, tokenizer = load_pretrained(
        arguments.model, AutoModelForMaskedLM, choices=CHECKPOINT, dtype=torch.float32, use_safetensors=True
    )
    if tokenizer.mask_token is None or tokenizer.pad_token is None:
        raise AlignAttnError(
            f"the tokenizer of {arguments.model} lacks a mask token or a padding token: give an encoder"
        )
    smallest = tokenizer.num_special_tokens_to_add() + 1
    largest = most_tokens(model, tokenizer)
    if not smallest <= arguments.max_length <= largest:
        raise AlignAttnError(f"--max_length {arguments.max_length} must be at least {smallest} and at most {largest}")
    return model, tokenizer


def _build_trainer(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    parts: tuple[datasets.Dataset, datasets.Dataset],
    mlm_probability: float,
    args: TrainingArguments,
) -> AlignmentTrainer:
    refuse_data_parallel(args, "train-mlm")
    train, held_out = (part.remove_columns("is_cut") for part in parts)
    check_full_batch(args, len(train))
    # The Trainer would drop the mask of special tokens, which the collator needs.
    args.remove_unused_columns = False
    log_reports(args.report_to)
    try:
        # The Trainer multiplies gradients by the accumulation steps (issue 47688), or weights tokens by batches.
        return AlignmentTrainer(
            model=model,
            args=args,
            train_dataset=train,
            eval_dataset=held_out,
            data_collator=DataCollatorForLanguageModeling(tokenizer, mlm_probability=mlm_probability),
            processing_class=tokenizer,
        )
    except (ValueError, TypeError, ImportError) as error:
        # The Trainer checks some options itself, such as --report_to, and names them.
        raise AlignAttnError(one_line(error)) from error


def _train(trainer: AlignmentTrainer, args: TrainingArguments) -> dict[str, float]:
    output = trainer.train(resume_from_checkpoint=args.resume_from_checkpoint)
    return {
        "epochs": trainer.state.epoch or 0.0,
        "steps": output.global_step,
        "learning_rate": args.learning_rate,
        "per_device_train_batch_size": args.per_device_train_batch_size,
        "mean_loss": output.training_loss,
        "seconds": output.metrics["train_runtime"],
    }
