"""What option is meant by a word that is none: by its meaning in other programs, or by its letters."""

from collections.abc import Collection, Mapping, Sequence

from alignattn.utils.errors import LEAST_ALIKE, AlignAttnError, did_you_mean
from alignattn.utils.option import Option

NUMBERS_OF_ROWS = (
    *("num_rows", "num_samples", "num_examples", "max_rows", "max_samples", "max_examples", "samples", "examples"),
    *("limit", "max_train_samples", "rows"),
)
"""Names by which it is asked how many rows are read."""

MEANT: Mapping[str, Sequence[str]] = {
    **dict.fromkeys(("lr", "rate"), ("learning_rate",)),
    **dict.fromkeys(("epochs", "num_epochs", "n_epochs", "max_epochs"), ("num_train_epochs",)),
    **dict.fromkeys(("steps", "num_steps", "max_train_steps"), ("max_steps",)),
    **dict.fromkeys(
        ("batch", "batch_size", "train_batch_size", "per_device_train_batch_size"),
        ("per_device_train_batch_size", "batch_size", "shapes"),
    ),
    **dict.fromkeys(
        ("eval_batch", "eval_batch_size", "per_device_eval_batch_size"),
        ("per_device_eval_batch_size", "batch_size", "shapes"),
    ),
    **dict.fromkeys(("warmup", "warmup_ratio", "warmup_steps", "num_warmup_steps"), ("warmup_steps", "warmup")),
    **dict.fromkeys(("accumulation_steps", "grad_accum", "grad_accumulation"), ("gradient_accumulation_steps",)),
    **dict.fromkeys(("wd", "decay"), ("weight_decay",)),
    **dict.fromkeys(("seed", "seeds", "random_seed", "num_seeds"), ("seeds", "seed")),
    **dict.fromkeys(
        ("max_length", "max_seq_length", "max_seq_len", "max_len", "seq_length", "length"),
        ("max_length", "lengths", "max_tokens"),
    ),
    **dict.fromkeys(
        ("model", "models", "model_name", "model_name_or_path", "checkpoint", "pretrained"),
        ("model", "run", "runs", "results", "files"),
    ),
    **dict.fromkeys(("run", "runs", "run_dir", "folder"), ("run", "model", "runs", "results", "files")),
    **dict.fromkeys(("predictions", "results", "records"), ("files", "results", "run")),
    **dict.fromkeys(("task", "task_name", "tasks"), ("tasks", "task", "pair")),
    **dict.fromkeys(("dataset", "dataset_name", "data"), ("tasks", "task", "pair", "file", "files", "data_dir")),
    **dict.fromkeys(("data_dir", "data_folder"), ("data_dir", "file")),
    **dict.fromkeys(
        ("train_data", "train_file", "data_file", "file", "files", "input", "input_file", "text", "text_file"),
        ("train_file", "validation_file", "file", "files"),
    ),
    **dict.fromkeys(
        ("eval_file", "dev_file", "test_file", "validation_data", "validation_file"),
        ("validation_file", "train_file", "file", "files"),
    ),
    **dict.fromkeys(("text_column", "columns", "column"), ("text_columns",)),
    **dict.fromkeys(("label_names", "class_names"), ("labels",)),
    **dict.fromkeys(("labels", "label", "target"), ("label_column",)),
    **dict.fromkeys(("out_dir", "output_dir", "output_folder", "save_dir"), ("output_dir", "output_file", "html")),
    **dict.fromkeys(("out", "output", "output_file", "html", "picture"), ("output_file", "html", "output_dir")),
    **dict.fromkeys(
        NUMBERS_OF_ROWS, ("max_train_samples", "max_eval_samples", "num_examples", "limit", "train_rows", "rows")
    ),
    "max_eval_samples": (
        *("max_eval_samples", "num_examples", "validation_rows", "limit", "held_back_samples", "max_train_samples"),
        "rows",
    ),
    **dict.fromkeys(("lambda", "weight", "align_weight"), ("alignment_weight",)),
    **dict.fromkeys(("attn", "attention_type", "preset", "attention", "attentions"), ("attention", "attentions")),
    **dict.fromkeys(("lora", "lora_rank", "rank"), ("lora_r",)),
    **dict.fromkeys(("attack", "recipe"), ("recipes",)),
    **dict.fromkeys(("layer", "layers"), ("layers", "layer")),
    **dict.fromkeys(("cpu", "no_cuda", "use_cpu", "device"), ("use_cpu", "device")),
    **dict.fromkeys(("workers", "num_workers", "num_proc"), ("preprocessing_num_workers", "processes")),
    "hub_id": ("hub_model_id",),
    "config_file": ("config",),
    "embedding": ("embeddings",),
}
"""Words by which options are asked for, as of other programs, with those that may be meant, the likeliest first."""

SLIP = 0.85
"""How like two words are, of 0 to 1, where the one that means something of its own is a slip of the other."""


class UnknownOptionError(AlignAttnError):
    """Words that are no options here, of which some mean none that there is.

    Args:
        message: as of every mistake.
        names: of those words.
    """

    def __init__(self, message: str, names: Sequence[str]) -> None:
        super().__init__(message)
        self.names = names


def meant_option(word: str, known: Mapping[str, Option], others: Collection[str] = ()) -> str:
    """Return a hint at the option that an unknown word means, or is most like, for the end of a sentence; or nothing.

    Args:
        word: with or without its hyphens.
        known: the options that there are, by name.
        others: names of more, which no word means.
    """
    hyphens, name = "--" if word.startswith("--") else "", plain_option(word)
    meant = next((known[option] for option in (name, *MEANT.get(name, ())) if option in known), None)
    if meant is not None and meant.positional:
        return f": give {meant.label} without a name"
    if meant is not None:
        return f": did you mean {hyphens + meant.name!r}?"
    named = [hyphens + option for option in (*known, *others) if option not in known or not known[option].positional]
    return did_you_mean(hyphens + name, named, least_alike=SLIP if name in MEANT else LEAST_ALIKE)


def plain_option(word: str) -> str:
    """Return the name of an option as a field has it, of a word of a command line with or without a value."""
    return word.removeprefix("--").partition("=")[0].replace("-", "_")
