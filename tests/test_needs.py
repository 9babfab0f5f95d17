"""Only a reason of `needs.py` may skip a test, tried on a file of skipped tests."""

import os
import re
import subprocess
import sys
from pathlib import Path

from needs import BROWSER, GPU, SHARED, reason_of

ALLOWED = (reason_of(SHARED / "data"), GPU, f"{BROWSER}: chromium")
SKIPPED = f"""
import pytest

@pytest.mark.parametrize("reason", {ALLOWED})
def test_allowed(reason):
    pytest.skip(reason)

def test_lacks_a_package():
    pytest.importorskip("no_such_package")

@pytest.mark.skipif(True, reason="as it is {GPU}")
def test_other_reason():
    pass

@pytest.mark.skip
def test_no_reason():
    pass

@pytest.mark.parametrize("nothing", [])
def test_of_nothing(nothing):
    pass

@pytest.mark.xfail(reason="{GPU}")
def test_expected_to_fail():
    assert False

@pytest.fixture
def skipping():
    pytest.skip("by a fixture")

def test_with_a_fixture(skipping):
    pass
"""
WHOLE_MODULE = 'import pytest\npytest.skip("the whole module", allow_module_level=True)\n'


def test_a_skip_for_another_reason_is_a_failure(tmp_path: Path) -> None:
    (tmp_path / "test_skipped.py").write_text(SKIPPED)
    (tmp_path / "test_whole_module.py").write_text(WHOLE_MODULE)
    (tmp_path / "test_allowed_module.py").write_text(WHOLE_MODULE.replace("the whole module", ALLOWED[0]))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "needs", "-rA", "--continue-on-collection-errors", str(tmp_path)],
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parent)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    failed = re.findall(r"^(?:FAILED|ERROR) test_(?:skipped.py::test_)?(\w+)", done.stdout, re.MULTILINE)
    assert sorted(failed) == [
        *("expected_to_fail", "lacks_a_package", "no_reason", "of_nothing", "other_reason", "whole_module"),
        "with_a_fixture",
    ], done.stdout
    assert ", 4 skipped, " in done.stdout, done.stdout
