"""`alignattn figure nodes`: the inputs of the model's last layer, one cloud of nodes per class."""

import numpy as np
import pytest
import torch
from graphs import NODES, write_graph
from sklearn.metrics import silhouette_score

from alignattn.cli import USER_ERROR_EXIT_CODE, main
from alignattn.commands.figure import FigureOptions, make_figure, node_outputs
from alignattn.finetuning.predictor import load_run
from alignattn.tasks.nodes.graph import read_graph

pytestmark = pytest.mark.usefixtures("one_thread")

LABELLED = 24
"""The number of labelled nodes, which are the first of the graph."""


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("nodes")
    words = f"--task {write_graph(folder / 'mine.npz')} --output_dir {folder / 'run'} --model gat --attention aa-ct"
    words += " --model_config hidden_dim=4 num_attention_heads=2 --num_train_epochs 5 --disable_tqdm true"
    assert main(f"finetune {words} --use_cpu true --save_strategy no".split()) == 0
    return folder / "run"


def options(run, output, **more):
    return FigureOptions(kind="nodes", run=(str(run),), output_file=str(output), **more)


def test_states_of_nodes_are_the_input_of_the_next_layer(run, tmp_path):
    graph, model = read_graph(run.parent / "mine.npz"), load_run(run).model
    with torch.inference_mode():
        logits = model(torch.arange(NODES), graph.features, graph.edges).logits
        layer, states, labels, _ = node_outputs(run, options(run, tmp_path / "x.png"))
        assert (layer, states.shape) == (0, (LABELLED, 8))
        assert labels.tolist() == graph.labels[:LABELLED].tolist()
        _, last, _, _ = node_outputs(run, options(run, tmp_path / "x.png", layer=1))
        assert np.allclose(last, logits[:LABELLED].numpy(), atol=1e-6)
        # The hidden states are the input of the last layer, which computes the logits.
        hidden = []
        hook = model.layers[1].register_forward_pre_hook(lambda module, args: hidden.append(args[0]))
        model(torch.arange(NODES), graph.features, graph.edges)
        hook.remove()
        assert np.allclose(states, hidden[0][:LABELLED].numpy(), atol=1e-6)

    figure = make_figure(options(run, tmp_path / "nodes.png", max_tokens=20))
    (axes,) = figure.axes
    assert sum(len(cloud.get_offsets()) for cloud in axes.collections) == 20
    assert [cloud.get_label() for cloud in axes.collections] == ["0", "1", "2"]
    assert f"20 of {LABELLED} nodes\nsilhouette {silhouette_score(states, labels):.3f}" in axes.get_title()


def test_a_missing_layer_is_refused(run, tmp_path, capsys):
    words = f"figure nodes --run {run} --output_file {tmp_path / 'x.png'} --layer 2"
    assert main(words.split()) == USER_ERROR_EXIT_CODE
    assert "--layer 2: run has layers 0 to 1" in capsys.readouterr().err
