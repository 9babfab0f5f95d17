"""The measures and the files of the benchmark; no test depends on how long a step takes."""

import csv
import statistics
from pathlib import Path
from typing import Any

import benchmark
import pytest
import torch
from benchmark import PHASES, Shape, Subject, load_model, make_batch, measure, peak_bytes
from conftest import ALIGNED, VOCABULARY, diagnostic_of, tiny_model

import alignattn
from alignattn.attention.alignment import ct
from alignattn.utils.errors import AlignAttnError

MEBIBYTE = 2**20
NUM_LABELS = 2


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("model")
    tiny_model("bert").save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module")
def result(model_folder: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("result") / "benchmark"
    words = f"--model {model_folder} --shapes 3x8 1x16 --repeats 2 --warmup 1 --threads 1 --table"
    assert benchmark.main([*words.split(), "--output_dir", str(folder)]) == 0
    return folder


def lines_of(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def batch_of(shape: Shape) -> dict[str, torch.Tensor]:
    return make_batch(shape, VOCABULARY, 0, NUM_LABELS, seed=0)


def measured(attentions: tuple[str, ...], shape: Shape, phase: str) -> list[dict[str, Any]]:
    model = tiny_model("bert", max_position_embeddings=shape.length, attention_probs_dropout_prob=0.0)
    subjects = [Subject(attention, model) for attention in attentions]
    return measure(subjects, shape, phase, batch_of(shape), repeats=1, warmup=1)


def test_a_line_for_each_attention_shape_and_phase(result: Path, model_folder: str) -> None:
    assert {line["model"] for line in lines_of(result / "benchmark.csv")} == {Path(model_folder).name}
    keys = [
        (line["attention"], line["phase"], line["batch"], line["length"]) for line in lines_of(result / "benchmark.csv")
    ]
    expected = [
        (attention, phase, batch, length)
        for batch, length in (("3", "8"), ("1", "16"))
        for phase in PHASES
        for attention in alignattn.PRESETS
    ]
    assert keys == expected


def test_ratios_are_those_of_the_repeats(result: Path) -> None:
    lines = lines_of(result / "benchmark.csv")
    for line in lines:
        (plain,) = [one for one in lines if one["attention"] == "soft" and alike(one, line)]
        mine, soft = ([float(value) for value in one["seconds"].split()] for one in (line, plain))
        ratios = [a / b for a, b in zip(mine, soft, strict=True)]
        assert len(ratios) == 2
        assert float(line["ratio_median"]) == pytest.approx(statistics.median(ratios))
        low, _, high = statistics.quantiles(ratios, n=4, method="inclusive")
        assert (float(line["ratio_q25"]), float(line["ratio_q75"])) == pytest.approx((low, high))
        if line["attention"] == "soft":
            assert line["ratio_median"] == line["ratio_q25"] == line["ratio_q75"] == "1.0"


def alike(first: dict[str, str], second: dict[str, str]) -> bool:
    return all(first[key] == second[key] for key in ("phase", "batch", "length"))


def test_the_table_has_the_numbers_of_training_steps(result: Path) -> None:
    rows = [line.split(" | ") for line in (result / "efficiency.md").read_text().splitlines() if " × " in line]
    training = [line for line in lines_of(result / "benchmark.csv") if line["phase"] == "training"]
    assert len(rows) == len(training)
    for row, line in zip(rows, training, strict=True):
        assert row[:2] == [f"| {line['batch']} × {line['length']}", line["attention"]]
        assert row[2] == f"{int(line['parameters']) / 1e6:.2f} million"
        assert row[3:5] == [f"{float(line['median_seconds']):.4f} s", f"{float(line['ratio_median']):.2f}"]
        assert row[5] == f"{float(line['peak_mib']):,.1f} MiB |"
    parameters = {line["attention"]: int(line["parameters"]) for line in training}
    assert parameters["soft"] < parameters["aa-gan"] < parameters["aa-ct"]


def test_evaluation_of_an_alignment_needs_no_more_memory(result: Path) -> None:
    for line in lines_of(result / "benchmark.csv"):
        assert float(line["peak_mib"]) > 0
        if line["phase"] == "evaluation" and line["attention"] in ALIGNED:
            assert float(line["extra_mib"]) == pytest.approx(0, abs=0.01 * float(line["peak_mib"]))


def test_diagnostics_are_listed_with_the_training_time(result: Path) -> None:
    for line in lines_of(result / "benchmark.csv"):
        expected = diagnostic_of(line["attention"]) if line["phase"] == "training" else None
        assert line["diagnostics"].partition("=")[0] == (expected or "")


def test_nothing_is_overwritten(result: Path, model_folder: str, capsys: pytest.CaptureFixture[str]) -> None:
    before = (result / "benchmark.csv").read_bytes()
    assert benchmark.main(["--model", model_folder, "--output_dir", str(result)]) == 2
    assert "already holds benchmark.csv" in capsys.readouterr().err
    assert (result / "benchmark.csv").read_bytes() == before


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--shapes 16by128", "'16by128' is not ROWSxTOKENS"),
        ("--repeats 0", "--repeats 0"),
        ("--dropout 1", "--dropout 1.0"),
        ("--shapes 1x8 --attentions foo", "unknown attention 'foo'"),
        ("--shapes 1x65", "65 tokens exceed the maximum"),
        ("--model no/where", "cannot load the model 'no/where': there is no such folder here, and: "),
        ("--device cuda", "--device cuda: PyTorch finds no CUDA GPU"),
    ],
)
def test_a_mistake_is_one_line(
    words: str,
    message: str,
    model_folder: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    folder = tmp_path / "out"
    assert benchmark.main(["--model", model_folder, "--output_dir", str(folder), *words.split()]) == 2
    errors = [line for line in capsys.readouterr().err.splitlines() if line.startswith("benchmark:")]
    assert len(errors) == 1
    assert message in errors[0]
    assert not folder.exists()


def test_peak_is_the_largest_sum_of_live_bytes() -> None:
    def work() -> None:
        first = torch.empty(MEBIBYTE, dtype=torch.uint8)
        second = torch.empty(3 * MEBIBYTE, dtype=torch.uint8)
        del first
        third = torch.empty(2 * MEBIBYTE, dtype=torch.uint8)
        del second, third

    assert peak_bytes(work, "cpu") == 5 * MEBIBYTE


def test_peak_counts_what_autograd_keeps() -> None:
    values = torch.ones(MEBIBYTE // 4, requires_grad=True)

    def work() -> None:
        # Three exponentials keep their results, 1 MiB each; their sum is one number.
        values.exp().exp().exp().sum()

    assert peak_bytes(work, "cpu") == pytest.approx(3 * MEBIBYTE, rel=0.001)


def test_extra_memory_of_ct_grows_linearly_in_length(monkeypatch: pytest.MonkeyPatch) -> None:
    """Growth is linear for long samples; short ones use a matrix of bounded size, which needs less memory."""

    def extra(length: int) -> float:
        return measured(("soft", "aa-ct"), Shape(1, length), "training")[1]["extra_mib"]

    short = extra(512)
    monkeypatch.setattr(ct, "MATRIX_ELEMENTS", 0)
    long = {length: extra(length) for length in (256, 512, 1024)}
    assert 0 < short <= long[512]
    assert long[512] / long[256] == pytest.approx(2, rel=0.1)
    assert long[1024] / long[512] == pytest.approx(2, rel=0.1)


@pytest.mark.parametrize("attention", ALIGNED)
def test_a_training_step_has_the_gradients_of_the_loss_of_the_trainer(attention: str) -> None:
    model = tiny_model("bert", hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    torch.manual_seed(3)
    subject = Subject(attention, model)
    subject.prepare("training")
    batch = batch_of(Shape(3, 8))
    subject.step("training", batch)
    gradients = {name: p.grad.clone() for name, p in subject.model.named_parameters() if p.grad is not None}
    subject.clear()

    with alignattn.collect(subject.model) as seen:
        task_loss = subject.model(**batch).loss
    weight = alignattn.PRESETS[attention].alignment_weight
    (task_loss + weight * torch.stack([layer.loss for layer in seen.layers]).mean()).backward()
    for name, parameter in subject.model.named_parameters():
        if parameter.grad is not None:
            torch.testing.assert_close(gradients.pop(name), parameter.grad, rtol=1e-4, atol=1e-6)
    assert not gradients


def test_steps_are_interleaved_in_rotating_order() -> None:
    taken: list[str] = []

    class Watched(Subject):
        def step(self, phase: str, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
            taken.append(self.attention)
            return super().step(phase, batch)

    model, shape = tiny_model("bert"), Shape(1, 4)
    subjects = [Watched(attention, model) for attention in ("soft", "aa-gan", "aa-ct")]
    measure(subjects, shape, "evaluation", batch_of(shape), repeats=3, warmup=1)
    a, b, c = "soft", "aa-gan", "aa-ct"
    warmup, repeats = [a, b, c], [a, b, c, b, c, a, c, a, b]
    memory_pass = [a, b, c]
    assert taken == warmup + repeats + memory_pass


def test_batch_is_padded_to_its_longest_row() -> None:
    pad_token_id = 7
    batch = make_batch(Shape(64, 40), VOCABULARY, pad_token_id, NUM_LABELS, seed=1)
    again = make_batch(Shape(64, 40), VOCABULARY, pad_token_id, NUM_LABELS, seed=1)
    lengths = batch["attention_mask"].sum(dim=1)
    assert lengths.max() == 40
    assert lengths.min() >= 10
    assert len(lengths.unique()) > 10
    assert torch.equal(batch["input_ids"] == pad_token_id, batch["attention_mask"] == 0)
    assert batch["input_ids"].min() >= 0
    assert batch["input_ids"].max() < VOCABULARY
    assert all(torch.equal(batch[name], again[name]) for name in batch)


@pytest.mark.parametrize(("family", "most"), [("roberta", 32), ("deberta-v3", None)])
def test_the_maximum_length_is_that_of_the_positions(family: str, most: int | None, tmp_path: Path) -> None:
    tiny_model(family, max_position_embeddings=34, pad_token_id=1).save_pretrained(tmp_path)
    batch = {"input_ids": torch.full((1, most or 40), 5)}
    assert load_model(str(tmp_path), most or 40, dropout=None)(**batch).logits.isfinite().all()
    if most is not None:
        with pytest.raises(AlignAttnError, match=f"{most + 1} tokens exceed the maximum"):
            load_model(str(tmp_path), most + 1, dropout=None)


def test_a_bare_model_takes_any_length_and_dropout() -> None:
    model = load_model("tiny", 600, dropout=0.25)
    assert model.config.max_position_embeddings == 600
    assert {module.p for module in model.modules() if isinstance(module, torch.nn.Dropout)} == {0.25}
