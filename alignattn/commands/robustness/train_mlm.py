"""A masked-language head on an encoder, for attacks that propose words in context where no published one is at hand.

The loss is that of Devlin et al. 2019 (BERT), section 3.1, task 1: of the masked tokens 80 % become the mask token,
10 % a random one, 10 % stay.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from itertools import chain
from pathlib import Path

import datasets
import torch
from tqdm import tqdm  # type: ignore[import-untyped]
from transformers import (
    AutoModelForMaskedLM,
    AutoTokenizer,
    BatchEncoding,
    DataCollatorForLanguageModeling,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    Trainer,
    TrainingArguments,
    set_seed,
)
from transformers.utils import CONFIG_NAME, SAFE_WEIGHTS_NAME

from alignattn.models.packaged import model_source
from alignattn.patching.checkpoints import unloadable
from alignattn.robustness.encoders import CHECKPOINT, LOADING_ERRORS, most_tokens
from alignattn.robustness.masked_head import masked_positions, masked_tokens_alone
from alignattn.robustness.masked_texts import (
    TABLE_SUFFIXES,
    encode_texts,
    masked_batches,
    most_frequent_token,
    read_texts,
    split_texts,
)
from alignattn.runs.options import RunOptions, check_training_options
from alignattn.runs.results import RESULTS_FILE, device_name, package_versions
from alignattn.support.errors import AlignAttnError, one_line
from alignattn.support.files import check_free, write_json
from alignattn.support.parser import OneLineErrorParser
from alignattn.training.trainer import refuse_data_parallel


@dataclass
class MaskedLanguageArguments:
    """The encoder and the texts that its head is trained on."""

    model: str = field(metadata={"help": "Folder or Hub id of the encoder, such as a MiniLM."})
    text: list[str] = field(
        metadata={"help": f"Files of one text a line; or tables ({', '.join(TABLE_SUFFIXES)}) with --text_columns."}
    )
    text_columns: list[str] | None = field(
        default=None, metadata={"help": "Columns of the tables; each holds texts of its own."}
    )
    max_length: int = field(default=64, metadata={"help": "Most tokens of a text; longer ones are cut."})
    mlm_probability: float = field(default=0.15, metadata={"help": "Share of the tokens that are masked."})

    def __post_init__(self) -> None:
        if not 0 < self.mlm_probability < 1:
            raise AlignAttnError(f"--mlm_probability {self.mlm_probability} must lie between 0 and 1")


@dataclass
class MaskedLanguageTrainingArguments(TrainingArguments):
    """transformers' training options, with the defaults for a new head on a pretrained encoder."""

    learning_rate: float = field(default=1e-4, metadata={"help": "Learning rate of encoder and head."})
    per_device_train_batch_size: int = field(default=32, metadata={"help": "Texts a step and device."})
    per_device_eval_batch_size: int = field(default=64, metadata={"help": "Held-out texts a batch."})
    logging_steps: float = field(default=0.05, metadata={"help": "Steps between logs; below 1 a share of all."})
    logging_nan_inf_filter: bool = field(
        default=False, metadata={"help": "Leave losses that are not finite out of the logs; here they end the run."}
    )
    save_strategy: str = field(default="no", metadata={"help": "When checkpoints to resume from are saved."})

    def __post_init__(self) -> None:
        super().__post_init__()  # type: ignore[no-untyped-call]
        check_training_options(self)


@dataclass(frozen=True)
class MaskedAccuracy:
    """How many of the held-out tokens, each hidden behind the mask token, are guessed; shares.

    Attributes:
        before: by the untrained head (or the model's own, where it has one).
        after: by the trained model.
        most_frequent_token: by always guessing the most frequent token of the training texts.
    """

    before: float
    after: float
    most_frequent_token: float


@dataclass(frozen=True)
class MaskedLanguageResult:
    """What `results.json` holds.

    Attributes:
        model: the encoder as the user named it.
        text: the files.
        text_columns: of the tables.
        train_texts: different texts trained on.
        held_out_texts: different texts that were kept from the training.
        cut_texts: how many of all were longer than `max_length`.
        masked_tokens: held-out ones behind each accuracy.
        masked_accuracy: shares.
        most_frequent_token: the token itself.
        max_length: most tokens of a text.
        mlm_probability: share of the tokens that are masked.
        seed: of the held-out choice, the head, the masks and the row order.
        training: epochs, steps, learning rate, texts a step and device, mean loss and seconds.
        versions: of Python and the packages.
        device: what it ran on.
    """

    model: str
    text: list[str]
    text_columns: list[str] | None
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


def main(argv: Sequence[str]) -> None:
    """Run `alignattn robustness train-mlm`.

    Args:
        argv: the words after the command's name.

    Raises:
        AlignAttnError: for every mistake a user can mend.
    """
    parser = OneLineErrorParser(
        [MaskedLanguageArguments, MaskedLanguageTrainingArguments], prog="alignattn robustness train-mlm"
    )
    options = RunOptions(vars(parser.parse_args(list(argv))))
    if options.values["output_dir"] is None:
        raise AlignAttnError("no folder for the model: give --output_dir DIR")
    train_masked_language_model(options.build(MaskedLanguageArguments), options.build(MaskedLanguageTrainingArguments))


def train_masked_language_model(
    arguments: MaskedLanguageArguments, args: MaskedLanguageTrainingArguments
) -> MaskedLanguageResult:
    """Train a masked-language head and its encoder on texts; save them, and print and write what they guess.

    The folder loads with `AutoModelForMaskedLM` and `AutoTokenizer`. A twentieth of the different texts is held out. An
    encoder saved without a head gets one of random weights whose output matrix is the input embeddings.

    Returns:
        What is written to `results.json`, last of all files.

    Raises:
        AlignAttnError: if the folder holds another model, a text or the model cannot be read, there is too little
            text, or the loss is not finite.
    """
    folder = Path(str(args.output_dir))
    check_free(folder, [RESULTS_FILE, CONFIG_NAME, SAFE_WEIGHTS_NAME])
    _check_checkpoint(args.resume_from_checkpoint)
    parts = split_texts(read_texts([Path(name) for name in arguments.text], arguments.text_columns), args.seed)
    set_seed(args.seed)
    model, tokenizer = _load(arguments)
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
        text=arguments.text,
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
    trainer.save_model()
    if trainer.is_world_process_zero():
        write_json(folder / RESULTS_FILE, asdict(result))
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
        lines.append(f"{result.cut_texts} texts were cut at --max_length {result.max_length} tokens")
    return "\n".join([*lines, f"written to {folder}; give it as --mlm {folder}"])


def masked_accuracy(model: PreTrainedModel, batches: Sequence[BatchEncoding], description: str = "measure") -> float:
    """Return the share of the masked tokens that the model guesses; it is left in the mode that it was in.

    Args:
        model: with a masked-language head.
        batches: `input_ids`, `attention_mask` and `labels`, `[B, n]`; labels are -100 where no token is masked.
        description: of the progress bar.
    """
    was_training = model.training
    model.eval()
    right = masked = 0
    with torch.inference_mode(), masked_tokens_alone(model):
        for batch in tqdm(batches, unit="batch", desc=f"masked accuracy {description}"):
            labels = batch["labels"][masked_positions(batch)]
            inputs = {name: values.to(model.device) for name, values in batch.items()}
            right += int((model(**inputs).logits[0].argmax(-1).cpu() == labels).sum())
            masked += len(labels)
    model.train(was_training)
    return right / masked


def _share_of(token: int, batches: Sequence[BatchEncoding]) -> float:
    labels = torch.cat([batch["labels"][masked_positions(batch)] for batch in batches])
    return float((labels == token).double().mean())


def _load(arguments: MaskedLanguageArguments) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    source = model_source(arguments.model)
    try:
        tokenizer = AutoTokenizer.from_pretrained(source)
        # A checkpoint in half precision would be trained in half precision.
        model = AutoModelForMaskedLM.from_pretrained(source, dtype=torch.float32, use_safetensors=True)
    except LOADING_ERRORS as error:
        raise unloadable(arguments.model, error, CHECKPOINT) from error
    if tokenizer.mask_token is None or tokenizer.pad_token is None:
        raise AlignAttnError(f"the tokenizer of {arguments.model} has no mask or no padding token: give an encoder")
    if len(tokenizer) > model.get_input_embeddings().num_embeddings:
        raise AlignAttnError(f"the tokenizer of {arguments.model} has more tokens than the model: give one of a piece")
    smallest = tokenizer.num_special_tokens_to_add() + 1
    largest = most_tokens(model, tokenizer)
    if not smallest <= arguments.max_length <= largest:
        raise AlignAttnError(f"--max_length {arguments.max_length} must be at least {smallest} and at most {largest}")
    return model, tokenizer


def _check_checkpoint(folder: str | None) -> None:
    if folder is not None and not Path(folder).is_dir():
        raise AlignAttnError(f"there is no folder {folder}: give a checkpoint to --resume_from_checkpoint")


def _build_trainer(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    parts: tuple[datasets.Dataset, datasets.Dataset],
    mlm_probability: float,
    args: TrainingArguments,
) -> Trainer:
    refuse_data_parallel(args, "train-mlm")
    train, held_out = (part.remove_columns("is_cut") for part in parts)
    # The Trainer would drop a column that the model does not take; the collator needs the special tokens'.
    args.remove_unused_columns = False
    try:
        trainer = Trainer(
            model=model,
            args=args,
            train_dataset=train,
            eval_dataset=held_out,
            data_collator=DataCollatorForLanguageModeling(tokenizer, mlm_probability=mlm_probability),
            processing_class=tokenizer,
        )
    except (ValueError, TypeError, ImportError) as error:
        # The Trainer judges some options by itself, such as --report_to; its messages name them.
        raise AlignAttnError(one_line(error)) from error
    # Otherwise the gradient grows with the accumulation steps (transformers issue 47688).
    trainer.model_accepts_loss_kwargs = False
    return trainer


def _train(trainer: Trainer, args: MaskedLanguageTrainingArguments) -> dict[str, float]:
    output = trainer.train(resume_from_checkpoint=args.resume_from_checkpoint)
    if not math.isfinite(output.training_loss):
        raise AlignAttnError(f"the loss is not finite: give a smaller --learning_rate than {args.learning_rate}")
    return {
        "epochs": trainer.state.epoch or 0.0,
        "steps": output.global_step,
        "learning_rate": args.learning_rate,
        "per_device_train_batch_size": args.per_device_train_batch_size,
        "mean_loss": output.training_loss,
        "seconds": output.metrics["train_runtime"],
    }
