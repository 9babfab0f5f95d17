"""The measures and the files of the benchmark; no test depends on how long a step takes."""

import csv
import statistics
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import ALIGNED, VOCABULARY, diagnostic_of, tiny_model

import alignattn
from alignattn.attention.alignment import plans
from alignattn.cli import USER_ERROR_EXIT_CODE
from alignattn.cli import main as run_command
from alignattn.commands import get_command
from alignattn.commands.benchmark.command import load_model
from alignattn.commands.benchmark.step_timing import (
    PHASES,
    Measurement,
    Phase,
    Setting,
    Shape,
    Subject,
    make_batch,
    measure,
    peak_bytes,
)
from alignattn.utils.errors import AlignAttnError

CPU = Setting(torch.device("cpu"))
MEBIBYTE = 2**20
NUM_LABELS = 2
PNG_SIGNATURE = b"\x89PNG"


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("model")
    tiny_model("bert").save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module")
def result(model_folder: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("result") / "benchmark"
    words = f"--model {model_folder} --shapes 3x8 --lengths 16 32 --repeats 2 --warmup 1 --threads 1"
    assert run_command(["benchmark", *words.split(), "--output_dir", str(folder)]) == 0
    return folder


def lines_of(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def batch_of(shape: Shape) -> dict[str, torch.Tensor]:
    return make_batch(shape, VOCABULARY, 0, NUM_LABELS, seed=0)


def measured(attentions: tuple[str, ...], shape: Shape, phase: Phase) -> Measurement:
    model = tiny_model("bert", max_position_embeddings=shape.length, attention_probs_dropout_prob=0.0)
    subjects = [Subject(attention, model, CPU) for attention in attentions]
    return measure(subjects, shape, phase, batch_of(shape), repeats=1, warmup=1, on_repeat=lambda: None)


def test_a_line_for_each_attention_shape_and_phase(result: Path, model_folder: str) -> None:
    assert {line["model"] for line in lines_of(result / "benchmark.csv")} == {Path(model_folder).name}
    keys = [
        (line["attention"], line["phase"], line["batch"], line["length"]) for line in lines_of(result / "benchmark.csv")
    ]
    expected = [
        (attention, phase, batch, length)
        for batch, length in (("3", "8"), ("1", "16"), ("1", "32"))
        for phase in PHASES
        for attention in alignattn.PRESETS
    ]
    assert keys == expected


def test_ratios_are_those_of_the_repeats(result: Path) -> None:
    repeats = lines_of(result / "repeats.csv")
    for line in lines_of(result / "benchmark.csv"):
        same_cell = [one for one in repeats if all(one[key] == line[key] for key in ("phase", "batch", "length"))]
        mine, soft = (
            [float(one["seconds"]) for one in same_cell if one["attention"] == name]
            for name in (line["attention"], "soft")
        )
        ratios = [a / b for a, b in zip(mine, soft, strict=True)]
        assert len(ratios) == 2
        assert float(line["ratio_median"]) == pytest.approx(statistics.median(ratios))
        low, _, high = statistics.quantiles(ratios, n=4, method="inclusive")
        assert (float(line["ratio_q25"]), float(line["ratio_q75"])) == pytest.approx((low, high))
        if line["attention"] == "soft":
            assert line["ratio_median"] == line["ratio_q25"] == line["ratio_q75"] == "1.0"


def test_evaluation_of_an_alignment_needs_no_more_memory(result: Path) -> None:
    for line in lines_of(result / "benchmark.csv"):
        assert float(line["peak_mib"]) > 0
        if line["phase"] == "evaluation" and line["attention"] in ALIGNED:
            assert float(line["extra_mib"]) == pytest.approx(0, abs=0.01 * float(line["peak_mib"]))


def test_diagnostics_are_listed_with_the_training_time(result: Path) -> None:
    for line in lines_of(result / "benchmark.csv"):
        expected = diagnostic_of(line["attention"]) if line["phase"] == "training" else None
        assert line["diagnostics"].partition("=")[0] == (expected or "")


def test_pictures_are_drawn(result: Path) -> None:
    for name in ("ratios.png", "growth.png"):
        assert (result / name).read_bytes().startswith(PNG_SIGNATURE)


def test_nothing_is_overwritten(result: Path, model_folder: str, capsys: pytest.CaptureFixture[str]) -> None:
    before = (result / "benchmark.csv").read_bytes()
    words = ["benchmark", "--model", model_folder, "--output_dir", str(result)]
    assert run_command(words) == USER_ERROR_EXIT_CODE
    assert "already holds benchmark.csv" in capsys.readouterr().err
    assert (result / "benchmark.csv").read_bytes() == before


def test_an_interrupted_benchmark_is_measured_anew(
    model_folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["benchmark", "--model", model_folder, "--shapes", "2x8", "--attentions", "soft", "aa-ct"]
    words += ["--repeats", "1", "--warmup", "0", "--output_dir", str(tmp_path)]

    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    command = get_command("benchmark")
    with monkeypatch.context() as patched:
        patched.setattr("alignattn.commands.benchmark.command.draw_ratios", killed)
        with pytest.raises(KeyboardInterrupt):
            command.execute(command.parse(words[1:]))
    assert (tmp_path / "benchmark.csv").is_file()
    assert run_command(words) == 0
    assert (tmp_path / "ratios.png").read_bytes().startswith(PNG_SIGNATURE)
    assert run_command(words) == USER_ERROR_EXIT_CODE


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--shapes 16by128", "'16by128' is not ROWSxTOKENS"),
        ("--lengths 64 128 --tokens 100", "--lengths 128 exceeds --tokens 100"),
        ("--tokens 100", "--tokens needs --lengths"),
        ("--lengths 64 --rows 2 --tokens 128", "--tokens does not go with --rows"),
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
    command = ["benchmark", "--model", model_folder, "--output_dir", str(folder), *words.split()]
    assert run_command(command) == USER_ERROR_EXIT_CODE
    errors = [line for line in capsys.readouterr().err.splitlines() if line.startswith("alignattn:")]
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

    assert peak_bytes(work, CPU.device) == 5 * MEBIBYTE


def test_peak_counts_what_autograd_keeps() -> None:
    values = torch.ones(MEBIBYTE // 4, requires_grad=True)

    def work() -> None:
        # Three exponentials keep their results, 1 MiB each; their sum is one number.
        values.exp().exp().exp().sum()

    assert peak_bytes(work, CPU.device) == pytest.approx(3 * MEBIBYTE, rel=0.001)


def test_extra_memory_of_ct_grows_linearly_in_length(monkeypatch: pytest.MonkeyPatch) -> None:
    """Growth is linear for long samples; short ones use a matrix of bounded size, which needs less memory."""

    def extra(length: int) -> int:
        peaks = measured(("soft", "aa-ct"), Shape(1, length), "training").peak_bytes
        return peaks["aa-ct"] - peaks["soft"]

    short = extra(512)
    monkeypatch.setattr(plans, "MATRIX_ELEMENTS", 0)
    long = {length: extra(length) for length in (256, 512, 1024)}
    assert 0 < short <= long[512]
    assert long[512] / long[256] == pytest.approx(2, rel=0.1)
    assert long[1024] / long[512] == pytest.approx(2, rel=0.1)


@pytest.mark.parametrize("attention", ALIGNED)
def test_a_training_step_has_the_gradients_of_the_loss_of_the_trainer(attention: str) -> None:
    model = tiny_model("bert", hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    torch.manual_seed(3)
    subject = Subject(attention, model, CPU)
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
        def step(self, phase: Phase, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
            taken.append(self.attention)
            return super().step(phase, batch)

    model, shape = tiny_model("bert"), Shape(1, 4)
    subjects = [Watched(attention, model, CPU) for attention in ("soft", "aa-gan", "aa-ct")]
    repeats_seen: list[int] = []
    measure(
        subjects,
        shape,
        "evaluation",
        batch_of(shape),
        repeats=3,
        warmup=1,
        on_repeat=lambda: repeats_seen.append(len(taken)),
    )
    a, b, c = "soft", "aa-gan", "aa-ct"
    warmup, repeats = [a, b, c], [a, b, c, b, c, a, c, a, b]
    memory_pass = [a, b, c]
    assert taken == warmup + repeats + memory_pass
    assert repeats_seen == [6, 9, 12]


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
