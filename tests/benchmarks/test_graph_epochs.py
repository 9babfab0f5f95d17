"""The timed epochs run with the current package."""

import pytest
from graph_epochs import own_epoch
from graphs import write_graph

from alignattn.tasks.nodes.graph import read_graph


@pytest.mark.parametrize("attention", ["soft", "aa-ct"])
def test_an_epoch_of_ours_runs(attention, tmp_path):
    own_epoch(read_graph(write_graph(tmp_path / "graph.npz")), attention)()
