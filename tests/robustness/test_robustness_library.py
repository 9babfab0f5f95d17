"""The import of TextAttack by `load_textattack`, in new processes, because an import happens once."""

import json
import os
import subprocess
import sys
import tomllib
from importlib.util import find_spec
from itertools import chain

import nltk
import pytest
import torch
from conftest import ROOT
from needs import needs_files
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from robustness_helpers import NLTK_DATA

from alignattn.robustness import library
from alignattn.robustness.loop import AttackRow, attack_row
from alignattn.robustness.resources import prepare_nltk
from alignattn.utils.errors import AlignAttnError

needs_nltk_data = needs_files(NLTK_DATA)

CLOSED_PORT = 9
"""The port of "discard", on which nothing answers."""

CLEAN_IMPORT = """
import json, logging, os, sys
from pathlib import Path
import nltk
import socket
nltk.data.path.clear()

def connect(*args):
    raise AssertionError(f"the import asks {args[1:]}")

socket.socket.connect = socket.socket.connect_ex = connect
socket.getaddrinfo = connect
downloads = []
nltk.download = lambda *args, **options: downloads.append(args)
earlier = logging.getLogger("of.the.program")
handler = logging.FileHandler(os.environ["LOG_FILE"], mode="w")
earlier.addHandler(handler)
names = ("HF_HOME", "XDG_CACHE_HOME", "TFHUB_CACHE_DIR", "PYTORCH_TRANSFORMERS_CACHE", "TOKENIZERS_PARALLELISM",
         "TA_CACHE_DIR")
before = {name: os.environ.get(name) for name in names}
from alignattn.robustness.library import load_textattack
imported_by_the_package = [name for name in sys.modules if name.split(".")[0] in ("textattack", "flair", "nltk")]
import alignattn.robustness.substitutes
textattack = load_textattack()
earlier.warning("still here")
nltk.data.path.append(os.environ["DATA"])
from textattack.augmentation.recipes import DEFAULT_CONSTRAINTS
from huggingface_hub import constants
import flair, jieba, datasets
print(json.dumps({
    "again": load_textattack() is textattack,
    "environment_kept": before == {name: os.environ.get(name) for name in names},
    "hub": constants.HF_HOME,
    "datasets": str(datasets.config.HF_CACHE_HOME),
    "downloads": downloads,
    "disabled": earlier.disabled,
    "log": Path(os.environ["LOG_FILE"]).read_text(),
    "flair": getattr(flair, "__file__", None),
    "textattack_cache": textattack.shared.utils.install.TEXTATTACK_CACHE_DIR,
    "in_cache": os.listdir(textattack.shared.utils.install.path_in_cache("")),
    "jieba_cache": jieba.dt.tmp_dir,
    "spared": ["the" in DEFAULT_CONSTRAINTS[1].stopwords, "movie" in DEFAULT_CONSTRAINTS[1].stopwords],
    "recipes": hasattr(textattack.attack_recipes, "TextFoolerJin2019"),
}))
"""

STOCK_IMPORT = """
import sys
import nltk
from alignattn.robustness import library
library.add_stand_ins()
downloads = []
nltk.download = lambda name, **options: downloads.append(name)
sys.modules["stanza"] = None
import textattack
print(*downloads)
"""

STAND_IN_USED = """
import os, sys
from pathlib import Path
from alignattn.robustness import library
library.add_stand_ins()
from importlib.util import find_spec
from flair.data import Sentence, Tokenizer
from flair.models import SequenceTagger
assert find_spec("flair") is not None
class Own(Tokenizer):
    pass
assert not isinstance("text", Sentence)
SequenceTagger.load("upos-fast")
"""

ONLY_THE_EXTRA = """
import importlib.metadata as metadata
import re, sys
from packaging.requirements import Requirement

def normal(name):
    return re.sub(r"[-_.]+", "-", name).lower()

def closure(lines, extra=""):
    found, todo = set(), [Requirement(line) for line in lines]
    while todo:
        needed = todo.pop()
        if normal(needed.name) in found or (needed.marker and not needed.marker.evaluate({"extra": ""})):
            continue
        found.add(normal(needed.name))
        try:
            todo += [Requirement(line) for line in metadata.requires(needed.name) or []]
        except metadata.PackageNotFoundError:
            pass
    return found

allowed = closure(sys.argv[1:]) | {"textattack", "alignattn", "setuptools", "packaging"}
owners = metadata.packages_distributions()

class Without:
    # A module finder that hides all other packages, also from code that looks for them without an import.

    def __init__(self, finder):
        self.finder = finder

    def find_spec(self, name, path=None, target=None):
        owned_by = owners.get(name.partition(".")[0])
        is_allowed = not owned_by or {normal(owner) for owner in owned_by} & allowed
        return self.finder.find_spec(name, path, target) if is_allowed else None

    def __getattr__(self, name):
        return getattr(self.finder, name)

sys.meta_path[:] = map(Without, sys.meta_path)
"""


def run(code, *arguments, **environment):
    path = os.pathsep.join(filter(None, [environment.pop("FIRST", ""), str(ROOT), os.environ.get("PYTHONPATH", "")]))
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code, *arguments],
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "DATA": str(NLTK_DATA), **environment},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def clean_import(tmp_path_factory):
    """What an import says in a process that has the packages of the extra alone."""
    folder = tmp_path_factory.mktemp("clean")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed = [*project["dependencies"], *project["optional-dependencies"]["attack"]]
    homes = {"TA_CACHE_DIR": str(folder / "textattack"), "HF_HOME": str(folder / "hub")}
    done = run(ONLY_THE_EXTRA + CLEAN_IMPORT, *needed, LOG_FILE=str(folder / "log"), **homes)
    assert done.returncode == 0, done.stderr
    return {**json.loads(done.stdout), "folder": str(folder), "said": done.stderr}


@needs_nltk_data
class TestAnImport:
    def test_keeps_the_homes_of_other_libraries(self, clean_import):
        assert clean_import["environment_kept"]
        assert clean_import["hub"] == clean_import["datasets"] == f"{clean_import['folder']}/hub"
        assert clean_import["textattack_cache"] == f"{clean_import['folder']}/textattack"

    def test_keeps_loggers_and_their_handlers(self, clean_import):
        assert not clean_import["disabled"]
        assert clean_import["log"] == "still here\n"

    def test_downloads_nothing_and_records_no_download(self, clean_import):
        """No connection is possible in its process, and NLTK finds no data."""
        assert clean_import["downloads"] == []
        assert clean_import["in_cache"] == []

    def test_leaves_the_stop_words_of_augmenters_to_their_first_use(self, clean_import):
        assert clean_import["spared"] == [True, False]

    def test_is_quiet_and_done_once(self, clean_import):
        assert clean_import["said"] == ""
        assert clean_import["again"]
        assert clean_import["recipes"]

    def test_reads_no_marshalled_cache_from_the_common_temporary_folder(self, clean_import):
        assert clean_import["jieba_cache"] == clean_import["textattack_cache"]

    def test_has_a_stand_in_for_flair_where_flair_is_absent(self, clean_import):
        assert clean_import["flair"] is None


@needs_nltk_data
def test_a_stock_textattack_still_downloads_its_data_afterwards(clean_import):
    stock = run(STOCK_IMPORT, TA_CACHE_DIR=clean_import["textattack_cache"], NLTK_DATA=str(NLTK_DATA))
    assert stock.returncode == 0, stock.stderr
    assert "stopwords" in stock.stdout.split()


@needs_nltk_data
def test_a_text_of_no_language_is_recorded_although_textattacks_csv_logger_fails(tmp_path):
    from langdetect import LangDetectException
    from toy_attack import SETTINGS, textattack

    class Model:
        model = None

        def __call__(self, texts):
            return torch.tensor([[0.1, 0.9] if "1" in text else [0.9, 0.1] for text in texts]).double()

        def clear_cache(self):
            pass

    class Other(textattack.transformations.WordSwap):
        def _get_replacement_words(self, word):
            return ["22"]

    goal = textattack.goal_functions.UntargetedClassification(Model())
    attack = textattack.Attack(goal, [], Other(), textattack.search_methods.GreedySearch())
    record = attack_row(attack, AttackRow(0, {"sentence": "1234 !!"}, 1), SETTINGS)
    assert (record.outcome, record.perturbed) == ("succeeded", {"sentence": "22 !!"})
    logger = textattack.loggers.CSVLogger(str(tmp_path / "results.csv"))
    with pytest.raises(LangDetectException):
        logger.log_attack_result(attack.attack("1234 !!", 1))


def test_an_installed_flair_is_used(tmp_path):
    package = tmp_path / "flair"
    package.mkdir()
    (package / "__init__.py").write_text("from . import data, models\n")
    (package / "data.py").write_text("class Sentence: pass\nclass Tokenizer: pass\n")
    (package / "models.py").write_text("class SequenceTagger: pass\n")
    code = "from alignattn.robustness import library; library.add_stand_ins(); import flair; print(flair.__file__)"
    done = run(code, FIRST=str(tmp_path))
    assert done.stdout.strip() == str(package / "__init__.py"), done.stderr


def test_the_stand_in_can_be_imported_but_not_used():
    done = run(STAND_IN_USED)
    assert done.returncode == 1
    assert "'SequenceTagger' has no attribute 'load'" in done.stderr.splitlines()[-1]


def test_without_textattack_one_line_says_how_to_install_it(monkeypatch):
    monkeypatch.delitem(sys.modules, "textattack", raising=False)
    monkeypatch.setattr(library, "find_spec", lambda name: None)
    with pytest.raises(AlignAttnError, match=r"pip install --no-deps textattack==0\.3\.11") as error:
        library.load_textattack()
    assert "\n" not in str(error.value)


def test_the_install_line_is_that_of_the_documentation():
    # The page installs from the clone, and the message adds an extra to whatever is installed.
    page = (ROOT / "docs" / "robustness.md").read_text().replace('-e ".[', '"alignattn[')
    assert [command for command in library.INSTALL.split(" && ") if f"`{command}`" not in page] == []


def test_every_package_of_the_project_is_pinned_at_a_version_that_it_allows():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    project, groups = settings["project"], settings["dependency-groups"].values()
    extras = [*project["optional-dependencies"].values(), *groups]
    pins = [Requirement(line) for line in (ROOT / "constraints.txt").read_text().splitlines() if line[0] != "#"]
    pinned = {canonicalize_name(pin.name): str(pin.specifier).removeprefix("==") for pin in pins}
    needed = [Requirement(line) for line in [*project["dependencies"], *chain.from_iterable(extras)]]
    needed = [need for need in needed if need.name != project["name"]]
    assert {canonicalize_name(need.name) for need in needed} <= pinned.keys()
    assert pinned["textattack"] == library.VERSION
    assert [str(need) for need in needed if pinned[canonicalize_name(need.name)] not in need.specifier] == []


def test_another_version_of_textattack_is_refused(monkeypatch):
    monkeypatch.setattr(library, "version", lambda name: "0.3.10")
    with pytest.raises(AlignAttnError, match=r"TextAttack 0\.3\.10 is installed, and alignattn needs 0\.3\.11"):
        library.load_textattack()


def test_a_check_imports_nothing():
    done = run(
        "import sys; from alignattn.robustness.library import check_textattack; check_textattack(); "
        "print([name for name in ('textattack', 'nltk', 'torch', 'transformers') if name in sys.modules])"
    )
    assert done.stdout.strip() == "[]", done.stderr


@needs_nltk_data
def test_a_missing_package_of_textattack_is_named():
    block = "import sys; sys.modules['nltk'] = None\n"
    code = "from alignattn.robustness.library import load_textattack; load_textattack()"
    done = run(block + code)
    assert done.returncode == 1
    assert "TextAttack needs the package 'nltk'" in done.stderr.splitlines()[-1]


def test_edit_distances_are_counted_where_editdistance_is_absent(monkeypatch):
    monkeypatch.setitem(sys.modules, "editdistance", None)
    monkeypatch.setattr(library, "find_spec", lambda name: None if name == "editdistance" else find_spec(name))
    library.add_stand_ins()
    import editdistance

    pairs = [("kitten", "sitting"), ("", "abc"), ("same", "same"), ("ab", "ba")]
    assert [editdistance.eval(*pair) for pair in pairs] == [3, 3, 0, 2]


def test_a_cache_that_cannot_be_written_is_named(tmp_path, monkeypatch):
    monkeypatch.delitem(sys.modules, "textattack", raising=False)
    (tmp_path / "file").touch()
    monkeypatch.setenv("TA_CACHE_DIR", str(tmp_path / "file" / "below"))
    with pytest.raises(AlignAttnError, match="set TA_CACHE_DIR to another folder"):
        library.load_textattack()


@needs_nltk_data
def test_nltk_data_are_read_from_the_folder_or_downloaded(tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(nltk.data, "path", [])
    asked: list[str] = []
    unreachable = nltk.downloader.Downloader(f"http://127.0.0.1:{CLOSED_PORT}/index.xml").download

    def download(name, **options):
        asked.append(name)
        return unreachable(name, **options)

    monkeypatch.setattr(nltk, "download", download)
    with pytest.raises(AlignAttnError, match="lacks taggers/averaged_perceptron_tagger_eng"):
        prepare_nltk(tmp_path, ("averaged_perceptron_tagger_eng",))
    assert asked == []
    with pytest.raises(
        AlignAttnError, match=r"\(Error loading stopwords: .*corpora/stopwords with --nltk_data"
    ) as error:
        prepare_nltk(None, ("stopwords",))
    assert "\n" not in str(error.value)
    assert asked == ["stopwords"]
    said = capfd.readouterr()
    assert said.err.startswith("fetching NLTK's stopwords (")
    assert (said.err + said.out).count("\n") == 1
    prepare_nltk(NLTK_DATA, ("stopwords", "wordnet", "averaged_perceptron_tagger_eng", "universal_tagset"))
    assert asked == ["stopwords"]
