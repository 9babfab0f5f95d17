"""Tables of finished runs: the options of rows and kept runs are plain data."""

import pytest

from alignattn.commands.reproduce.experiment import Experiment
from alignattn.commands.reproduce.folder import KeptRuns, RunFolder, folders_of
from alignattn.commands.reproduce.table import load_table
from alignattn.utils.errors import AlignAttnError

TABLE = """
title: mine
command: finetune
seeds: 1
options: {model: minilm}
rows:
  - {label: soft, options: {attention: soft}}
  - {label: melted, options: {attention: of an older version, melting_point: 3}}
  - {label: soft and melted, options: {attention: soft, melting_point: 3}}
columns:
  - {label: MRPC, options: {task: mrpc}, measures: [{label: accuracy, path: metrics.validation.accuracy}]}
"""


@pytest.fixture
def path(tmp_path):
    (tmp_path / "mine.yaml").write_text(TABLE)
    return tmp_path / "mine.yaml"


def keep(results, **options):
    """Write the definition of a run, and return it."""
    run = Experiment("finetune", {"model": "minilm", "task": "mrpc", "seed": 1, **options})
    RunFolder(results, run).path.mkdir(parents=True)
    RunFolder(results, run).prepare()
    return run


def found(path, results, **given):
    """The run and the state of each row."""
    cells = list(load_table(str(path), kept=True).with_options(given).cells([1], KeptRuns(results)))
    folders = folders_of(results, cells, kept=True)
    return {cell.row.label: cell.experiments[0] for cell in cells}, [one.path.exists() for one in folders.values()]


def test_a_row_with_an_option_that_no_version_knows_finds_its_run_and_no_other(path, tmp_path):
    with pytest.raises(AlignAttnError, match="melting_point"):
        load_table(str(path))
    soft = keep(tmp_path, attention="soft", data_dir="/of/another/machine", use_cpu=True)
    melted = keep(tmp_path, attention="of an older version", melting_point=3, data_dir="/of/another/machine")
    runs, exist = found(path, tmp_path)
    assert (runs["soft"], runs["melted"]) == (soft, melted)
    assert exist == [True, True, False]
    assert RunFolder(tmp_path, runs["soft and melted"], kept=True).status().state == "missing"
    # Other options of the user select other runs.
    assert found(path, tmp_path, num_train_epochs=1)[1] == [False, False, False]


def test_runs_of_two_machines_are_told_apart_by_the_option_of_one(path, tmp_path):
    here, there = (keep(tmp_path, attention="soft", data_dir=name) for name in ("/here", "/there"))
    with pytest.raises(AlignAttnError, match="differ only in the machine that made them: give its --data_dir"):
        found(path, tmp_path)
    assert found(path, tmp_path, data_dir="/here")[0]["soft"].digest == here.digest
    assert found(path, tmp_path, data_dir="/there")[0]["soft"].digest == there.digest


def test_a_run_is_continued_where_its_rows_lie_now(path, tmp_path):
    path.write_text(TABLE.replace("of an older version, melting_point: 3", "qvi").replace("melting_point", "layers"))
    earlier = keep(tmp_path, attention="soft", data_dir="/of/another/machine")

    def wanted(name):
        (tmp_path / name).mkdir()
        table = load_table(str(path)).with_options({"data_dir": str(tmp_path / name)})
        cells = table.cells([1], KeptRuns(tmp_path, {"data_dir"}))
        return {cell.row.label: RunFolder(tmp_path, cell.experiments[0]) for cell in cells}

    here, there = wanted("here"), wanted("there")
    assert here["soft"].path == there["soft"].path == RunFolder(tmp_path, earlier).path
    assert here["melted"].path == there["melted"].path
    for folder in (here["melted"], there["melted"], there["soft"]):
        folder.prepare()
        assert RunFolder.read(folder.path).values["data_dir"] == folder.experiment.data_dir
