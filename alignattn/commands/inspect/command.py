"""Measures of each attention head of a model on given texts, or of two models side by side."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import datasets
import numpy as np
import torch
from torch import Tensor

from alignattn.commands.inspect import InspectOptions
from alignattn.commands.inspect.graph_study import inspect_graph
from alignattn.commands.inspect.head_study import HeadMeasurer, RareTokens, Sample, joined
from alignattn.commands.inspect.report import (
    FILES,
    ModelStudy,
    StudiedTexts,
    render_studies,
    write_studies,
)
from alignattn.finetuning.data_options import DataOptions
from alignattn.finetuning.function_change import FunctionChange, measure_change
from alignattn.finetuning.heads import RecordedModel, load_recorded_model
from alignattn.finetuning.rows import file_texts, input_batches
from alignattn.models.lengths import most_tokens, row_length
from alignattn.models.vqa import WORDS, Sides
from alignattn.patching import patch_of
from alignattn.patching.balance import reason_unbalanced
from alignattn.tasks import NodeClassification, Task, get_task
from alignattn.tasks.processor import EncodedSplit
from alignattn.tasks.rows import load_rows
from alignattn.tasks.task_types import processor_class, processor_for
from alignattn.utils.errors import AlignAttnError
from alignattn.utils.files import check_free, unfinished
from alignattn.utils.progress import progress
from alignattn.utils.publishing import publishable, published_names


def inspect_model(arguments: InspectOptions) -> None:
    """Study the heads of one model or two, on texts or on a graph."""
    task = None if arguments.task is None else get_task(arguments.task)
    if isinstance(task, NodeClassification):
        inspect_graph(arguments, task)
    else:
        inspect_heads(arguments)


def inspect_heads(arguments: InspectOptions) -> list[ModelStudy]:
    """Study the heads of one model or two, print the table, and write the table and the picture."""
    folder = Path(arguments.output_dir)
    check_free(folder, FILES)
    studies, studied = study_models(arguments)
    with unfinished(folder):
        write_studies(folder, studies, studied)
    print(f"{render_studies(studies, studied)}\nwritten to {folder}")
    return studies


def study_models(arguments: InspectOptions) -> tuple[list[ModelStudy], StudiedTexts]:
    """Return the measures of the heads of one model or two, and a description of the texts."""
    task, rows = load_texts(arguments)
    processor = processor_for(task)
    compares = arguments.compare is not None
    models = [load_recorded_model(name, processor.tokenizer_options, with_head=compares) for name in arguments.models()]
    for loaded in models:
        loaded.check_reads(type(processor), task.name)
    _check_same_shape(models)
    names = published_names(arguments.models())
    most = min(most_tokens(loaded.model, loaded.tokenizer) for loaded in models)
    max_length = row_length(arguments.max_length, task.max_length, most)
    studies = [
        study_model(loaded, name, rows, task, max_length, arguments.batch_size)
        for loaded, name in zip(models, names, strict=True)
    ]
    if compares:
        splits = [_encoded(loaded, rows, task, max_length) for loaded in models]
        studies[1] = replace(studies[1], change=_change(models, splits, task, arguments.batch_size))
    read = publishable(arguments.task or arguments.validation_file)
    return studies, StudiedTexts(read, len(rows), max_length, arguments.seed)


def load_texts(arguments: InspectOptions) -> tuple[Task, datasets.Dataset]:
    """Return the rows to study and the task that names their text columns.

    At most `max_eval_samples` rows, sampled without replacement and kept in their order.
    """
    if arguments.task is None:
        task, rows = file_texts(Path(str(arguments.validation_file)), arguments.text_columns or ())
    else:
        task, rows = _task_texts(arguments.task, arguments)
    if len(rows) > arguments.max_eval_samples:
        generator = np.random.default_rng(arguments.seed)
        rows = rows.select(np.sort(generator.choice(len(rows), arguments.max_eval_samples, replace=False)))
    return task, rows


def study_model(
    loaded: RecordedModel, name: str, rows: datasets.Dataset, task: Task, max_length: int, batch_size: int
) -> ModelStudy:
    """Return the measures of a model's heads on the texts of `rows`, truncated to `max_length` tokens."""
    split = _encoded(loaded, rows, task, max_length)
    ids = split.encoded["input_ids"][:]
    most = most_tokens(loaded.model, loaded.tokenizer)
    if max(map(len, ids)) > most:
        raise AlignAttnError(f"--max_length {max_length}: {loaded.name} accepts at most {most} tokens")
    rare = RareTokens.of(ids, loaded.tokenizer.all_special_ids)
    balances = reason_unbalanced(loaded.model) is None
    numbers = patch_of(loaded.model).config.layers or range(loaded.num_layers_and_heads()[0])
    sides_of = loaded.sides(numbers)
    # Layers with the same modalities of queries and keys form a group.
    groups = {own: [place for place, other in enumerate(sides_of) if other == own] for own in dict.fromkeys(sides_of)}
    studying = {sides: HeadMeasurer() for sides in groups}
    with progress(Path(loaded.name).name, len(ids), "text") as bar:
        for batch in input_batches(task, split, loaded.tokenizer, range(len(ids)), batch_size):
            for sides, sample in _samples(loaded, batch, rare, groups):
                studying[sides].add(sample)
            bar.update(len(batch["input_ids"]))
    study = joined([one.study(balances=balances) for one in studying.values()])
    places = [(numbers[place], sides) for sides, of_group in groups.items() for place in of_group]
    order = [place for of_group in groups.values() for place in of_group]
    return ModelStudy(name, [number for number, _ in places], [sides for _, sides in places], study, rare, order)


def _encoded(loaded: RecordedModel, rows: datasets.Dataset, task: Task, max_length: int) -> EncodedSplit:
    # Without overlap between the windows of a long context, each token is studied once.
    options = replace(DataOptions(max_length=max_length).task_options(task, loaded.tokenizer), doc_stride=0)
    return EncodedSplit(rows, processor_for(task).encode(rows, loaded.tokenizer, options), options)


def _change(
    models: Sequence[RecordedModel], splits: Sequence[EncodedSplit], task: Task, batch_size: int
) -> FunctionChange | None:
    """Return how the second model's function differs from the first's; None if their tokens differ."""
    ids, others = (split.encoded["input_ids"][:] for split in splits)
    if ids != others:
        return None
    reference, model = models
    rows = range(len(ids))
    batches = input_batches(task, splits[0], reference.tokenizer, rows, batch_size, with_word_starts=True)
    return measure_change(model, reference, batches)


def _samples(
    loaded: RecordedModel, batch: Mapping[str, Tensor], rare: RareTokens, groups: Mapping[Sides, Sequence[int]]
) -> Iterator[tuple[Sides, Sample]]:
    """Yield the queries, keys and weights of each group of layers for each row of a batch, without padding."""
    special_ids, rare_ids = torch.tensor(loaded.tokenizer.all_special_ids), torch.tensor(sorted(rare.ids))
    recorded = loaded.record(batch)
    for index, words in enumerate(batch["attention_mask"].bool()):
        ids = batch["input_ids"][index, words]
        # Without a mask, all regions are real.
        regions = batch["image_mask"][index].bool() if "image_mask" in batch else slice(None)
        for sides, places in groups.items():
            layers = [recorded[place] for place in places]
            query, key = (words if side == WORDS else regions for side in sides)
            has_words = sides[1] == WORDS
            yield (
                sides,
                Sample(
                    query=torch.stack([layer["query"][index][:, query] for layer in layers]),
                    key=torch.stack([layer["key"][index][:, key] for layer in layers]),
                    weights=torch.stack([layer["weights"][index][:, query][:, :, key] for layer in layers]),
                    separators=torch.isin(ids, special_ids) if has_words else None,
                    rare=torch.isin(ids, rare_ids) if has_words else None,
                    is_one_text=sides == (WORDS, WORDS),
                ),
            )


def _task_texts(name: str, arguments: InspectOptions) -> tuple[Task, datasets.Dataset]:
    task = get_task(name)
    if not processor_class(task).reads_texts:
        raise AlignAttnError(f"--task {name} has no texts: give a task with texts")
    loaded = load_rows(task, need_train=False, data_dir=arguments.data_dir)
    return loaded.task, loaded.evaluation[task.evaluation_splits[0]]


def _check_same_shape(models: Sequence[RecordedModel]) -> None:
    shapes = [loaded.num_layers_and_heads() for loaded in models]
    layers = [patch_of(loaded.model).config.layers for loaded in models]
    described = [
        f"{loaded.name} has {count} layers of {heads} heads" + (f" (patched: {list(which)})" if which else "")
        for loaded, (count, heads), which in zip(models, shapes, layers, strict=True)
    ]
    if len(set(zip(shapes, layers, strict=True))) > 1:
        raise AlignAttnError(f"{', '.join(described)}: compare models with the same numbers of layers and heads")
