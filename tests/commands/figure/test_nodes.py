"""`alignattn figure nodes`: the states that the model's last layer reads, each node in its class's cloud."""

import numpy as np
import pytest
import torch
from graphs import NODES, write_graph
from sklearn.metrics import silhouette_score

from alignattn.cli import USER_ERROR_EXIT_CODE, main
from alignattn.commands.figure import FigureOptions
from alignattn.commands.figure.command import make_figure
from alignattn.commands.figure.nodes import node_outputs
from alignattn.finetuning.predictor import load_run
from alignattn.tasks.nodes.graph import read_graph

pytestmark = pytest.mark.usefixtures("one_thread")

LABELLED = 24
"""Of the graph's nodes, the first."""


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("nodes")
    words = f"--task {write_graph(folder / 'mine.npz')} --output_dir {folder / 'run'} --model gat --attention aa-ct"
    words += " --model_config hidden_dim=4 num_attention_heads=2 --num_train_epochs 5 --disable_tqdm true"
    assert main(f"finetune {words} --use_cpu true --save_strategy no".split()) == 0
    return folder / "run"


def options(run, output, **more):
    return FigureOptions(kind="nodes", run=(str(run),), output_file=str(output), **more)


def test_nodes_are_what_the_next_layer_reads(run, tmp_path):
    graph, model = read_graph(run.parent / "mine.npz"), load_run(run).model
    with torch.inference_mode():
        logits = model(torch.arange(NODES), graph.features, graph.edges).logits
        seen = node_outputs(run, options(run, tmp_path / "x.png"))
        assert (seen.layer, seen.states.shape) == (0, (LABELLED, 8))
        assert seen.labels.tolist() == graph.labels[:LABELLED].tolist()
        last = node_outputs(run, options(run, tmp_path / "x.png", layer=1))
        assert np.allclose(last.states, logits[:LABELLED].numpy(), atol=1e-6)
        # All hidden states, those without a class too, are what the last layer makes the logits of.
        hidden = []
        hook = model.layers[1].register_forward_pre_hook(lambda module, args: hidden.append(args[0]))
        model(torch.arange(NODES), graph.features, graph.edges)
        hook.remove()
        assert np.allclose(seen.states, hidden[0][:LABELLED].numpy(), atol=1e-6)

    figure = make_figure(options(run, tmp_path / "nodes.png", max_tokens=20))
    (axes,) = figure.axes
    assert sum(len(cloud.get_offsets()) for cloud in axes.collections) == 20
    assert [cloud.get_label() for cloud in axes.collections] == ["0", "1", "2"]
    assert f"20 of {LABELLED} nodes\nsilhouette {silhouette_score(seen.states, seen.labels):.3f}" in axes.get_title()


def test_a_layer_that_is_not_there(run, tmp_path, capsys):
    words = f"figure nodes --run {run} --output_file {tmp_path / 'x.png'} --layer 2"
    assert main(words.split()) == USER_ERROR_EXIT_CODE
    assert "--layer 2: run has layers 0 to 1" in capsys.readouterr().err
