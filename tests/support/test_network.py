"""No call to the network without a line that tells to where."""

import huggingface_hub
import pytest

from alignattn.patching.checkpoints import loading
from alignattn.support import network


@pytest.fixture
def online(monkeypatch):
    network.say_hub.cache_clear()
    monkeypatch.setattr(network, "is_offline_mode", lambda: False)
    yield
    network.say_hub.cache_clear()


def test_a_model_of_the_hub_is_asked_for_in_one_line(online, capsys):
    for _ in range(2):
        with loading("someone/encoder"):
            pass
    assert capsys.readouterr().err == f"asking {huggingface_hub.constants.ENDPOINT} for the model someone/encoder\n"


def test_a_folder_is_asked_of_nobody(online, tmp_path, capsys):
    with loading(str(tmp_path)):
        pass
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("reporters", "named"),
    [
        ([], ""),
        (["tensorboard"], ""),
        (["wandb"], "to wandb,"),
        (["wandb", "dvclive", "comet_ml"], "comet_ml and wandb"),
    ],
)
def test_services_that_a_run_reports_to_are_named(reporters, named, capsys):
    network.say_reports(reporters)
    err = capsys.readouterr().err
    assert err.count("\n") == bool(named)
    assert named in err
