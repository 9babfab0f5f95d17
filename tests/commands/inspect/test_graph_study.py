"""`alignattn inspect` of a graph model: its figures against dense attention, and what it refuses."""

import csv

import pytest
import torch
from graphs import write_graph

from alignattn.attention.masks import Edges
from alignattn.cli import main
from alignattn.commands.inspect.graph_study import MEASURES, weight_measures
from alignattn.commands.inspect.head_study import attention_measures

HEADS = [(0, 0), (0, 1), (1, 0)]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("graphs")
    graph = write_graph(folder / "mine.npz")
    sizes = "--model_config hidden_dim=4 num_attention_heads=2 dropout=0 --num_train_epochs 2"
    sizes += " --disable_tqdm true --use_cpu true"
    words = f"--model gat --task {graph} {sizes}"
    for name, attention in (("soft", "soft"), ("sparse", "sparsemax")):
        run = f"finetune {words} --attention {attention} --output_dir {folder / name}"
        assert main(run.split()) == 0
    return folder


def inspected(folder, out, *words):
    given = ["--task", str(folder / "mine.npz"), "--output_dir", str(out), *map(str, words)]
    return main(["inspect", "--model", str(folder / "soft"), *given])


def test_weights_of_edges_are_measured_as_dense_ones():
    draw = torch.Generator().manual_seed(0)
    nodes, heads = 6, 3
    attends = torch.rand(nodes, nodes, generator=draw) < 0.5
    attends[0] = False
    attends.fill_diagonal_(True)[0, 0] = False
    query, key = attends.nonzero(as_tuple=True)
    scores = torch.randn(heads, nodes, nodes, generator=draw, dtype=torch.float64)
    dense = scores.masked_fill(~attends, -torch.inf).softmax(dim=-1)
    shuffled = torch.randperm(len(query), generator=draw)
    edges = Edges(query[shuffled], key[shuffled], nodes)
    found = weight_measures(dense[:, edges.query, edges.key], edges.by_query)
    # The first node attends to nothing.
    expected = attention_measures(dense[:, 1:], None, None, is_one_text=False)
    torch.testing.assert_close(found["entropy"], expected["entropy"])
    assert found["sparsity"].tolist() == [0, 0, 0]


def test_each_head_of_two_models_has_a_line_and_cells_show_both(trained, tmp_path, capsys):
    assert inspected(trained, tmp_path / "out", "--compare", trained / "sparse") == 0
    printed = capsys.readouterr().out
    with (tmp_path / "out" / "heads.csv").open(encoding="utf-8") as file:
        lines = list(csv.DictReader(file))
    assert [(int(line["layer"]), int(line["head"])) for line in lines] == [*HEADS, *HEADS]
    assert (tmp_path / "out" / "heads.png").read_bytes().startswith(b"\x89PNG")
    soft, sparse = lines[:3], lines[3:]
    for one, other in zip(soft, sparse, strict=True):
        assert all(float(line[name]) >= 0 for line in (one, other) for name in MEASURES)
        # Softmax has no weight of 0, and equal weights have the largest entropy.
        assert float(one["sparsity"]) == 0
        assert float(one["entropy"]) <= float(one["entropy_uniform"]) + 1e-6
        assert f"{float(one['entropy']):.3f}/{float(other['entropy']):.3f}" in printed


@pytest.mark.parametrize(("slots", "found"), [("aa-moments", HEADS), ("sparsemax", [(1, 0)])])
def test_layers_keep_their_numbers_if_one_is_patched(trained, tmp_path, slots, found):
    """An alignment leaves the function as it is, so all layers are shown; the others have only the patched one."""
    words = f"--model gat --task {trained / 'mine.npz'} --model_config hidden_dim=4 num_attention_heads=2 dropout=0"
    words += f" --num_train_epochs 1 --disable_tqdm true --use_cpu true --attention {slots} --layers 1"
    assert main(["finetune", *words.split(), "--output_dir", str(tmp_path / "run")]) == 0
    given = ["--task", str(trained / "mine.npz"), "--output_dir", str(tmp_path / "out")]
    assert main(["inspect", "--model", str(tmp_path / "run"), *given]) == 0
    with (tmp_path / "out" / "heads.csv").open(encoding="utf-8") as file:
        assert [(int(line["layer"]), int(line["head"])) for line in csv.DictReader(file)] == found


def test_options_and_models_that_do_not_fit_a_graph_are_refused(trained, tmp_path, tiny_checkpoint, capsys):
    for words, message in {
        ("--batch_size", 3): "--batch_size: --task",
        ("--compare", tiny_checkpoint): "is not a run folder",
    }.items():
        assert inspected(trained, tmp_path / "out", *words) == 2
        (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("alignattn: ")]
        assert message in line
    assert not (tmp_path / "out").exists()
