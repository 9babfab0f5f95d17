"""`alignattn inspect`: measures of each attention head of a model, or of two, on given texts."""

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from alignattn.finetuning.options import DataOptions
from alignattn.models.lengths import most_tokens, row_length
from alignattn.models.names import model_name
from alignattn.reports.plots import HeatMapPanel, draw_heat_maps, write_figure
from alignattn.tasks.definitions import get_task
from alignattn.tasks.names import TEXT_FILE
from alignattn.tasks.text_source import check_text_source
from alignattn.utils.command import Command
from alignattn.utils.console import READABLE_WIDTH, progress, split_tables
from alignattn.utils.errors import AlignAttnError
from alignattn.utils.files import write_text
from alignattn.utils.options import REQUIRED, Count, InputDir, InputFile, Options, OutputDir, Seed, option
from alignattn.utils.paths import check_free, publishable, published_names, unfinished

MEASURES: Mapping[str, tuple[str, str]] = {
    "sliced_wasserstein": ("distance", "query-key distance"),
    "entropy": ("entropy", "entropy (nats)"),
    "previous": ("previous", "weight on previous token"),
    "next": ("next", "weight on next token"),
    "separators": ("separators", "weight on separators"),
    "rare": ("rare", "weight on rare tokens"),
}
"""The columns of the table, with their headings in the terminal and the titles of their heat maps."""

EXPLANATION = """distance: sliced Wasserstein distance of a text's queries and keys, in units of their size.
entropy: in nats. previous, next, separators, rare: weight on the token before, the token after, special
tokens, rare tokens. uniform: the same for equal attention weights."""


@dataclass(frozen=True, kw_only=True)
class InspectOptions(Options):
    """The options of `alignattn inspect`."""

    model: str = option(REQUIRED, "Model folder or Hub id; patched by alignattn or not.", place=model_name)
    task: str | None = option(None, "Task, whose first development split is read.", metavar="TASK")
    validation_file: InputFile | None = option(None, f"Instead of --task: {TEXT_FILE}, one text per line, or a table.")
    compare: str | None = option(None, "Second model, which adds columns and heat maps.", place=model_name)
    text_columns: tuple[str, ...] | None = option(None, "One or two text columns of the table.")
    data_dir: InputDir | None = option(None, "Folder of the task's Parquet files (default: the Hub).")
    output_dir: OutputDir = option("inspection", "Folder for the table and the heat maps.")
    max_eval_samples: Count = option(64, "Maximum rows; larger splits are sampled.")
    max_length: Count | None = option(None, "Maximum tokens per row (default: the task's).")
    batch_size: Count = option(8, "Batch size.")
    seed: Seed = option(42, "Seed of the sample.")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_text_source(self, "validation_file", "look at")
        if self.compare == self.model:
            raise AlignAttnError(f"--compare {self.compare} is the same as --model: give another checkpoint")


COMMAND = Command(
    "inspect",
    "measure each attention head of a model, or of two: a table and heat maps",
    InspectOptions,
    run="alignattn.commands.inspect:inspect_model",
    draws=True,
    examples=("alignattn inspect --model runs/mrpc --task mrpc --compare albert-base-v2 --output_dir heads",),
)


def inspect_model(options: InspectOptions) -> Any:
    """Measure the heads of one model or two, print the means by layer, and write `heads.csv` and `heads.png`.

    Returns:
        A row per layer and head with a column per measure; the columns of the second model end in `_compare`.
    """
    from alignattn.finetuning.heads import load_recorded_model

    folder = Path(options.output_dir)
    check_free(folder, ("heads.csv", "heads.png"))
    task, rows = load_texts(options)
    names = [options.model] if options.compare is None else [options.model, options.compare]
    models = [load_recorded_model(name, task.tokenizer_options) for name in names]
    for loaded in models:
        if not loaded.reads_texts_alone:
            raise AlignAttnError(f"{loaded.name!r} reads images with its texts: inspect measures models of texts alone")
        loaded.check_reads(type(task), task.name)
    most = min(most_tokens(loaded.model, loaded.tokenizer) for loaded in models)
    max_length = row_length(options.max_length, task.max_length, most)
    frames = [measure_heads(loaded, rows, task, max_length, options.batch_size) for loaded in models]

    published = published_names(names)
    titles = published if len(models) == 1 else [f"A = {published[0]}", f"B = {published[1]}"]
    titles.append(f"{len(rows)} texts of {publishable(options.task or options.validation_file)}")
    measured = [frame.drop(index="uniform", level="layer") for frame in frames]
    for frame in measured:
        frame.index = frame.index.remove_unused_levels()
    # A layer or head that only one model has is blank for the other.
    table = measured[0] if len(models) == 1 else measured[0].join(measured[1].add_suffix("_compare"), how="outer")
    panels = []
    for name, (_, title) in MEASURES.items():
        top = max(float(frame[name].max()) for frame in measured)
        for letter, frame in zip(("A: ", "B: ") if len(models) > 1 else ("",), measured, strict=True):
            # A model that fixes its basis has no balanced distance.
            if frame[name].notna().any():
                grid = frame[name].unstack()
                panels.append(HeatMapPanel(letter + title, list(grid.index), list(grid), grid.to_numpy().tolist(), top))
    figure = draw_heat_maps(panels, x_label="head", y_label="layer", title="\n".join(titles))
    with unfinished(folder):
        write_text(folder / "heads.csv", table.to_csv(lineterminator="\n"))
        write_figure(figure, folder / "heads.png")

    means = [frame.groupby(level="layer", sort=False).mean() for frame in frames]
    lines = [
        [str(layer), *("/".join(f"{mean[name].get(layer, math.nan):.3f}" for mean in means) for name in MEASURES)]
        for layer in [*sorted({layer for frame in measured for layer, _ in frame.index}), "uniform"]
    ]
    headings = [heading for heading, _ in MEASURES.values()]
    print("mean over heads", *split_tables(["layer", *headings], lines, READABLE_WIDTH), sep="\n")
    print(*titles, EXPLANATION, f"written to {folder}", sep="\n")
    return table


def load_texts(options: InspectOptions) -> tuple[Any, Any]:
    """Return the task and the rows to study: at most `max_eval_samples`, sampled and kept in their order."""
    import numpy as np

    from alignattn.finetuning.rows import file_texts
    from alignattn.tasks.rows import load_rows

    if options.task is None:
        task, rows = file_texts(Path(str(options.validation_file)), options.text_columns or ())
    else:
        task = get_task(options.task)
        if not task.reads_texts:
            raise AlignAttnError(f"--task {options.task} has no texts: give a task with texts")
        loaded = load_rows(task, need_train=False, data_dir=options.data_dir)
        task, rows = loaded.task, loaded.evaluation[task.evaluation_splits[0]]
    if len(rows) > options.max_eval_samples:
        generator = np.random.default_rng(options.seed)
        rows = rows.select(np.sort(generator.choice(len(rows), options.max_eval_samples, replace=False)))
    return task, rows


def measure_heads(loaded: Any, rows: Any, task: Any, max_length: int, batch_size: int) -> Any:
    """Return the measures of a model's heads on the texts of `rows`, truncated to `max_length` tokens.

    They are computed on the real tokens of each text and averaged over texts. The result has a row per `layer` and
    `head`; those of the layer `uniform` are the measures of equal weights.
    """
    import pandas as pd
    import torch

    from alignattn.attention.distance import sliced_wasserstein
    from alignattn.finetuning.rows import input_batches
    from alignattn.patching import patch_of
    from alignattn.tasks.task import EncodedSplit

    # Without overlap between the windows of a long context, each token is studied once.
    encoding = replace(DataOptions(max_length=max_length).task_options(task, loaded.tokenizer), doc_stride=0)
    split = EncodedSplit(rows, task.encode(rows, loaded.tokenizer, encoding), encoding)
    ids = split.encoded["input_ids"][:]
    if max(map(len, ids)) > (most := most_tokens(loaded.model, loaded.tokenizer)):
        raise AlignAttnError(f"--max_length {max_length}: {loaded.name} accepts at most {most} tokens")
    special = torch.tensor(loaded.tokenizer.all_special_ids)
    rare = torch.tensor(sorted(rare_tokens(ids, loaded.tokenizer.all_special_ids)))
    by_text: dict[str, list[Any]] = {}
    with progress(Path(loaded.name).name, len(ids), "text") as bar:
        for batch in input_batches(task, split, loaded.tokenizer, range(len(ids)), batch_size):
            recorded = loaded.record(batch)
            for index, is_real in enumerate(batch["attention_mask"].bool()):
                tokens = batch["input_ids"][index, is_real]
                query, key = (
                    torch.stack([layer[role][index][:, is_real] for layer in recorded]) for role in ("query", "key")
                )
                weights = torch.stack([layer["weights"][index][:, is_real][:, :, is_real] for layer in recorded])
                equal = torch.full_like(weights[:1], 1 / len(tokens), dtype=torch.float64)
                weights = torch.cat([weights.double(), equal])
                measures = attention_measures(weights, torch.isin(tokens, special), torch.isin(tokens, rare))
                distance = sliced_wasserstein(query.flatten(0, 1)[None], key.flatten(0, 1)[None])
                measures["sliced_wasserstein"] = distance.double().view(query.shape[:2])
                for name, values in measures.items():
                    by_text.setdefault(name, []).append(values)
            bar.update(len(batch["input_ids"]))
    by_head = {name: torch.stack(values).nanmean(dim=0) for name, values in by_text.items()}
    num_layers, num_heads = by_head["sliced_wasserstein"].shape
    layers = [*(patch_of(loaded.model).config.layers or range(num_layers)), "uniform"]
    index = pd.MultiIndex.from_product([layers, range(num_heads)], names=["layer", "head"])
    # Equal weights have no queries and keys, so the distances of their rows are missing.
    columns = {name: by_head[name].flatten().tolist() for name in MEASURES}
    return pd.DataFrame({name: pd.Series(column, index[: len(column)]) for name, column in columns.items()}, index)


def attention_measures(weights: Any, separators: Any, rare: Any) -> dict[str, Any]:
    """Return the measures of one text's attention weights, for each head.

    Args:
        weights: `[…, n, n]` float64, a row per query.
        separators: `[n]` bool, True = a special token.
        rare: `[n]` bool, True = a rare token.

    Returns:
        Each `[…]` float64. `entropy`: entropy of a row in nats, mean over rows. `previous`, `next`: weight on the token
        before or after, mean over the rows that have one, NaN if none has. `separators`, `rare`: sum of the weights on
        such tokens, mean over rows.
    """
    import torch

    return {
        "entropy": torch.special.entr(weights).sum(dim=-1).mean(dim=-1),
        "previous": weights.diagonal(offset=-1, dim1=-2, dim2=-1).mean(dim=-1),
        "next": weights.diagonal(offset=1, dim1=-2, dim2=-1).mean(dim=-1),
        "separators": weights[..., separators].sum(dim=-1).mean(dim=-1),
        "rare": weights[..., rare].sum(dim=-1).mean(dim=-1),
    }


def rare_tokens(texts: Iterable[Sequence[int]], special_ids: Collection[int]) -> frozenset[int]:
    """Return the ids that are not special and occur at most k times, for the smallest k that covers a tenth of all."""
    counts = Counter(token for text in texts for token in text if token not in special_ids)
    most, covered = 0, 0
    for times, tokens in sorted(Counter(counts.values()).items()):
        if covered >= 0.1 * sum(counts.values()):
            break
        most, covered = times, covered + times * tokens
    return frozenset(token for token, count in counts.items() if count <= most)
