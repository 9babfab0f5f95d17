"""Import TextAttack without its side effects, and with stand-ins for missing packages.

Importing textattack 0.3.11

* needs flair, which cannot be installed with transformers 5, and which the three recipes never call. If flair is
  missing, a stand-in has the imported names;
* needs editdistance, which has no wheel for Python 3.13 and newer. If it is missing, Levenshtein replaces it;
* downloads NLTK data, again at every import without network, unless a marker file is in its cache. It gets a temporary
  cache with that marker: in the user's cache the marker would prevent the download for other programs;
* reads NLTK's stop words, for the defaults of an augmenter, which here reads them at its first use;
* with `TA_CACHE_DIR` set, sets `HF_HOME`, `XDG_CACHE_HOME` and two more to it;
* reconfigures logging, which disables every existing logger.

Its CSV logger and the coloured texts of its results are never called: they raise for a text in which langdetect finds
no language, such as `1234 !!`.

The version matters: 0.3.10 garbles pairs (it replaces a word "I" of the second text within its separator `<SPLIT>`),
and its angular similarity of equal sentences is NaN if rounding takes their cosine above 1.
"""

import logging
import logging.config
import os
import sys
from functools import cached_property
from importlib import import_module
from importlib.machinery import ModuleSpec
from importlib.metadata import version
from importlib.util import find_spec, module_from_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType, SimpleNamespace
from typing import Any

from alignattn.utils.attributes import replaced
from alignattn.utils.errors import AlignAttnError, install_extra

VERSION = "0.3.11"
INSTALL = f"{install_extra('attack')} && pip install --no-deps textattack=={VERSION}"

CACHE_VARIABLE = "TA_CACHE_DIR"
LOGGER = "textattack.shared.utils.install"
"""TextAttack's only logger, and the module with its cache folder."""


def check_textattack() -> None:
    """Check that TextAttack is installed, without importing it, before a model is loaded."""
    if "textattack" not in sys.modules and find_spec("textattack") is None:
        raise AlignAttnError(
            f"TextAttack is not installed: {INSTALL} (the extra has what TextAttack needs, and not TextAttack itself, "
            "whose dependency flair cannot be installed beside transformers 5)"
        )
    if version("textattack") != VERSION:
        raise AlignAttnError(
            f"TextAttack {version('textattack')} is installed, and alignattn needs {VERSION}: pip install "
            f"--no-deps textattack=={VERSION}"
        )


def load_textattack() -> ModuleType:
    """Import TextAttack without the network, and without changes to environment variables and loggers."""
    check_textattack()
    if "textattack" in sys.modules:
        return sys.modules["textattack"]
    cache = Path(os.environ.get(CACHE_VARIABLE, "~/.cache/textattack")).expanduser()
    try:
        cache.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise AlignAttnError(
            f"TextAttack's cache {cache} cannot be written ({error.strerror}): set {CACHE_VARIABLE} to another folder"
        ) from error
    try:
        _import_textattack(cache)
    except ModuleNotFoundError as error:
        raise AlignAttnError(
            f"TextAttack needs the package {error.name!r}, which is not installed: {INSTALL}"
        ) from error
    return sys.modules["textattack"]


def _import_textattack(cache: Path) -> None:
    # The first two read HF_HOME once at their import, so they come before TextAttack, which overwrites it.
    for name in ("datasets", "transformers", "nltk"):
        import_module(name)
    add_stand_ins()
    corpora: Any = import_module("nltk.corpus")
    of_caches = (CACHE_VARIABLE, "HF_HOME", "PYTORCH_TRANSFORMERS_CACHE", "TFHUB_CACHE_DIR", "XDG_CACHE_HOME")
    before = {name: os.environ.get(name) for name in (*of_caches, "TOKENIZERS_PARALLELISM")}
    try:
        with (
            replaced(logging.config, dictConfig=lambda config: None),
            replaced(corpora, stopwords=SimpleNamespace(words=lambda language: ())),
            TemporaryDirectory() as marked,
        ):
            # This file marks its NLTK data as downloaded; `prepare_nltk` downloads what is needed.
            (Path(marked) / "post_install_check_3").touch()
            os.environ[CACHE_VARIABLE] = marked
            import_module("textattack")
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
    augmenters: Any = import_module("textattack.augmentation.recipes")
    augmenters.DEFAULT_CONSTRAINTS[1].stopwords = StopWords()
    install: Any = import_module(LOGGER)
    install.TEXTATTACK_CACHE_DIR = str(cache)
    logging.getLogger(LOGGER).setLevel(logging.ERROR)
    jieba = import_module("jieba")
    jieba.setLogLevel(logging.ERROR)
    # By default jieba loads a file of a fixed name in /tmp with marshal, and anyone can put a file there.
    jieba.dt.tmp_dir = str(cache)


def add_stand_ins() -> None:
    """Add stand-ins for flair, whose classes are only imported or subclassed, and editdistance, if they are missing."""
    if find_spec("flair") is None:
        classes = {"flair": (), "flair.data": ("Sentence", "Tokenizer"), "flair.models": ("SequenceTagger",)}
        for name, members in classes.items():
            sys.modules[name] = module = module_from_spec(ModuleSpec(name, None, is_package=True))
            vars(module).update({member: type(member, (), {}) for member in members})
            if "." in name:
                setattr(sys.modules["flair"], name.partition(".")[2], module)
    if find_spec("editdistance") is None:
        sys.modules["editdistance"] = module = module_from_spec(ModuleSpec("editdistance", None))
        vars(module)["eval"] = import_module("Levenshtein").distance


class StopWords:
    """NLTK's English stop words, read at the first use."""

    @cached_property
    def _words(self) -> frozenset[str]:
        corpora: Any = import_module("nltk.corpus")
        return frozenset(corpora.stopwords.words("english"))

    def __contains__(self, word: str) -> bool:
        return word in self._words
