"""The script that checks the patch of each model type: its configs, its inputs, its judge and its table."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from made_inputs import candidates, padded
from model_checks import Plain, check_attention
from model_types import RESULTS, TABLE, by_target, main, read_results, summary, worst, write_table
from observed_attention import BIDIRECTIONAL, CAUSAL, CROSS, GROUPED, contradiction, observing
from small_models import tensors_of
from tiny_configs import Level, config_class_of, image_size, shrunk
from transformers import AutoModel, PreTrainedModel

from alignattn.utils.errors import AlignAttnError


def _tiny(model_type: str) -> PreTrainedModel:
    torch.manual_seed(0)
    return AutoModel.from_config(shrunk(config_class_of(model_type), Level.TINY)).eval()


def _finding(target: str, implementation: str, attention: str, outcome: str, reason: str = "") -> dict[str, str]:
    return {
        "target": target, "implementation": implementation, "attention": attention, "outcome": outcome, "reason": reason
    }  # fmt: skip


def _report(model_type: str, status: str = "built", findings: Any = (), reason: str = "") -> dict[str, Any]:
    return {
        "model_type": model_type, "status": status, "reason": reason, "level": "tiny", "findings": list(findings),
        "unbuilt": {}, "seconds": 1.0,
    }  # fmt: skip


@pytest.mark.parametrize("model_type", ["bert", "modernbert", "clip", "whisper", "t5", "qwen2_moe"])
def test_small_configs_build_models_that_run_on_the_inputs_made(model_type: str) -> None:
    model = _tiny(model_type)

    assert sum(own.numel() for own in model.parameters()) < 2_000_000
    for inputs in candidates(model):
        try:
            outputs = model(**inputs)
        except Exception:
            continue
        assert dict(tensors_of(outputs))
        return
    pytest.fail("no inputs fit")


def test_layers_of_every_kind_are_kept() -> None:
    config = shrunk(config_class_of("gemma3_text"), Level.TINY)

    assert set(config.layer_types) == {"sliding_attention", "full_attention"}
    assert len(config.layer_types) == config.num_hidden_layers


def test_special_tokens_are_in_the_small_vocabulary() -> None:
    config = shrunk(config_class_of("llava"), Level.TINY)

    assert config.image_token_id < config.text_config.vocab_size


def test_overrides_win() -> None:
    config = shrunk(config_class_of("clip"), Level.TINY, {"vision_config.num_attention_heads": 2})

    assert config.vision_config.num_attention_heads == 2


def test_an_image_has_some_patches_and_is_no_larger_than_the_default() -> None:
    assert image_size(224, 16) == 64
    assert image_size(224, 32) == 64
    assert image_size(28, 4) == 28


def test_padding_is_given_to_models_that_have_a_mask() -> None:
    model = _tiny("bert")
    inputs = next(candidates(model))

    padding = padded(model, inputs)

    assert padding is not None
    assert padding["attention_mask"].sum(dim=1).tolist() == [8, 5]
    vision = _tiny("vit")
    assert padded(vision, next(candidates(vision))) is None


@pytest.mark.parametrize(
    ("model_type", "kinds"),
    [("bert", {BIDIRECTIONAL}), ("mistral", {CAUSAL, GROUPED}), ("bart", {BIDIRECTIONAL, CAUSAL, CROSS})],
)
def test_the_judge_measures_what_attention_a_model_has(model_type: str, kinds: set[str]) -> None:
    model = _tiny(model_type)

    with observing() as counts, torch.no_grad():
        model(**next(candidates(model)))

    assert {kind for kind, count in counts.items() if count} == kinds


def test_a_reason_is_contradicted_by_what_is_measured() -> None:
    encoder, decoder = Counter({BIDIRECTIONAL: 2}), Counter({CAUSAL: 2})

    assert contradiction("X attends causally: …", encoder)
    assert not contradiction("X attends causally: …", decoder)
    assert contradiction("it does not use transformers' attention interface", decoder)
    assert not contradiction("it does not use transformers' attention interface", Counter())
    assert contradiction("fewer heads of keys than of queries", decoder)
    assert not contradiction("fewer heads of keys than of queries", decoder | Counter({GROUPED: 2}))


def _patch_that(change: Any) -> Any:
    def patch(model: PreTrainedModel, _: str) -> PreTrainedModel:
        change(model)
        return model

    return patch


def _shift(model: PreTrainedModel) -> None:
    with torch.no_grad():
        model.encoder.layer[0].output.dense.bias.add_(0.1)


def _refuse(_: PreTrainedModel) -> None:
    raise AlignAttnError("X attends causally")


def _fail(_: PreTrainedModel) -> None:
    raise KeyError("num_heads")


def _draw(_: PreTrainedModel) -> None:
    torch.rand(1)


@pytest.mark.parametrize(
    ("change", "outcome"),
    [(_shift, "differs"), (_refuse, "contradicted"), (_fail, "traceback"), (_draw, "differs")],
)
def test_a_wrong_patch_is_detected(monkeypatch: pytest.MonkeyPatch, change: Any, outcome: str) -> None:
    model = _tiny("bert")
    monkeypatch.setattr("alignattn.patch", _patch_that(change))

    assert check_attention(Plain(model, [next(candidates(model))]), "aa-ct")[0] == outcome


def test_the_worst_of_a_models_implementations_is_its_outcome(tmp_path: Path) -> None:
    findings = [
        _finding("BertModel", "sdpa", "aa-ct", "equal"),
        _finding("BertModel", "eager", "aa-ct", "differs", "by 0.2"),
        _finding("BertModel", "sdpa", "qvi", "refused", "because"),
    ]
    report = _report("bert", findings=findings)

    assert worst(["equal", "refused", "traceback"]) == "traceback"
    assert {attention: own["outcome"] for attention, own in by_target(report)["BertModel"].items()} == {
        "aa-ct": "differs", "qvi": "refused"
    }  # fmt: skip
    assert "1 differs" in summary([report], ["aa-ct"])
    write_table(tmp_path / TABLE, [report, _report("odd", "not buildable", reason="needs timm")], ["aa-ct", "qvi"])
    assert (tmp_path / TABLE).read_text(encoding="utf-8").splitlines() == [
        "model,aa-ct,qvi,reason", "bert,differs,no,by n; because", "odd,,,not tried"
    ]  # fmt: skip


def test_results_are_read_without_a_line_that_was_cut_off_and_the_last_of_a_type_counts(tmp_path: Path) -> None:
    path = tmp_path / RESULTS
    lines = [json.dumps(_report("bert", "not buildable")), json.dumps(_report("bert")), json.dumps(_report("t5"))[:20]]
    path.write_text("\n".join(lines), encoding="utf-8")

    assert {name: report["status"] for name, report in read_results(path).items()} == {"bert": "built"}


def test_a_run_resumes_and_reports_a_process_that_died(tmp_path: Path) -> None:
    options = ["--output_dir", str(tmp_path), "--attentions", "aa-ct"]

    assert main([*options, "--types", "bert"]) == 0
    assert main([*options, "--types", "bert", "t5", "--memory_gib", "0"]) == 0

    reports = read_results(tmp_path / RESULTS)
    assert reports["bert"]["status"] == "built"
    assert reports["t5"]["status"] == "not buildable"
    assert "\nbert,yes,\n" in (tmp_path / TABLE).read_text(encoding="utf-8")


def test_a_type_ends_at_its_limit_of_processor_time(tmp_path: Path) -> None:
    main(["--output_dir", str(tmp_path), "--types", "bert", "--seconds", "0"])

    assert "processor time" in read_results(tmp_path / RESULTS)["bert"]["reason"]
