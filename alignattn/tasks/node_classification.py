"""Classification of the nodes of a graph."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from alignattn.tasks.labelled import LabelledTask
from alignattn.tasks.names import GRAPH, NODE, NPZ, TEST, TRAIN, VALIDATION
from alignattn.tasks.task import EncodedSplit, Evaluation, TaskOptions, name_classes
from alignattn.utils.errors import AlignAttnError, shown

if TYPE_CHECKING:
    import datasets
    import numpy as np
    from numpy.typing import NDArray
    from transformers import PreTrainedConfig

    from alignattn.tasks.nodes.batches import NodeBatches
    from alignattn.tasks.nodes.graph import Graph
    from alignattn.tasks.reading import FileRows


@dataclass(frozen=True, kw_only=True)
class NodeClassification(LabelledTask):
    """Classification of the nodes of a graph: a row is a node, and the model reads the graph around it.

    Attributes:
        planetoid: The graph's name in torch-geometric's `Planetoid` loader, which is used if no file is given.
    """

    kind = "node-classification"
    input_columns = (GRAPH, NODE)
    auto_class = "AutoModel"
    reads_texts = False
    has_lengths = False
    continuous_input = "features"
    file_column = GRAPH
    reads_only_texts = False

    evaluation_splits: tuple[str, ...] = (VALIDATION, TEST)
    planetoid: str = ""

    def problem(self) -> str | None:
        """Return the problem of missing labels, or that of `LabelledTask.problem`."""
        return "give two or more labels: nodes have classes, not scores" if self.is_regression else super().problem()

    def data_files(self, data_dir: Path) -> dict[str, Path]:
        """Return the file of the graph in `--data_dir`, which has all splits."""
        return dict.fromkeys((TRAIN, *self.evaluation_splits), data_dir / self.sources.folder / f"{self.name}{NPZ}")

    def read_split(self, name: str, data_dir: str | Path | None, cache_dir: str | None) -> tuple[datasets.Dataset, str]:
        """Return the nodes of a split of the task's graph: from `--data_dir`, its own file, or torch-geometric."""
        from alignattn.tasks.nodes.graph import planetoid_file, read_graph

        if data_dir is not None:
            path = self.data_files(Path(data_dir))[name]
            if not path.is_file():
                raise AlignAttnError(f"no data for task {self.name!r}: put {path} there")
        elif files := self.sources.files:
            if name not in files:
                raise AlignAttnError(
                    f"task {self.name!r} has no split {name!r} (there: {', '.join(files)}): choose others with "
                    "--evaluation_splits, or give its file"
                )
            path = Path(files[name])
        else:
            path = planetoid_file(self.name, self.planetoid, self.sources.folder, cache_dir)
        graph = read_graph(path)
        nodes = graph.splits.get(name)
        if nodes is None or not len(nodes):
            raise AlignAttnError(f"{path} has no nodes of split {name!r}: choose others with --evaluation_splits")
        return self._rows(str(path), graph, nodes), f"split {name!r} of {path}"

    def read_rows(
        self, path: Path, encoding: str | None, *, cache_dir: str | None = None, is_labelled: bool = False
    ) -> FileRows:
        """Return all nodes of a graph's file with their labels, or the rows of a table of graphs and nodes."""
        import numpy as np

        from alignattn.tasks.nodes.graph import read_graph
        from alignattn.tasks.reading import FileRows

        if path.suffix.lower() != NPZ:
            return super().read_rows(path, encoding, cache_dir=cache_dir, is_labelled=is_labelled)
        # As in a table next to the graph: `locate` adds the folder.
        graph = read_graph(path)
        return FileRows(self._rows(path.name, graph, np.arange(graph.num_nodes)))

    def _rows(self, path: str, graph: Graph, nodes: NDArray[np.int64]) -> datasets.Dataset:
        import datasets

        labels = graph.labels[nodes]
        return datasets.Dataset.from_dict({GRAPH: [path] * len(nodes), NODE: nodes, self.label_column: labels})

    def names_of_integers(self, dataset: datasets.Dataset) -> dict[int, str]:
        """Return nothing: the labels of a graph are class numbers, whatever the class names."""
        return {}

    def normalise(self, dataset: datasets.Dataset) -> datasets.Dataset:
        """Return the rows with node numbers as integers."""
        return super().normalise(self.normalise_inputs(dataset))

    def normalise_inputs(self, dataset: datasets.Dataset) -> datasets.Dataset:
        """Return the rows with node numbers as integers; CSV files and the command line have them as text."""
        import datasets

        from alignattn.tasks.reading import dataset_of

        nodes = [int(node) if isinstance(node, str) and node.isdecimal() else node for node in dataset[NODE][:]]
        return datasets.concatenate_datasets([dataset.remove_columns(NODE), dataset_of({NODE: nodes})], axis=1)

    def input_problems(self, dataset: datasets.Dataset, *, may_be_empty: bool) -> dict[int, str]:
        """Return the rows without the path of a graph, and those whose node is not in their graph."""
        from alignattn.tasks.nodes.graph import read_graph

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
        name_classes(config, self.labels)

    def encode(self, dataset: datasets.Dataset, tokenizer: Any, options: TaskOptions) -> datasets.Dataset:
        """Return `node` and `label`."""
        import datasets

        return datasets.Dataset.from_dict({NODE: dataset[NODE][:], "label": dataset[self.label_column][:]})

    def collator(self, tokenizer: Any, split: EncodedSplit, *, is_training: bool = False) -> NodeBatches:
        """Return a collator that uses the whole graph or sampled neighbours; evaluation uses all neighbours."""
        from alignattn.tasks.nodes.batches import ALL, NodeBatches
        from alignattn.tasks.nodes.graph import graph_of

        fan_out = split.options.fan_out
        if fan_out is not None and not is_training:
            fan_out = (ALL,) * len(fan_out)
        return NodeBatches(graph_of(split.rows), fan_out)

    def evaluate(self, split: EncodedSplit, outputs: Any, labels: Any) -> Evaluation:
        """Score logits as classes; the table of predictions also has the nodes."""
        import pyarrow as pa

        evaluation = super().evaluate(split, outputs, labels)
        predictions = evaluation.predictions.append_column(NODE, pa.array(split.rows[NODE][:]))
        return replace(evaluation, predictions=predictions)
