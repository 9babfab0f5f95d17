"""What a machine may lack: the files of `../shared`, a GPU, a browser. Tests may be skipped only for these reasons.

`make test` installs everything else: a skip for any other reason is a failure.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

SHARED = Path(__file__).resolve().parents[2] / "shared"

GPU, BROWSER = "needs a CUDA GPU", "needs a browser"
ALLOWED = re.compile(rf"Skipped: (needs \.\./shared/\S+|{GPU}.*|{BROWSER}.*)")

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason=GPU)


def reason_of(path: Path) -> str:
    """Return the reason to skip a test that needs a file or folder of `../shared`."""
    return f"needs ../shared/{path.relative_to(SHARED)}"


def needs_files(path: Path) -> pytest.MarkDecorator:
    """Return a mark that skips a test if `path` of `../shared` is absent."""
    return pytest.mark.skipif(not path.exists(), reason=reason_of(path))


def skip_without(*paths: Path) -> None:
    """Skip the test, or the module that is being imported, if one of `paths` of `../shared` is absent."""
    for path in paths:
        if not path.exists():
            pytest.skip(reason_of(path), allow_module_level=True)


def refuse_other_skips(report: pytest.TestReport | pytest.CollectReport) -> None:
    """Report a skip for another reason, or an expected failure, as a failure."""
    if report.skipped:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else "an expected failure"
        if not ALLOWED.fullmatch(reason):
            report.outcome = "failed"
            report.longrepr = f"{reason}: only a reason listed in tests/needs.py may skip a test"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Iterator[None]:
    report = yield
    refuse_other_skips(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Iterator[None]:
    report = yield
    refuse_other_skips(report)
    return report
