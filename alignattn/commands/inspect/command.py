"""What each attention head of a model does on given texts, or of two models side by side."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import datasets
import numpy as np
import torch
from transformers import DataCollatorWithPadding

from alignattn.commands.inspect import InspectOptions
from alignattn.commands.inspect.head_study import RareTokens, Sample, study_heads
from alignattn.commands.inspect.report import (
    FILES,
    HEADS_PICTURE,
    HEADS_TABLE,
    ModelStudy,
    StudiedTexts,
    draw_studies,
    render_studies,
    write_studies,
)
from alignattn.models.lengths import most_tokens, row_length
from alignattn.patching import patch_of
from alignattn.patching.balance import balance_obstacle
from alignattn.runs.recorded_model import RecordedModel, load_recorded_model
from alignattn.runs.texts import file_texts
from alignattn.support.errors import AlignAttnError
from alignattn.support.files import check_free, unfinished
from alignattn.support.progress import progress
from alignattn.support.publishing import publishable, published_names
from alignattn.tasks import Task, get_task
from alignattn.tasks.kinds import kind_of
from alignattn.tasks.rows import load_rows
from alignattn.tasks.task import TaskOptions


def inspect_heads(arguments: InspectOptions) -> list[ModelStudy]:
    """Study the heads of one model or two, print the table, and write it and the picture."""
    folder = Path(arguments.output_dir)
    check_free(folder, FILES)
    task, rows = load_texts(arguments)
    models = [load_recorded_model(name, kind_of(task).tokenizer_options) for name in arguments.models()]
    _check_same_shape(models)
    names = published_names(arguments.models())
    most = min(most_tokens(loaded.model, loaded.tokenizer) for loaded in models)
    max_length = row_length(arguments.max_length, task.max_length, most)
    studies = [
        study_model(loaded, name, rows, task, max_length, arguments.batch_size)
        for loaded, name in zip(models, names, strict=True)
    ]
    studied = StudiedTexts(
        publishable(arguments.task or arguments.validation_file),
        len(rows),
        max_length,
        arguments.seed,
    )
    with unfinished(folder):
        write_studies(folder / HEADS_TABLE, studies, studied)
        draw_studies(folder / HEADS_PICTURE, studies, studied)
    print(f"{render_studies(studies, studied)}\nwritten to {folder}")
    return studies


def load_texts(arguments: InspectOptions) -> tuple[Task, datasets.Dataset]:
    """Return the rows to study and the task that names their columns of text.

    At most `max_eval_samples` rows, drawn without replacement and in their order.
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
    """Return the measures of a model's heads on the texts of `rows`, cut at `max_length` tokens, under a name."""
    # A token is studied once: windows of a long context share none.
    encoded = kind_of(task).encode(task, rows, loaded.tokenizer, TaskOptions(max_length, doc_stride=0))
    encoded = encoded.select_columns([name for name in loaded.tokenizer.model_input_names if name in encoded.features])
    ids = encoded["input_ids"][:]
    most = most_tokens(loaded.model, loaded.tokenizer)
    if max(map(len, ids)) > most:
        raise AlignAttnError(f"--max_length {max_length}: {loaded.name} takes at most {most} tokens")
    rare = RareTokens.of(ids, loaded.tokenizer.all_special_ids)
    balances = balance_obstacle(loaded.model) is None
    study = study_heads(_samples(loaded, encoded, rare, batch_size), balances=balances)
    layers = patch_of(loaded.model).config.layers
    return ModelStudy(name, layers or range(len(study.measures["entropy"])), study, rare)


def _samples(loaded: RecordedModel, encoded: datasets.Dataset, rare: RareTokens, batch_size: int) -> Iterator[Sample]:
    collate = DataCollatorWithPadding(loaded.tokenizer)
    special_ids, rare_ids = torch.tensor(loaded.tokenizer.all_special_ids), torch.tensor(sorted(rare.ids))
    with progress(Path(loaded.name).name, len(encoded), "text") as bar:
        for rows in encoded.iter(batch_size):
            texts = [dict(zip(rows, values, strict=True)) for values in zip(*rows.values(), strict=True)]
            batch = dict(collate(texts))
            layers = loaded.record(batch)
            for index, real in enumerate(batch["attention_mask"].bool()):
                ids = batch["input_ids"][index, real]
                yield Sample(
                    query=torch.stack([layer["query"][index][:, real] for layer in layers]),
                    key=torch.stack([layer["key"][index][:, real] for layer in layers]),
                    weights=torch.stack([layer["weights"][index][:, real][:, :, real] for layer in layers]),
                    separators=torch.isin(ids, special_ids),
                    rare=torch.isin(ids, rare_ids),
                )
                bar.update()


def _task_texts(name: str, arguments: InspectOptions) -> tuple[Task, datasets.Dataset]:
    task = get_task(name)
    if not kind_of(task).reads_texts_alone:
        raise AlignAttnError(f"--task {name} has no texts whose tokens could be studied: give one that has")
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
        raise AlignAttnError(f"{', '.join(described)}: compare models of the same shape")
