"""What option is meant by a word that is none: by its meaning in other programs, or by its letters."""

from collections.abc import Collection, Mapping, Sequence

from alignattn.support.errors import did_you_mean

NUMBERS_OF_ROWS = (
    *("num_rows", "num_samples", "num_examples", "max_rows", "max_samples", "max_examples", "samples", "examples"),
    *("limit", "max_eval_samples", "max_train_samples"),
)
"""Names by which it is asked how many rows are read."""

MEANT: Mapping[str, Sequence[str]] = {
    **dict.fromkeys(("lr", "rate"), ("learning_rate",)),
    **dict.fromkeys(("epochs", "num_epochs", "n_epochs", "max_epochs"), ("num_train_epochs",)),
    **dict.fromkeys(("steps", "num_steps", "max_train_steps"), ("max_steps",)),
    **dict.fromkeys(
        ("batch", "batch_size", "train_batch_size"), ("per_device_train_batch_size", "batch_size", "shapes")
    ),
    **dict.fromkeys(
        ("eval_batch", "eval_batch_size", "per_device_eval_batch_size"), ("per_device_eval_batch_size", "batch_size")
    ),
    **dict.fromkeys(("warmup", "num_warmup_steps"), ("warmup_steps",)),
    **dict.fromkeys(("accumulation_steps", "grad_accum", "grad_accumulation"), ("gradient_accumulation_steps",)),
    **dict.fromkeys(("wd", "decay"), ("weight_decay",)),
    **dict.fromkeys(("seed", "seeds", "random_seed", "num_seeds"), ("seeds", "seed")),
    **dict.fromkeys(("max_seq_length", "max_seq_len", "max_len", "seq_length", "length"), ("max_length",)),
    **dict.fromkeys(("model", "model_name", "model_name_or_path", "checkpoint", "pretrained"), ("model", "run")),
    **dict.fromkeys(("run", "runs", "folder"), ("run", "model")),
    **dict.fromkeys(("dataset", "dataset_name", "task_name", "tasks", "data"), ("task", "tasks", "pair")),
    **dict.fromkeys(
        ("train_data", "train_file", "data_file", "file", "input", "input_file", "text", "text_file"),
        ("train_file", "validation_file", "file"),
    ),
    **dict.fromkeys(
        ("eval_file", "dev_file", "test_file", "validation_data", "validation_file"),
        ("validation_file", "train_file", "file"),
    ),
    **dict.fromkeys(("text_column", "columns", "column"), ("text_columns",)),
    **dict.fromkeys(("label_names", "class_names"), ("labels",)),
    **dict.fromkeys(("labels", "label", "target"), ("label_column",)),
    **dict.fromkeys(("out_dir", "output_folder", "save_dir"), ("output_dir", "output_file", "html")),
    **dict.fromkeys(("out", "output", "output_file", "html", "picture"), ("output_file", "html", "output_dir")),
    **dict.fromkeys(NUMBERS_OF_ROWS, ("max_eval_samples", "num_examples", "max_train_samples", "limit", "train_rows")),
    **dict.fromkeys(("lambda", "weight", "align_weight"), ("alignment_weight",)),
    **dict.fromkeys(("attn", "attention_type", "preset"), ("attention", "attentions")),
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


def meant_option(word: str, known: Collection[str]) -> str:
    """Return a hint at the option that an unknown word means, or is most like, for the end of a sentence; or nothing.

    Args:
        word: with or without its hyphens.
        known: the names of the options that there are.
    """
    hyphens, name = "--" if word.startswith("--") else "", plain_option(word)
    meant = next((option for option in MEANT.get(name, ()) if option in known), None)
    if meant is not None:
        return f": did you mean {hyphens + meant!r}?"
    return did_you_mean(hyphens + name, [hyphens + option for option in known])


def plain_option(word: str) -> str:
    """Return the name of an option as a field has it, of a word of a command line with or without a value."""
    return word.removeprefix("--").partition("=")[0].replace("-", "_")
