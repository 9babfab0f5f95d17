"""Write a random graph of three communities, which `--task my_graph.npz` reads.

python docs/examples/graph.py my_graph.npz
"""

import sys

import numpy as np

NODES, CLASSES, WIDTH = 150, 3, 12

drawn = np.random.default_rng(0)
labels = np.arange(NODES) % CLASSES
# Nodes of one community are linked more often, and their features are more alike.
is_linked = drawn.random((NODES, NODES)) < np.where(labels[:, None] == labels, 0.08, 0.01)
features = drawn.random((NODES, WIDTH)) + 0.4 * (np.arange(WIDTH) % CLASSES == labels[:, None])
order = drawn.permutation(NODES)
np.savez(
    sys.argv[1],
    features=features.astype(np.float32),
    edges=np.argwhere(np.triu(is_linked, 1)),
    labels=labels,
    train_idx=order[:60],
    val_idx=order[60:100],
    test_idx=order[100:],
    label_names=np.array(["red", "green", "blue"]),
)
