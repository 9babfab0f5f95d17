"""`make gpu` as a dry run: every stage, the record that it resumes from, and the section that it writes."""

import json
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import gpu
import gpu_stages
import pytest
import torch
from gpu_report import BEGIN, DOCUMENT, END, section, write_section
from gpu_stages import QUESTIONS, LeftOutError, Plan, Stage, idle_share, stages_of

from alignattn.attention.config import PRESETS
from alignattn.cli import USER_ERROR_EXIT_CODE
from alignattn.utils.errors import AlignAttnError


@pytest.fixture(scope="module")
def dry(tmp_path_factory):
    """The folder with the record of a dry run and the document that it was given."""
    folder = tmp_path_factory.mktemp("gpu")
    (folder / "page.md").write_text(f"above\n{BEGIN}\nold\n{END}\nbelow\n")
    words = f"--device cpu --tiny --output {folder}/gpu.json --document {folder}/page.md"
    assert gpu.main(words.split()) == 0
    return folder


def stages_in(folder: Path):
    return json.loads((folder / "gpu.json").read_text())["stages"]


@pytest.mark.usefixtures("one_thread")
def test_a_dry_run_has_a_result_for_every_stage(dry):
    stages = stages_in(dry)
    assert list(stages) == [stage.name for stage in stages_of(Plan.tiny("cpu"))]
    assert all("result" in stage for stage in stages.values()), stages
    assert "skipped" in stages["tests"]["result"]["summary"]
    for rows in ("all", "8"):
        profile = stages[f"profile aa-ct {rows}"]["result"]
        assert profile["launches"] > 0
        assert len(profile["busiest"]) == gpu_stages.BUSIEST_KERNELS
        assert 0 < sum(kernel["milliseconds"] for kernel in profile["busiest"]) <= profile["busy_milliseconds"]
    for question, (_, answers) in QUESTIONS.items():
        found = stages[f"question {question} aa-ct"]["result"]
        assert list(found) == list(answers)
        assert all(cost["seconds"] > 0 and cost["extra_mib"] > 0 for cost in found.values())


def test_what_is_measured_on_a_cpu_is_never_written_into_a_document(dry):
    assert "old" in (dry / "page.md").read_text()


ONE = "steps float32 2x8 eager aa-ct"


def gone_on_with(path, record, capsys, *words):
    """Return the exit code of a dry run that resumes from a record, and its messages on the measured stages."""
    path.write_text(json.dumps(record))
    code = gpu.main(["--device", "cpu", "--tiny", "--output", str(path), *words])
    return code, [
        line.removeprefix("gpu: ") for line in capsys.readouterr().out.splitlines() if line.startswith("gpu: ")
    ]


@pytest.fixture
def record(dry):
    """The record of the dry run, for tests to change."""
    return json.loads((dry / "gpu.json").read_text())


@pytest.fixture
def unwritten(monkeypatch):
    """Make no section: a changed record cannot have one."""
    monkeypatch.setattr(gpu, "section", lambda record: "")


@pytest.mark.usefixtures("one_thread", "unwritten")
class TestGoingOn:
    def test_what_is_measured_is_not_measured_again(self, record, tmp_path, capsys):
        del record["stages"][ONE]
        path = tmp_path / "gpu.json"
        assert gone_on_with(path, record, capsys) == (0, [f"{ONE}: done"])
        assert gone_on_with(path, json.loads(path.read_text()), capsys) == (0, [])

    @pytest.mark.parametrize("change", [{"failed": "?"}, {"left_out": "?"}, {"result": {}, "code": "earlier"}], ids=str)
    def test_again_measures_what_failed_was_left_out_or_is_of_earlier_code(self, change, record, tmp_path, capsys):
        del record["stages"][ONE]["result"]
        record["stages"][ONE] |= change
        path = tmp_path / "gpu.json"
        assert gone_on_with(path, record, capsys) == (int("failed" in change), [])
        assert gone_on_with(path, record, capsys, "--again") == (0, [f"{ONE}: done"])
        assert stages_in(tmp_path)[ONE]["code"] == gpu.digest_of_code()

    def test_tests_of_earlier_code_are_run_anew(self, record, tmp_path, capsys, monkeypatch):
        monkeypatch.setitem(gpu_stages._MEASURES, "tests", lambda plan: {"summary": "1 passed"})
        record["stages"]["tests"]["code"] = "earlier"
        assert gone_on_with(tmp_path / "gpu.json", record, capsys) == (0, ["tests: done"])

    def test_a_stage_that_ends_the_process_fails_after_two_attempts(self, record, tmp_path, monkeypatch):
        def ends(*_, **__):
            raise KeyboardInterrupt

        monkeypatch.setitem(gpu_stages._MEASURES, "steps", ends)
        del record["stages"][ONE]
        path = tmp_path / "gpu.json"
        path.write_text(json.dumps(record))
        words = ["--device", "cpu", "--tiny", "--output", str(path)]
        for attempts in (1, 2):
            with pytest.raises(KeyboardInterrupt):
                gpu.main(words)
            assert stages_in(tmp_path)[ONE]["attempts"] == attempts
        assert gpu.main(words) == gpu.FAILED_EXIT_CODE
        assert stages_in(tmp_path)[ONE]["failed"] == "ended the process, or was ended with it, 2 times"

    def test_a_stage_that_a_short_call_does_not_finish_is_tried_twice(self, record, tmp_path, capsys, monkeypatch):
        monkeypatch.setitem(gpu_stages._MEASURES, "steps", hangs)
        del record["stages"][ONE]
        path = tmp_path / "gpu.json"
        assert gone_on_with(path, record, capsys, "--minutes", "1e-3") == (0, [])
        code, said = gone_on_with(path, json.loads(path.read_text()), capsys, "--minutes", "1e-3")
        assert code == gpu.FAILED_EXIT_CODE
        assert said == [f"{ONE}: did not end within 0.0 minutes"]


def test_a_record_of_another_machine_is_refused(dry, tmp_path, capsys):
    record = json.loads((dry / "gpu.json").read_text())
    record["conditions"]["device"] = "another"
    path = tmp_path / "gpu.json"
    path.write_text(json.dumps(record))
    assert gpu.main(["--device", "cpu", "--tiny", "--output", str(path)]) == USER_ERROR_EXIT_CODE
    assert "give --output" in capsys.readouterr().err


def hangs(*_, **__):
    while True:
        with suppress(Exception):
            torch.zeros(()).item()


def test_a_stage_that_fails_or_takes_too_long_is_a_line_and_the_others_go_on(tmp_path, monkeypatch):
    def fails(*_, **__):
        raise RuntimeError("out of order\nand more")

    def is_left_out(*_, **__):
        raise LeftOutError("not asked for")

    # Only a loop of this file is interrupted: an interrupted import could affect other tests.
    for kind in ("tests", "question"):
        monkeypatch.setitem(gpu_stages._MEASURES, kind, is_left_out)
    monkeypatch.setitem(gpu_stages._MEASURES, "steps", fails)
    monkeypatch.setitem(gpu_stages._MEASURES, "profile", hangs)
    monkeypatch.setattr(gpu, "STAGE_MINUTES", 1e-3)
    record = gpu.measure_missing(Plan.tiny("cpu"), tmp_path / "gpu.json")
    assert record["stages"]["steps float32 2x8 eager aa-ct"]["failed"] == "RuntimeError: out of order"
    assert "did not end" in record["stages"]["profile soft all"]["failed"]
    assert "out of order" in section(record)
    words = ["--device", "cpu", "--tiny", "--output", str(tmp_path / "gpu.json")]
    assert gpu.main(words) == gpu.FAILED_EXIT_CODE


def test_tests_that_fail_are_a_failed_stage():
    with pytest.raises(RuntimeError, match="ended with exit code 4"):
        Stage("tests", {}).measure(replace(Plan.tiny("cpu"), tests=("no/such/test.py",)))


def test_without_cuda_it_says_so_and_that_is_no_error(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert gpu.main(["--output", str(tmp_path / "gpu.json")]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 1
    assert not (tmp_path / "gpu.json").exists()


def test_the_section_stands_between_its_marks(dry, tmp_path):
    page = tmp_path / "page.md"
    page.write_text(f"above\n{BEGIN}\nold\n{END}\nbelow\n")
    write_section(page, section(json.loads((dry / "gpu.json").read_text())))
    text = page.read_text()
    assert text.startswith("above\n")
    assert text.endswith("below\n")
    assert "| float32 | 2x8 | eager | aa-ct |" in text
    assert "| groups | aa-ct | one |" in text
    assert "| aa-ct | 8 | `" in text
    assert "old" not in text
    assert BEGIN in DOCUMENT.read_text()


@pytest.mark.parametrize("content", [None, "no marks"])
def test_a_document_that_cannot_take_the_section_is_one_line(content, dry, tmp_path):
    page = tmp_path / "page.md"
    if content is not None:
        page.write_text(content)
    with pytest.raises(AlignAttnError, match=r"page\.md"):
        write_section(page, section(json.loads((dry / "gpu.json").read_text())))


def test_every_preset_is_in_the_plan():
    assert set(Plan("cuda").attentions) == {*PRESETS, "entmax15"} - {"soft"}


def test_a_session_profiles_first_and_then_asks_what_is_open():
    kinds = [stage.kind for stage in stages_of(Plan("cuda"))]
    assert list(dict.fromkeys(kinds)) == ["profile", "question", "steps", "tests"]
    assert kinds == sorted(kinds)


@pytest.mark.parametrize(
    ("spans", "share"), [([], 0), ([(0, 10)], 0), ([(0, 2), (8, 10)], 0.6), ([(0, 9), (1, 2), (5, 10)], 0)]
)
def test_idle_share(spans, share):
    assert idle_share(spans) == pytest.approx(share)
