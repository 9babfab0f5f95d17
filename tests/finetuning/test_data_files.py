"""Which data a run is of: the files that a task names by itself count as those that an option names."""

import shutil
from pathlib import Path

import pytest
from documentation import ROOT

from alignattn.finetuning.options import RunOptions
from alignattn.finetuning.run_files import DATA_FILE
from alignattn.finetuning.run_folder import check_same_data, data_digests
from alignattn.utils.errors import AlignAttnError
from alignattn.utils.files import write_json
from alignattn.utils.options import resolve


def test_files_of_a_task_of_ones_own_are_told_apart_by_their_content(tmp_path: Path) -> None:
    examples = shutil.copytree(ROOT / "docs" / "examples", tmp_path / "examples")
    given = {"model": "x", "task": str(examples / "messages.yaml"), "output_dir": str(tmp_path / "run")}
    options = resolve(RunOptions, given)
    digests = data_digests(options)
    assert digests.keys() == {"task train", "task validation"}
    assert str(tmp_path) not in str(digests)
    write_json(tmp_path / "run" / DATA_FILE, digests)
    check_same_data(options, tmp_path / "run")
    with (examples / "more-messages.tsv").open("a") as file:
        file.write("one more\tpraise\n")
    with pytest.raises(AlignAttnError, match=r"\(of --task: .*more-messages.tsv holds other content than then\)"):
        check_same_data(options, tmp_path / "run")
