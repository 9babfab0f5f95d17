"""Every use of the network is logged in a line with its host."""

import pytest
from huggingface_hub import constants
from transformers import AutoModel

from alignattn.patching.checkpoints import load_pretrained, loading
from alignattn.utils import network
from alignattn.utils.errors import AlignAttnError


@pytest.fixture
def online(monkeypatch):
    network.log_download.cache_clear()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", "http://localhost")
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    yield
    network.log_download.cache_clear()


def test_the_request_for_a_hub_model_is_logged_once(online, capsys):
    for _ in range(2):
        with loading("someone/encoder"):
            pass
    assert capsys.readouterr().err == "asking http://localhost for the model someone/encoder\n"
    assert not constants.HF_HUB_OFFLINE


def test_a_hub_that_is_out_of_reach_is_not_tried_again(online, monkeypatch, capsys):
    # A host name that never resolves (RFC 6761).
    monkeypatch.setattr(constants, "ENDPOINT", "https://hub.invalid")
    with pytest.raises(AlignAttnError, match="there is no such folder here"):
        load_pretrained("someone/encoder", AutoModel)
    assert constants.HF_HUB_OFFLINE
    out_of_reach = "https://hub.invalid is out of reach: the model someone/encoder must be on this machine already\n"
    assert capsys.readouterr().err == out_of_reach
    network.log_download("the model someone/other")
    assert capsys.readouterr().err == ""


def test_behind_a_proxy_the_hub_is_asked(online, monkeypatch, capsys):
    monkeypatch.setattr(constants, "ENDPOINT", "https://hub.invalid")
    monkeypatch.setenv("https_proxy", "http://localhost:1")
    network.log_download("the model someone/encoder")
    assert capsys.readouterr().err == "asking https://hub.invalid for the model someone/encoder\n"


def test_loading_a_folder_logs_no_request(online, tmp_path, capsys):
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
    network.log_reports(reporters)
    err = capsys.readouterr().err
    assert err.count("\n") == bool(named)
    assert named in err
