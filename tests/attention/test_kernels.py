"""Triton's kernels, interpreted in float32, against the dense formulas in float64; and where they do not fit."""

import subprocess
import sys
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
import torch
from dense_alignments import DENSE
from entmax import entmax_bisect
from kernel_cases import ATTENTIONS, BY_ADASPLASH, CASES, COMPILED, WITHOUT_GRADIENT, attended, in_one_graph, results
from needs import GPU, needs_gpu
from safetensors.torch import load_file
from torch._subclasses.fake_tensor import FakeTensorMode
from triton_apart import environment_of_triton

from alignattn.attention.config import AttentionConfig
from alignattn.attention.cross_mask import pairs_of
from alignattn.attention.edges import Edges
from alignattn.attention.kernels import choice
from alignattn.attention.kernels.choice import use_kernels
from alignattn.attention.kernels.operator import operator
from alignattn.attention.variant import AttentionVariant
from alignattn.support.errors import AlignAttnError

SCRIPT = Path(__file__).parent.parent / "kernel_cases.py"
FOUND = "found.safetensors"
SCALE = 3
ASCENDING = {"gan": ("query", "key"), "ct": ("critic",), "ot": ()}
"""What climbs the loss: its gradient is the negative."""
TOLERANCE = {"rtol": 2e-4, "atol": 2e-5}
OF_ALPHA = {"rtol": 2e-3, "atol": 2e-4}
"""The gradient in α is a difference of sums that nearly cancel."""
ROUNDED = {"rtol": 5e-3, "atol": 5e-3}
"""In float16."""
BISECTIONS = 100


@pytest.fixture(scope="module")
def interpreted(made_once):
    """What the kernels give for every case, by case and name."""
    environment = environment_of_triton(TRITON_INTERPRET="1")

    def interpret(folder):
        done = subprocess.run([sys.executable, SCRIPT, folder / FOUND], env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert "no kernel" not in done.stderr
        assert {"discriminator", "networks", "transport", "sinkhorn", "entmax"} <= set(done.stdout.split())

    return load_file(made_once("kernels", interpret) / FOUND)


@pytest.fixture
def asked_for(no_kernels):
    use_kernels("triton")


@pytest.fixture
def matmul_precision():
    """After the test products are computed as before it; before it nobody has chosen how."""
    before = torch.get_float32_matmul_precision()
    _forget_precision()
    yield
    _forget_precision()
    if before != "highest":
        torch.set_float32_matmul_precision(before)


def _forget_precision():
    torch.set_float32_matmul_precision("highest")
    if hasattr(torch.backends, "fp32_precision"):
        for backend in (torch.backends, torch.backends.cuda.matmul, torch.backends.mkldnn.matmul):
            backend.fp32_precision = "none"


def dense(case):
    """The loss and the gradients of a case of one layer, by the formula written out."""
    module, (query, key) = case.alignment(torch.float64), case.features(torch.float64)
    masks = [
        torch.ones(side.shape[0], side.shape[2], dtype=torch.bool) if mask is None else mask
        for side, mask in zip((query, key), case.masks(), strict=True)
    ]
    if case.keys is None:
        masks[1] = masks[0]
    rows = masks[0].any(dim=1) & masks[1].any(dim=1)
    loss = DENSE[case.name](module, query[rows], key[rows], masks[0][rows], masks[1][rows])
    if case.head_reduction == "mean":
        loss = loss / case.shape[1]
    (SCALE * loss).backward()
    found = {"query": query.grad, "key": key.grad}
    found |= {name: parameter.grad for name, parameter in module.named_parameters()}
    ascending = ASCENDING[case.name]
    return {"loss": loss.detach()} | {
        name: -gradient if name.split(".")[0] in ascending else gradient for name, gradient in found.items()
    }


def tolerance_of(found, expected):
    """Of a gradient in queries and keys of 16 bits some of its last bits: it is a sum of parts that were rounded."""
    if found.dtype == torch.float32:
        return TOLERANCE
    return {"rtol": 0.0, "atol": 2 * torch.finfo(found.dtype).eps * expected.abs().max().item()}


@pytest.mark.parametrize("name", CASES)
def test_loss_and_gradients_are_those_of_the_dense_formula(name, interpreted):
    case = CASES[name]
    exact = results(case, torch.float64)
    expected = exact if case.layers > 1 else dense(case) | {"diagnostic": exact["diagnostic"]}
    assert set(expected) == set(exact)
    for key, value in expected.items():
        found = interpreted[f"{name}/{key}"]
        tolerance = tolerance_of(found, value)
        torch.testing.assert_close(
            found.double(), value.detach().double(), **tolerance, msg=lambda m, key=key: f"{key}: {m}"
        )
    assert interpreted[f"{name}/query"].abs().max() > 0


@pytest.mark.parametrize("name", COMPILED)
def test_compiled_without_a_break_it_is_the_same(name, interpreted):
    of_case = {key: value for key, value in interpreted.items() if key.startswith(f"{name}/")}
    assert of_case
    for key, value in of_case.items():
        torch.testing.assert_close(interpreted[f"compiled/{key}"], value, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", WITHOUT_GRADIENT)
def test_without_a_gradient_the_loss_is_the_same_and_none_is_made(name, interpreted):
    assert torch.equal(interpreted[f"without a gradient/{name}/loss"], interpreted[f"{name}/loss"])
    assert interpreted[f"without a gradient/{name}/gradient_elements"].tolist() == [0] * len(WITHOUT_GRADIENT[name])


def dense_weights(case, variant, query, key):
    """The entmax of all scores of a case, by the package's bisection."""
    mapped = query @ variant.score_slot.weight if case.score == "bilinear" else query
    scores = mapped @ key.mT * (1.0 if case.score == "dot" else case.shape[-1] ** -0.5)
    alpha = torch.as_tensor(variant.normalizer_slot.alpha)
    mask = pairs_of(case.mask())
    mask = torch.tensor(True) if mask is None else mask
    alpha = alpha[:, None, None] if alpha.dim() else alpha
    return entmax_bisect(scores.masked_fill(~mask, -1e9), alpha, n_iter=BISECTIONS) * mask


def dense_attention(case, dropped):
    """What a case attends to, and the gradients, with the weights written out; `dropped` tells which were dropped."""
    variant, (leaves, gradient) = case.variant(torch.float64), case.inputs(torch.float64)
    weights = dense_weights(case, variant, *leaves[:2])
    found = {}
    if case.dropout:
        weights = weights * (dropped > 0) / (1 - case.dropout)
        found["dropped"] = weights.detach()
    result = weights @ leaves[2]
    result.backward(gradient)
    found |= {name: parameter.grad for name, parameter in variant.named_parameters()}
    found |= {name: leaf.grad for name, leaf in zip(("query", "key", "value"), leaves, strict=True)}
    return found | {"attended": result.detach()}


@pytest.mark.parametrize("name", ATTENTIONS)
def test_sparse_attention_and_gradients_are_those_of_the_dense_formula(name, interpreted):
    found = {key.partition("/")[2]: value for key, value in interpreted.items() if key.startswith(f"{name}/")}
    assert_is_dense(found, ATTENTIONS[name])


def assert_is_dense(found, case):
    expected = dense_attention(case, found.get("dropped"))
    assert set(found) == set(expected)
    for key, value in expected.items():
        tolerance = OF_ALPHA if "alpha" in key else TOLERANCE if case.dtype == torch.float32 else ROUNDED
        torch.testing.assert_close(found[key].double(), value, **tolerance, msg=lambda m, key=key: f"{key}: {m}")


def test_sparse_attention_is_adasplashs(interpreted):
    for key in ("attended", "query", "key", "value"):
        found, expected = interpreted[f"{BY_ADASPLASH}/{key}"], interpreted[f"adasplash/{key}"]
        torch.testing.assert_close(found, expected, **TOLERANCE, msg=lambda m, key=key: f"{key}: {m}")


def test_dropout_drops_its_share(interpreted):
    case = ATTENTIONS["entmax15-dropped"]
    is_weight = dense_weights(case, case.variant(torch.float64), *case.inputs(torch.float64)[0][:2]) > 1e-6
    is_dropped = is_weight & (interpreted["entmax15-dropped/dropped"] == 0)
    assert is_dropped.sum() / is_weight.sum() == pytest.approx(case.dropout, abs=0.05)


@pytest.mark.cuda
@needs_gpu
@pytest.mark.parametrize("name", CASES)
@pytest.mark.usefixtures("asked_for")
def test_on_a_gpu(name, capsys):
    case = CASES[name]
    is_wide = {
        "gan": case.shape[-1] > choice.WIDEST_DISCRIMINATED,
        "ct": case.options.get("feature_dim", 0) > choice.WIDEST_TRANSPORTED
        or case.shape[-1] > choice.WIDEST_DISCRIMINATED,
        "ot": case.shape[-1] > choice.WIDEST_MOVED,
    }[case.name]
    found = results(case, device="cuda")
    assert ("wider than" in capsys.readouterr().err) == is_wide
    use_kernels("eager")
    expected = results(case, torch.float64)
    for key, value in expected.items():
        torch.testing.assert_close(found[key].cpu().double(), value.double(), **tolerance_of(found[key], value))


@pytest.mark.cuda
@needs_gpu
@pytest.mark.parametrize("name", ATTENTIONS)
@pytest.mark.usefixtures("asked_for")
def test_sparse_attention_on_a_gpu(name, capsys):
    case = ATTENTIONS[name]
    found = attended(case, device="cuda")
    assert ("wider than" in capsys.readouterr().err) == (case.shape[-1] > choice.WIDEST_SPARSE)
    assert_is_dense({key: value.cpu() for key, value in found.items()}, case)


@pytest.mark.cuda
@needs_gpu
@pytest.mark.parametrize("name", COMPILED)
@pytest.mark.usefixtures("asked_for")
def test_on_a_gpu_code_is_made_of_what_is_around_the_kernels(name):
    case, measure = (CASES[name], results) if name in CASES else (ATTENTIONS[name], attended)
    expected = measure(case, device="cuda")
    found = measure(case, device="cuda", compiler=partial(torch.compile, fullgraph=True))
    if reasons := choice.obstacles():
        # What a kernel takes of every GPU alike is asserted by the tests above.
        assert all("shared memory" in reason for reason in reasons.values()), reasons
        pytest.skip(f"{GPU} that takes all kernels: {reasons}")
    for key, value in expected.items():
        torch.testing.assert_close(found[key], value, **TOLERANCE, msg=lambda m, key=key: f"{key}: {m}")


@pytest.mark.cuda
@needs_gpu
@pytest.mark.parametrize("name", [*CASES, *ATTENTIONS])
@pytest.mark.usefixtures("asked_for")
def test_on_a_gpu_a_step_is_the_same_each_time_to_the_last_bit(name):
    case, measure = (CASES[name], results) if name in CASES else (ATTENTIONS[name], attended)
    expected = measure(case, device="cuda")
    if reasons := choice.obstacles():
        pytest.skip(f"{GPU} that takes all kernels: {reasons}")
    for key, value in measure(case, device="cuda").items():
        assert torch.equal(value, expected[key]), key


@pytest.mark.cuda
@needs_gpu
@pytest.mark.parametrize("normalizer", ["sparsemax", "entmax15", "entmax"])
@pytest.mark.usefixtures("asked_for")
def test_on_a_gpu_a_query_that_is_no_number_attends_to_none(normalizer):
    variant = AttentionVariant(AttentionConfig(normalizer=normalizer), 16, 1).cuda()
    query, key, value = torch.randn(3, 1, 1, 40, 16, device="cuda")
    query[..., 7, 0] = float("nan")
    attended, _ = variant.attend(query, key, value)
    assert choice.obstacles() == {}
    assert attended.isnan().all(dim=-1).flatten().nonzero().flatten().tolist() == [7]


LAUNCHING_ON_NO_GPU = """
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from alignattn.attention.kernels import choice

choice._Gpu.weakest = staticmethod(lambda: choice._Gpu((9, 0), 232_448))
choice.use_kernels("triton")
with FakeTensorMode():
    assert not choice.takes_kernels(torch.zeros(1, device="cuda"))
"""


def test_where_triton_launches_none_pytorch_computes_and_a_line_says_why():
    environment = environment_of_triton(TRITON_INTERPRET="0", CUDA_VISIBLE_DEVICES="")
    done = subprocess.run([sys.executable, "-c", LAUNCHING_ON_NO_GPU], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "PyTorch's operations do: Triton launches none here: " in done.stderr


@pytest.mark.usefixtures("asked_for")
class TestWhereNoneFits:
    def test_pytorch_computes_and_one_line_says_why_once(self, capsys):
        use_kernels("eager")
        expected = results(CASES["ct-padded"])
        use_kernels("triton")
        for _ in range(2):
            torch.testing.assert_close(results(CASES["ct-padded"]), expected, rtol=0, atol=0)
        assert len(capsys.readouterr().err.splitlines()) == 1

    @pytest.mark.parametrize(
        ("features", "width", "lacks", "said"),
        [
            (torch.zeros(1), 16, None, "on cpu"),
            (torch.zeros(1, device="meta"), 16, "this alignment", "none of this alignment"),
        ],
    )
    def test_what_is_said(self, features, width, lacks, said, capsys, monkeypatch):
        monkeypatch.setattr(choice._Chosen, "has_triton", True)
        assert not choice.takes_kernels(features, (width, width), lacks=lacks)
        assert said in capsys.readouterr().err

    @pytest.mark.parametrize(
        ("features", "width", "said"),
        [(torch.zeros(1, dtype=torch.float64), 16, "float64"), (torch.zeros(1), 129, "129 are wider than 128")],
    )
    def test_what_is_said_of_features_where_kernels_run(self, features, width, said, capsys, monkeypatch):
        monkeypatch.setattr(choice._Chosen, "has_triton", True)
        monkeypatch.setattr(choice._Chosen, "is_interpreted", True)
        assert not choice.takes_kernels(features, (16, 16), (width, 16))
        assert said in capsys.readouterr().err

    @pytest.mark.parametrize(
        ("choices", "arguments", "said"),
        [
            ({"normalizer": "fusedmax"}, {}, "this normalizer"),
            ({"normalizer": "entmax", "normalizer_options": {"alpha": 3}}, {}, "this normalizer"),
            ({"normalizer": "entmax15", "score": "additive"}, {}, "this score"),
            ({"normalizer": "entmax15"}, {"wants_weights": True}, "weights are asked for"),
            ({"normalizer": "entmax15"}, {"bias": torch.ones(1, 1, 3, 3)}, "a bias"),
            ({"normalizer": "sparsemax"}, {"mask": Edges(torch.tensor([0, 1]), torch.tensor([1, 2]), 3)}, "a graph"),
        ],
        ids=["normalizer", "alpha", "score", "weights", "bias", "edges"],
    )
    def test_what_is_said_of_attention(self, choices, arguments, said, capsys, monkeypatch):
        monkeypatch.setattr(choice._Chosen, "has_triton", True)
        monkeypatch.setattr(choice._Chosen, "is_interpreted", True)
        variant, sides = AttentionVariant(AttentionConfig(**choices), 4, 1), torch.randn(3, 1, 1, 3, 4)
        found = variant.attend(*sides, **arguments)
        assert said in capsys.readouterr().err
        use_kernels("eager")
        torch.testing.assert_close(found, variant.attend(*sides, **arguments), rtol=0, atol=0)

    def test_softmax_has_its_own_and_nothing_is_said(self, capsys):
        AttentionVariant(AttentionConfig(), 4, 1).attend(*torch.randn(3, 1, 1, 3, 4))
        assert capsys.readouterr().err == ""

    @pytest.mark.parametrize(
        ("capability", "shared", "precision", "said"),
        [
            ((9, 0), 232_448, "highest", None),
            ((8, 9), 101_376, "high", None),
            ((8, 0), 166_912, "highest", "takes 169,984 bytes of shared memory, and a GPU has 166,912"),
            ((7, 5), 65_536, "high", "compute capability is 7.5, below 8.0"),
            (None, 0, "high", "a GPU of NVIDIA's"),
        ],
        ids=["H100", "L40S", "A100", "T4", "none of NVIDIA's"],
    )
    @pytest.mark.usefixtures("matmul_precision")
    def test_what_is_said_of_a_gpu(self, capability, shared, precision, said, capsys, monkeypatch):
        torch.set_float32_matmul_precision(precision)
        monkeypatch.setattr(choice._Chosen, "has_triton", True)
        monkeypatch.setattr(choice._Chosen, "gpu", capability and choice._Gpu(capability, shared))
        with FakeTensorMode():
            features = torch.zeros(1, device="cuda")
        assert choice.takes_network_kernels(features, (64, 64), are_known=True) == (said is None)
        assert (said or "") in capsys.readouterr().err
        assert bool(choice.obstacles()) == bool(said)

    def test_networks_with_another_layer_are_said(self, capsys, monkeypatch):
        monkeypatch.setattr(choice._Chosen, "has_triton", True)
        monkeypatch.setattr(choice._Chosen, "is_interpreted", True)
        module = CASES["gan-head-of-32"].alignment(torch.float32)
        torch.nn.utils.parametrizations.weight_norm(module.discriminator[1])
        assert not module._fits_kernel(torch.zeros(1))
        assert "none of layers that are parametrized" in capsys.readouterr().err

    def test_a_compiled_call_says_it_and_keeps_it(self, capsys):
        case = CASES["ct-padded"]
        torch.compiler.reset()
        results(case, compiler=in_one_graph)
        assert "no kernel computes the alignment," in capsys.readouterr().err
        assert set(choice.obstacles()) == {"alignment", "alignment's networks"}

    def test_without_triton(self, capsys, monkeypatch):
        monkeypatch.setattr(choice._Chosen, "has_triton", False)
        assert not choice.takes_kernels(torch.zeros(1))
        assert "kernels]" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("setting", "expected"), [("tf32", "tf32"), ("ieee", "tf32x3"), ("high", "tf32"), ("highest", "tf32x3")]
)
@pytest.mark.usefixtures("matmul_precision")
def test_precision_is_pytorchs_whichever_way_it_was_set(setting, expected):
    if setting.startswith("high"):
        torch.set_float32_matmul_precision(setting)
    else:
        # As transformers does for --tf32; the older getter raises an error from then on.
        torch.backends.fp32_precision = setting
    assert choice.precision() == expected


def test_kernels_run_on_the_gpu_of_the_first_tensor(monkeypatch):
    entered = []

    @contextmanager
    def device_of(tensor):
        entered.append(tensor)
        yield
        entered.append(None)

    def doubled(features: torch.Tensor, factor: float) -> torch.Tensor:
        assert entered[-1] is not None
        return features * factor

    made = operator("doubled")(doubled)
    monkeypatch.setattr(torch.cuda, "device_of", device_of)
    assert made(torch.ones(2), 2.0).tolist() == [2, 2]
    assert entered[0].tolist() == [1, 1]
    assert entered[-1] is None


def test_by_default_none_is_taken_and_nothing_said(capsys):
    assert not choice.takes_kernels(torch.zeros(1))
    assert capsys.readouterr().err == ""


def test_an_unknown_implementation_is_refused():
    with pytest.raises(AlignAttnError, match="eager, triton"):
        use_kernels("cuda")
