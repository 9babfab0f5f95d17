"""Counts the trials of tests by kind and prints a table of them at the end of the output."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest

PROPERTY = "faults"
TRIED, SURVIVED = "tried", "survived"


@pytest.fixture
def trying(request: pytest.FixtureRequest) -> Iterator[Callable[[str], AbstractContextManager[None]]]:
    """`with trying(kind):` counts the trials, and those whose block raises nothing."""
    counts: Counter[tuple[str, str]] = Counter()

    @contextmanager
    def one(kind: str) -> Iterator[None]:
        counts[kind, TRIED] += 1
        yield
        counts[kind, SURVIVED] += 1

    yield one
    # Workers of xdist return properties of tests.
    request.node.user_properties.append((PROPERTY, [[*key, count] for key, count in counts.items()]))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print each kind with its numbers of trials and of survived ones."""
    total: Counter[tuple[str, str]] = Counter()
    reports = [report for group in terminalreporter.stats.values() for report in group]
    for report in reports:
        if getattr(report, "when", None) == "teardown":
            for kind, what, count in dict(report.user_properties).get(PROPERTY, ()):
                total[kind, what] += count
    kinds = list(dict.fromkeys(kind for kind, _ in total))
    if kinds:
        terminalreporter.section("faults")
        for kind in kinds:
            terminalreporter.write_line(
                f"{kind:<50} {total[kind, TRIED]:>7,} tried {total[kind, SURVIVED]:>7,} survived"
            )
