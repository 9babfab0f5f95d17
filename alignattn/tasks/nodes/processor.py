"""Classification of the nodes of a graph."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from transformers import AutoModel, PreTrainedConfig

from alignattn.tasks.formats.file_rows import FileRows
from alignattn.tasks.labelled import LabelledProcessor
from alignattn.tasks.nodes.batches import ALL, NodeBatches
from alignattn.tasks.nodes.graph import graph_of, read_graph
from alignattn.tasks.nodes.planetoid import planetoid_file
from alignattn.tasks.processor import EncodedSplit, Evaluation, name_classes
from alignattn.tasks.reading import read_rows
from alignattn.tasks.task import NPZ, TaskOptions
from alignattn.tasks.task_types import GRAPH, NODE, NodeClassification
from alignattn.utils.errors import AlignAttnError, shown


class NodeProcessor(LabelledProcessor[NodeClassification]):
    """One node per row; a batch is the graph around some of them."""

    auto_class = AutoModel
    reads_texts = False
    has_lengths = False
    continuous_input = "features"
    reads_only_texts = False

    def read_split(self, name: str, data_dir: str | Path | None, cache_dir: str | None) -> tuple[datasets.Dataset, str]:
        """Return the nodes of a split of the task's graph: from `--data_dir`, its own file, or torch-geometric."""
        task = self.task
        if data_dir is not None:
            path = Path(data_dir) / task.sources.folder / f"{task.name}{NPZ}"
            if not path.is_file():
                raise AlignAttnError(f"no data for task {task.name!r}: put {path} there")
        elif task.sources.files:
            path = Path(task.sources.files[name])
        else:
            path = planetoid_file(task, cache_dir)
        nodes = read_graph(path).splits.get(name)
        if nodes is None or not len(nodes):
            raise AlignAttnError(f"{path} has no nodes of split {name!r}: choose others with --evaluation_splits")
        return self._rows(path, nodes), f"split {name!r} of {path}"

    def read_rows(self, path: Path, encoding: str | None) -> FileRows:
        """Return all nodes of a graph's file with their labels, or the rows of a table of graphs and nodes."""
        if path.suffix.lower() != NPZ:
            return read_rows(path, encoding=encoding)
        return FileRows(self._rows(path, np.arange(read_graph(path).num_nodes)))

    def _rows(self, path: Path, nodes: NDArray[np.int64]) -> datasets.Dataset:
        labels = read_graph(path).labels[nodes]
        return datasets.Dataset.from_dict(
            {GRAPH: [str(path)] * len(nodes), NODE: nodes, self.task.label_column: labels}
        )

    def normalise(self, dataset: datasets.Dataset) -> datasets.Dataset:
        """Return the rows unchanged: the labels of a graph are class numbers, whatever the class names."""
        return dataset

    def normalise_inputs(self, dataset: datasets.Dataset) -> datasets.Dataset:
        """Return the rows with node numbers as integers; CSV files and the command line have them as text."""
        nodes = [int(node) if isinstance(node, str) and node.isdecimal() else node for node in dataset[NODE][:]]
        return datasets.Dataset.from_dict({GRAPH: dataset[GRAPH][:], NODE: nodes}, on_mixed_types="use_json")

    def input_problems(self, dataset: datasets.Dataset, *, may_be_empty: bool) -> dict[int, str]:
        """Return the rows without the path of a graph, and those whose node is not in their graph."""
        paths = {path for path in dataset[GRAPH][:] if isinstance(path, str) and path}
        counts = {path: read_graph(path).num_nodes for path in paths}
        problems = {}
        for index, (path, node) in enumerate(zip(dataset[GRAPH][:], dataset[NODE][:], strict=True)):
            if not isinstance(path, str) or path not in counts:
                problems[index] = f"graph {shown(path)} is not the path of a file"
            elif not isinstance(node, int) or not 0 <= node < counts[path]:
                problems[index] = f"node {shown(node)} is not in 0 to {counts[path] - 1}"
        return problems

    def configure(self, config: PreTrainedConfig) -> None:
        """Set the names of the classes."""
        name_classes(config, self.task.labels)

    def encode(self, dataset: datasets.Dataset, tokenizer: Any, options: TaskOptions) -> datasets.Dataset:
        """Return `node` and `label`."""
        return datasets.Dataset.from_dict({NODE: dataset[NODE][:], "label": dataset[self.task.label_column][:]})

    def collator(self, tokenizer: Any, split: EncodedSplit, *, is_training: bool = False) -> NodeBatches:
        """Return a collator that uses the whole graph or sampled neighbours; evaluation uses all neighbours."""
        fan_out = split.options.fan_out
        if fan_out is not None and not is_training:
            fan_out = (ALL,) * len(fan_out)
        return NodeBatches(graph_of(split.rows), fan_out)

    def evaluate(self, split: EncodedSplit, outputs: Any, labels: Any) -> Evaluation:
        """Score logits as classes; the table of predictions also has the nodes."""
        evaluation = super().evaluate(split, outputs, labels)
        predictions = evaluation.predictions.append_column(NODE, pa.array(split.rows[NODE][:]))
        return replace(evaluation, predictions=predictions)
