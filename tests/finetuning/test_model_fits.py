"""Options that a model's attention cannot support are refused before anything is read."""

import checkpointing
import pytest

from alignattn import AlignAttnError
from alignattn.commands import get_command
from alignattn.finetuning.options import ModelOptions
from alignattn.models import MODELS, capabilities_of

WITHOUT_PLACES = {"cnn-att", "lstm-att", "lstm-multidim", "lstm-dme", "han"}
WITHOUT_PLACES |= {"co-attention", "memn2n", "captioner", "mcan"}
WITH_PLACES = {"transformer", "seq2seq-lstm", "seq2seq-transformer", "transformer-crf", "cnn-transformer-crf"}


def test_every_model_whose_attention_may_have_a_window_is_listed():
    with_windows = {
        name for name in MODELS if capabilities_of(name).has_attention and not capabilities_of(name).attends_edges
    }
    assert with_windows == WITHOUT_PLACES | WITH_PLACES


@pytest.mark.parametrize("name", sorted(WITHOUT_PLACES | WITH_PLACES | {"bert-base-uncased"}))
def test_a_window_needs_queries_with_positions(name):
    # A learned query counts as the first position: its window was the first eleven words of every text.
    ModelOptions(model=name, normalizer="local", normalizer_options=("kind=predictive",)).check()
    options = ModelOptions(model=name, normalizer="local", normalizer_options=("window=3",))
    if name not in WITHOUT_PLACES:
        options.check()
        return
    with pytest.raises(AlignAttnError, match=rf"--normalizer local .* --model {name} lacks.* kind=predictive"):
        options.check()


@pytest.mark.parametrize("name", [*MODELS, "bert-base-uncased"])
def test_a_budget_needs_attention_step_by_step(name):
    ModelOptions(model=name, attention="soft").check()
    options = ModelOptions(model=name, normalizer="csoftmax", normalizer_options=("fertility=1.5",))
    if name in ("seq2seq-lstm", "captioner"):
        options.check()
        return
    with pytest.raises(AlignAttnError) as caught:
        options.check()
    assert "\n" not in str(caught.value)
    if capabilities_of(name).has_attention and not capabilities_of(name).attends_edges:
        assert "fertility=1.5" in str(caught.value)
        assert f"--model {name}" in str(caught.value)
        ModelOptions(model=name, normalizer="csoftmax", normalizer_options=("bound=0.5",)).check()


@pytest.mark.parametrize("option", sorted({"gradient_checkpointing", checkpointing.NAME}))
def test_models_from_scratch_refuse_activation_checkpointing(option):
    words = ["--task", "mrpc", "--output_dir", "runs/x", f"--{option}", "true"]
    with pytest.raises(AlignAttnError, match=rf"^--{option} is for pretrained encoders, not for cnn"):
        get_command("finetune").parse(["--model", "cnn", *words])
    assert get_command("finetune").parse(["--model", "any", *words]).values[option]


@pytest.mark.parametrize("name", ["gat", "gatv2"])
@pytest.mark.parametrize("chosen", [{"score": "scaled_dot"}, {"attention": "aa-ct+scaled_dot"}])
def test_a_score_that_would_leave_a_models_own_in_place_is_refused(name, chosen):
    with pytest.raises(AlignAttnError, match=rf"scaled_dot.* --model {name} keeps its own score, '{name}'"):
        ModelOptions(model=name, **chosen).check()
    ModelOptions(model=name, score="dot").check()
    ModelOptions(model="transformer", **chosen).check()


def test_hard_attention_refuses_a_window_that_may_hold_no_word():
    hard = {"model": "seq2seq-lstm", "normalizer": "local", "model_config": ("hard_attention=true",)}
    with pytest.raises(AlignAttnError, match=r"hard_attention=true needs a word .* --normalizer local"):
        ModelOptions(**hard).check()
    ModelOptions(**hard, normalizer_options=("kind=predictive",)).check()
