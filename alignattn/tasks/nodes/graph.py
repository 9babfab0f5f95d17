"""Graphs in `.npz` files, which are checked, get edges in both directions and have their features normalised by rows.

`planetoid_file` writes the citation graphs of torch-geometric's Planetoid loader in this form.
"""

import warnings
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from alignattn.tasks.labels import UNLABELLED
from alignattn.tasks.names import GRAPH, NPZ, TEST, TRAIN, VALIDATION
from alignattn.utils.console import announce
from alignattn.utils.errors import AlignAttnError, install_extra, one_line, plural
from alignattn.utils.files import replacing
from alignattn.utils.paths import cache_folder, check_file, file_state

SPARSE_FEATURES = ("feat_row", "feat_col", "feat_val", "feat_shape")
DENSE_FEATURES, EDGES, LABELS, LABEL_NAMES = "features", "edges", "labels", "label_names"
SPLITS: Mapping[str, str] = {TRAIN: "train_idx", VALIDATION: "val_idx", TEST: "test_idx"}
"""The names of the arrays in a file."""

HOST = "https://github.com/kimiyoung/planetoid"
"""Server that torch-geometric downloads from."""

FORM = (
    f"{', '.join(SPARSE_FEATURES)} (or {DENSE_FEATURES} [nodes, width]), {EDGES} [edges, 2] in one direction, {LABELS} "
    f"[nodes] ({UNLABELLED}: none), and lists of nodes {', '.join(SPLITS.values())}"
)


@dataclass(frozen=True)
class Graph:
    """A graph as a model reads it.

    Attributes:
        features: `[n, num_features]` float32; the absolute values of a row sum to 1 unless all are 0; dense or CSR.
        edges: `[2, E]` int64, an attending node and an attended one, sorted by the first: each edge of the file once in
            each direction, and an edge from each node to itself.
        labels: `[n]` int64; -1 for none.
        label_names: the names of the classes in the order of their numbers; empty if the file has none.
        splits: the node numbers by split.
    """

    features: Tensor
    edges: Tensor
    labels: NDArray[np.int64]
    label_names: tuple[str, ...]
    splits: Mapping[str, NDArray[np.int64]]

    @property
    def class_names(self) -> tuple[str, ...]:
        """The names of the classes, or their numbers if the file has no names."""
        return self.label_names or tuple(map(str, range(int(self.labels.max(initial=UNLABELLED)) + 1)))

    @property
    def problem(self) -> str | None:
        """Why the graph does not define a task, or None."""
        if len(self.class_names) < 2:
            return f"{LABELS} holds {len(self.class_names)} class(es): give at least two"
        if not len(self.splits[TRAIN]):
            return f"{SPLITS[TRAIN]} lists no training nodes"
        if len(self.splits) == 1:
            return f"there is neither {' nor '.join(list(SPLITS.values())[1:])}: give nodes to evaluate on"
        return None

    @property
    def num_nodes(self) -> int:
        """The number of nodes n."""
        return len(self.labels)

    @property
    def num_features(self) -> int:
        """The number of features per node."""
        return self.features.shape[1]


def read_graph(path: str | Path) -> Graph:
    """Return the graph of a file; a file that has not changed is read once.

    Raises:
        AlignAttnError: if it cannot be read, or does not hold a graph.
    """
    check_file(Path(path), "give an .npz file of a graph")
    return _read(str(path), file_state(Path(path)))


def graph_of(rows: datasets.Dataset) -> Graph:
    """Return the graph whose nodes the rows are.

    Raises:
        AlignAttnError: if there are several.
    """
    paths = rows.unique(GRAPH)
    if len(paths) != 1:
        raise AlignAttnError(f"the rows are nodes of {len(paths)} graphs: give nodes of one graph")
    return read_graph(paths[0])


@lru_cache(maxsize=4)
def _read(path: str, _: tuple[int, ...]) -> Graph:
    try:
        # Never with pickle: an array of objects runs code when it is read.
        with np.load(path, allow_pickle=False) as content:
            arrays = {name: content[name] for name in content.files}
    except (OSError, ValueError, EOFError, AttributeError, zipfile.BadZipFile) as error:
        raise AlignAttnError(
            f"{path} cannot be read ({one_line(error)}): give an .npz file with {FORM}; pickled objects are refused"
        ) from error
    reader = _Checked(path, arrays)
    labels = reader.whole_numbers(LABELS, 1)
    reader.check_range(LABELS, labels, UNLABELLED, None)
    features = _features(reader, len(labels))
    edges = reader.whole_numbers(EDGES, 2)
    if edges.shape[1] != 2:
        raise reader.wrong(f"{EDGES} is {list(edges.shape)}: it must be [edges, 2]")
    reader.check_range(EDGES, edges, 0, len(labels))
    # Each edge once in each direction, and an edge from each node to itself, sorted, [2, E].
    self_loops = np.repeat(np.arange(len(labels)), 2).reshape(-1, 2)
    all_edges = np.concatenate([edges, edges[:, ::-1], self_loops])
    codes, count = np.unique(all_edges[:, 0] * len(labels) + all_edges[:, 1]), max(len(labels), 1)
    both_ways = torch.from_numpy(np.stack([codes // count, codes % count]))
    names: tuple[str, ...] = ()
    if LABEL_NAMES in arrays:
        names = tuple(reader.array(LABEL_NAMES, 1, "U", "texts").tolist())
        reader.check_range(LABELS, labels, UNLABELLED, len(names))
    splits: dict[str, NDArray[np.int64]] = {}
    for split, name in SPLITS.items():
        if name not in arrays and split != TRAIN:
            continue
        node_ids = reader.whole_numbers(name, 1)
        reader.check_range(name, node_ids, 0, len(labels))
        for earlier, earlier_ids in splits.items():
            if len(overlap := np.intersect1d(node_ids, earlier_ids)):
                raise reader.wrong(f"node {overlap[0]} is in {SPLITS[earlier]} and in {name}: splits must not overlap")
        if len(np.unique(node_ids)) < len(node_ids):
            raise reader.wrong(f"{name} contains a node twice")
        splits[split] = node_ids
    return Graph(features, both_ways, labels, names, splits)


@dataclass(frozen=True)
class _Checked:
    """The arrays of a file, each checked on access."""

    path: str
    arrays: Mapping[str, NDArray[Any]]

    def wrong(self, problem: str) -> AlignAttnError:
        return AlignAttnError(f"{self.path}: {problem}; correct the file")

    def array(self, name: str, dims: int, kinds: str, what: str) -> NDArray[Any]:
        if name not in self.arrays:
            there = ", ".join(self.arrays) or "nothing"
            raise AlignAttnError(f"{self.path} has no {name!r} (it has {there}): a graph is {FORM}")
        array = self.arrays[name]
        if array.ndim != dims or array.dtype.kind not in kinds:
            raise self.wrong(
                f"{name} is {array.dtype} {list(array.shape)}: it must be {what}, in {plural(dims, 'dimension')}"
            )
        return array

    def whole_numbers(self, name: str, dims: int) -> NDArray[np.int64]:
        return self.array(name, dims, "iu", "whole numbers").astype(np.int64)

    def check_range(self, name: str, numbers: NDArray[np.int64], low: int, below: int | None) -> None:
        outside = (numbers < low) | (numbers >= below if below is not None else False)
        if outside.any():
            until = "" if below is None else f" to {below - 1}"
            raise self.wrong(f"{name} holds {numbers[outside][0]}, and must be from {low}{until}")


def _features(reader: _Checked, nodes: int) -> Tensor:
    """The features, dense or CSR, in which the absolute values of each row sum to 1."""
    if DENSE_FEATURES in reader.arrays:
        dense = reader.array(DENSE_FEATURES, 2, "fiub", "numbers").astype(np.float32)
        rows, columns = dense.nonzero()
        values, shape = dense[rows, columns], dense.shape
    else:
        rows, columns = (reader.whole_numbers(name, 1) for name in SPARSE_FEATURES[:2])
        values = reader.array(SPARSE_FEATURES[2], 1, "fiub", "numbers").astype(np.float32)
        shape = tuple(reader.whole_numbers(SPARSE_FEATURES[3], 1).tolist())
        if len(shape) != 2 or not len(rows) == len(columns) == len(values):
            raise reader.wrong(f"{', '.join(SPARSE_FEATURES)} differ in length")
        reader.check_range(SPARSE_FEATURES[0], rows, 0, shape[0])
        reader.check_range(SPARSE_FEATURES[1], columns, 0, shape[1])
    if shape[0] != nodes or shape[1] < 1:
        raise reader.wrong(f"there are {nodes} labels for features of {shape[0]} nodes and {shape[1]} columns")
    if not np.isfinite(values).all():
        raise reader.wrong("features hold NaN or infinity")

    # Values at the same place are summed.
    whole = torch.sparse_coo_tensor(torch.from_numpy(np.stack([rows, columns])), torch.from_numpy(values), shape)
    whole = whole.coalesce()
    rows_of, kept = whole.indices()[0], whole.values()
    sums = torch.zeros(shape[0]).index_add_(0, rows_of, kept.abs())
    kept = kept / sums[rows_of].clamp_min(torch.finfo(torch.float32).tiny)
    whole = torch.sparse_coo_tensor(whole.indices(), kept, shape)
    # With few nonzero values, dropout and products of CSR cost proportionally less.
    if len(kept) >= 0.1 * shape[0] * shape[1]:
        return whole.to_dense()
    with warnings.catch_warnings():
        # PyTorch warns once that CSR tensors are in beta.
        warnings.simplefilter("ignore")
        return whole.to_sparse_csr()


def planetoid_file(task_name: str, graph_name: str, folder: str, cache_dir: str | None) -> Path:
    """Return the file of a task's graph with the public split, converted once from torch-geometric's download.

    The downloaded files are pickles, which torch-geometric unpickles; no user's file is ever unpickled.

    Args:
        task_name: the name of the task.
        graph_name: the name of its graph in torch-geometric; empty if there is none.
        folder: the folder of its file in a `--data_dir`.
        cache_dir: the cache folder; the user's cache if None.

    Raises:
        AlignAttnError: if the task names no graph, torch-geometric is missing, or the download fails.
    """
    advice = f"give --data_dir DIR with {folder}/{task_name}{NPZ}, or your own graph as --task FILE{NPZ}"
    if not graph_name:
        raise AlignAttnError(f"task {task_name!r} has no graph on this machine: {advice}")
    cache = Path(cache_dir) if cache_dir is not None else cache_folder()
    # The loader ignores case.
    path = cache / "planetoid" / f"{graph_name.lower()}{NPZ}"
    if path.is_file():
        return path
    try:
        from torch_geometric.datasets import Planetoid
    except ImportError as error:
        raise AlignAttnError(
            f"task {task_name!r} needs torch-geometric: {install_extra('graph')}; or {advice}"
        ) from error
    announce(f"asking {HOST} for {graph_name}, by torch-geometric")
    try:
        data = Planetoid(str(path.parent), graph_name)[0]
    except Exception as error:  # from any library that it downloads with
        raise AlignAttnError(f"cannot load {graph_name} by torch-geometric: {one_line(error)}; {advice}") from error
    masks = {"train_idx": data.train_mask, "val_idx": data.val_mask, "test_idx": data.test_mask}
    row, column = data.x.nonzero().T.numpy()
    arrays = {
        "feat_row": row,
        "feat_col": column,
        "feat_val": data.x.numpy()[row, column],
        "feat_shape": np.array(data.x.shape),
        "edges": data.edge_index.T.numpy(),
        "labels": data.y.numpy(),
        **{name: mask.nonzero().flatten().numpy() for name, mask in masks.items()},
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as temporary, temporary.open("wb") as file:
        np.savez(file, **arrays)
    return path
