"""The recipes' original resources: downloaded once; errors name the options for local resources."""

import io
import re
import socket
import sys
import threading
import zipfile
from contextlib import contextmanager
from dataclasses import replace
from urllib.error import URLError

import pytest
from conftest import ROOT
from needs import skip_without
from robustness_helpers import NEIGHBORS, SST2

from alignattn.robustness import resources as resources_module
from alignattn.robustness.recipes import build_attack
from alignattn.utils.errors import AlignAttnError

skip_without(NEIGHBORS, SST2)
pytest_plugins = ["robustness_fixtures"]


def test_original_vectors_are_fetched_as_text_and_once(tmp_path, monkeypatch, capsys, wrapper, resources):
    archive = tmp_path / "vectors.zip"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr(resources_module.VECTORS_FILE, "awful 1.0 0.0\nrotten 0.9 0.1\nnice -1.0 0.0\n")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(resources_module, "VECTORS_URL", archive.as_uri())
    attack = build_attack("textfooler", wrapper, replace(resources, neighbors=None))
    said = capsys.readouterr().err
    asked, fetched, *_ = said.splitlines()
    assert asked == f"asking {archive.as_uri()} for {resources_module.VECTORS_FILE}"
    assert fetched.startswith(f"fetching {resources_module.VECTORS_FILE} (")
    assert str(tmp_path / "cache") in said
    assert attack.transformation._get_replacement_words("Awful") == ["Rotten", "Nice"]
    archive.unlink()
    assert resources_module.counter_fitted_vectors().is_file()
    assert capsys.readouterr().err == ""


@contextmanager
def served(answer):
    """Serve this answer, and nothing else, to one request; yield the address of the server."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve():
            connection, _ = listening.accept()
            with connection:
                connection.recv(2**16)
                connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/vectors.zip"
        thread.join()


def zipped(member, text, damaged=False):
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr(member, text)
    start = zipfile.sizeFileHeader + len(member)
    return content.getvalue()[:start] + b"\xff" * 8 + content.getvalue()[start + 8 :] if damaged else content.getvalue()


def test_a_download_of_unknown_size_is_accepted(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with served(b"HTTP/1.0 200 OK\r\n\r\n" + zipped(resources_module.VECTORS_FILE, "awful 1.0\n")) as address:
        monkeypatch.setattr(resources_module, "VECTORS_URL", address)
        assert resources_module.counter_fitted_vectors().read_text() == "awful 1.0\n"
    assert "(size unknown)" in capsys.readouterr().err


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n10\r\nbroken off",
        b"no HTTP\r\n\r\n",
        b"HTTP/1.0 200 OK\r\n\r\n" + zipped(resources_module.VECTORS_FILE, "awful 1.0\n" * 99, damaged=True),
    ],
    ids=["broken off", "no HTTP", "damaged"],
)
def test_a_download_that_fails_names_the_options(answer, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with served(answer) as address:
        monkeypatch.setattr(resources_module, "VECTORS_URL", address)
        with pytest.raises(AlignAttnError, match=r"could not be fetched .* --word_vectors FILE, --neighbors FILE"):
            resources_module.counter_fitted_vectors()
    assert not (tmp_path / "alignattn" / resources_module.VECTORS_FILE).exists()


@pytest.mark.parametrize(
    ("recipe", "original", "message"),
    [
        ("textfooler", {"neighbors": None}, "--word_vectors FILE, --neighbors FILE or --synonyms wordnet"),
        ("textbugger", {"sentence_encoder": "use"}, "--sentence_encoder"),
        ("bae", {"mlm": None}, "--mlm"),
    ],
)
def test_without_network_the_options_are_named(
    recipe, original, message, tmp_path, monkeypatch, wrapper, resources, capfd
):
    def unreachable(*args, **kwargs):
        raise URLError("no network")

    from alignattn.robustness import recipes

    recipes._load_words.cache_clear()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(resources_module.urllib.request, "urlopen", unreachable)
    with pytest.raises(AlignAttnError, match=message) as error:
        build_attack(recipe, wrapper, replace(resources, **original))
    assert "\n" not in str(error.value)
    assert "fetching" not in capfd.readouterr().err


def test_without_tensorflow_the_error_gives_the_install_command(monkeypatch):
    command = 'pip install "alignattn[use]"'
    assert 'pip install -e ".[use]"' in (ROOT / "docs" / "robustness.md").read_text()
    monkeypatch.setitem(sys.modules, "tensorflow_hub", None)
    with pytest.raises(AlignAttnError, match=re.escape(command)):
        resources_module.universal_sentence_encoder("https://tfhub.dev/google/universal-sentence-encoder/3")
