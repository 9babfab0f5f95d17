"""A small graph as a file, for the tests of graph attention."""

import numpy as np

NODES, WIDTH, CLASSES = 30, 12, 3


def graph_arrays(seed=0):
    """Return arrays of a file: node 29 is isolated, one edge is a loop, one is double, nodes 24 to 29 lack a label."""
    draw = np.random.default_rng(seed)
    labels = np.arange(NODES) % CLASSES
    edges = draw.integers(0, NODES - 1, (60, 2))
    edges = np.concatenate([edges, [[3, 3], [0, 1], [1, 0]]])
    features = (draw.random((NODES, WIDTH)) < 0.4).astype(np.float32)
    features[np.arange(NODES), labels] = 3
    row, column = features.nonzero()
    labels[24:] = -1
    return {
        "feat_row": row,
        "feat_col": column,
        "feat_val": features[row, column],
        "feat_shape": np.array(features.shape),
        "edges": edges,
        "labels": labels,
        "train_idx": np.arange(12),
        "val_idx": np.arange(12, 18),
        "test_idx": np.arange(18, 24),
    }


def write_graph(path, **changed):
    """Write the graph with some arrays changed, or left out where they are None; return the path."""
    arrays = graph_arrays() | changed
    np.savez(path, **{name: values for name, values in arrays.items() if values is not None})
    return path
