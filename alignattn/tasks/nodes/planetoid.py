"""The citation graphs of torch-geometric's Planetoid loader, as files that this package reads."""

from pathlib import Path

import numpy as np

from alignattn.tasks.names import NPZ
from alignattn.utils.console import log_request
from alignattn.utils.errors import AlignAttnError, install_extra, one_line
from alignattn.utils.files import replacing
from alignattn.utils.paths import cache_folder

HOST = "https://github.com/kimiyoung/planetoid"
"""Server that torch-geometric downloads from."""


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
    cache = Path(cache_dir) if cache_dir is not None else cache_folder()
    path = cache / "planetoid" / f"{task_name}{NPZ}"
    if path.is_file():
        return path
    advice = f"give --data_dir DIR with {folder}/{path.name}, or your own graph as --task FILE{NPZ}"
    if not graph_name:
        raise AlignAttnError(f"task {task_name!r} has no graph on this machine: {advice}")
    try:
        from torch_geometric.datasets import Planetoid
    except ImportError as error:
        raise AlignAttnError(
            f"task {task_name!r} needs torch-geometric: {install_extra('graph')}; or {advice}"
        ) from error
    log_request(f"{graph_name}, by torch-geometric", HOST)
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
