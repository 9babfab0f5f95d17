r"""A pytest plugin that patches every model of transformers that a test builds or loads.

    PYTHONPATH=benchmarks ALIGNATTN_PATCH=aa-ct pytest -p patch_every_model --outcomes patched.txt TESTS

It is for the test suites of the libraries that alignattn depends on: transformers, peft and sentence-transformers. A
test that passes with a plain model must pass with a patched one. `ALIGNATTN_PATCH` is the attention, as for
`alignattn.patch`; with `none` nothing is patched, for the reference run. Models that alignattn refuses stay plain. The
end of the report counts both.

`--outcomes` is a file that receives a line per test, sorted by name, so that `diff` compares two runs. With the source
distributions of transformers and peft from PyPI:

    mkdir /tmp/suites && cd /tmp/suites
    pip install --no-deps --target site parameterized diffusers importlib_metadata zipp
    pip download --no-deps --no-binary :all: --no-build-isolation transformers==5.23.0 peft==0.21.2
    for archive in *.tar.gz; do tar xzf $archive; done
    cd -
    export HF_HUB_OFFLINE=1 PYTHONPATH=$PWD:$PWD/benchmarks:/tmp/suites/transformers-5.23.0:/tmp/suites/site
    for attention in none aa-ct; do
        ALIGNATTN_PATCH=$attention python -m pytest -q -p patch_every_model -c /dev/null --rootdir /tmp/suites \
            --outcomes /tmp/suites/$attention.txt benchmarks/common_model_tests.py -k TestBert
    done
    diff /tmp/suites/none.txt /tmp/suites/aa-ct.txt

peft's tests (such as `tests/test_feature_extraction_models.py -k "BertModel and LoraConfig"`) also need `__init__.py`,
`conftest.py` and `testing_utils.py` of its repository, and sentence-transformers' its folder `tests`. Both load
models from the Hub: without a network, put small models of the same names into a cache (`HF_HOME`), and set
`HF_ENDPOINT=http://127.0.0.1:9` to fail at once.

Some tests differ as expected: those of gradient checkpointing (reentrant checkpointing is refused, and a loop without
`alignment_loss` gives its networks no gradient), and those that compare missing keys or the parameters of two
loaded models (the plugin patches after loading, and each model has networks of its own).
"""

import os
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

import alignattn

VARIABLE, DEFAULT, NOTHING = "ALIGNATTN_PATCH", "aa-ct", "none"
MAX_REASONS = 20
"""Maximum number of printed refusals, the most frequent first."""

ATTENTION = os.environ.get(VARIABLE, DEFAULT)


class EveryModel:
    """Patches a model when the outermost constructor or `from_pretrained` of its class returns.

    Attributes:
        patched: number of patched models of each class.
        refused: number of refused models for each class and reason.
        outcomes: outcomes of the tests that ran, by name.
    """

    def __init__(self) -> None:
        self.patched: Counter[str] = Counter()
        self.refused: Counter[tuple[str, str]] = Counter()
        self.outcomes: dict[str, str] = {}
        self._under_way: list[weakref.ref[Any]] = []
        self._num_loading = 0

    def wrap(self) -> None:
        """Wrap the functions that build and load models."""
        PreTrainedModel.__init__ = self._beginning(PreTrainedModel.__init__)  # type: ignore[method-assign]
        PreTrainedModel.post_init = self._ending(PreTrainedModel.post_init)  # type: ignore[method-assign]
        load = PreTrainedModel.from_pretrained.__func__  # type: ignore[attr-defined]
        PreTrainedModel.from_pretrained = classmethod(self._loading(load))  # type: ignore[assignment, method-assign]

    def _beginning(self, build: Callable[..., None]) -> Callable[..., None]:
        @wraps(build)
        def begin(model: PreTrainedModel, *args: Any, **kwargs: Any) -> None:
            build(model, *args, **kwargs)
            self._under_way.append(weakref.ref(model))

        return begin

    def _ending(self, finish: Callable[..., None]) -> Callable[..., None]:
        @wraps(finish)
        def end(model: PreTrainedModel, *args: Any, **kwargs: Any) -> None:
            finish(model, *args, **kwargs)
            around = [other for ref in self._under_way if (other := ref()) is not None]
            position = next((index for index, other in enumerate(around) if other is model), len(around))
            self._under_way = [weakref.ref(other) for other in around[:position]]
            if not self._under_way and not self._num_loading:
                self._patch(model)

        return end

    def _loading(self, load: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(load)
        def from_pretrained(of_class: type[PreTrainedModel], *args: Any, **kwargs: Any) -> Any:
            self._num_loading += 1
            try:
                loaded = load(of_class, *args, **kwargs)
            finally:
                self._num_loading -= 1
            if not self._under_way and not self._num_loading:
                self._patch(loaded[0] if isinstance(loaded, tuple) else loaded)
            return loaded

        return from_pretrained

    def _patch(self, model: PreTrainedModel) -> None:
        """Patch a model without changing the random state."""
        if any(alignattn.is_patched(module) for module in model.modules()):
            return
        name = type(model).__name__
        try:
            with torch.random.fork_rng():
                alignattn.patch(model, ATTENTION)
        except alignattn.AlignAttnError as error:
            self.refused[name, str(error)] += 1
        else:
            self.patched[name] += 1

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self) -> None:
        """Forget constructors that failed in the previous test."""
        self._under_way.clear()
        self._num_loading = 0

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Record the outcome of a test: the worst of its setup, call and teardown."""
        # Subtests report under the name of their test.
        if self.outcomes.get(report.nodeid) != "failed" and (report.when == "call" or not report.passed):
            self.outcomes[report.nodeid] = report.outcome

    def lines(self) -> Iterator[str]:
        """Yield lines on patched and refused models."""
        yield f"{self.patched.total()} models patched with {ATTENTION!r}: {_counts(self.patched)}"
        yield f"{self.refused.total()} refused"
        for (name, reason), number in self.refused.most_common(MAX_REASONS):
            yield f"  {number} {name}: {reason}"


def _counts(numbers: Counter[str]) -> str:
    return ", ".join(f"{number} {name}" for name, number in numbers.most_common()) or "none"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that names the file of outcomes."""
    parser.addoption("--outcomes", metavar="FILE", help="write the outcome of each test to FILE, one line per test")


def pytest_configure(config: pytest.Config) -> None:
    """Start patching models."""
    every_model = EveryModel()
    config.pluginmanager.register(every_model, "every_model")
    if ATTENTION != NOTHING:
        every_model.wrap()


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Print the counts, and write the outcomes."""
    every_model: Any = config.pluginmanager.get_plugin("every_model")
    terminalreporter.section("alignattn")
    for line in every_model.lines():
        terminalreporter.line(line)
    path = config.getoption("outcomes")
    if path:
        with open(path, "w", encoding="utf-8") as file:
            file.writelines(f"{outcome} {name}\n" for name, outcome in sorted(every_model.outcomes.items()))
