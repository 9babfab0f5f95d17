"""The options of a run: those of transformers and ours, conflicts, and the config that repeats a run."""

import subprocess
import sys
from contextlib import nullcontext
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import yaml
from conftest import ROOT
from transformers import BertConfig, BertForSequenceClassification, TrainingArguments
from transformers.training_args import ParallelMode

import alignattn
from alignattn.attention.choices import ALIGNMENTS, NORMALIZERS, SCORES, VALUES
from alignattn.commands import get_command
from alignattn.commands.reproduce.experiment import Experiment
from alignattn.commands.reproduce.folder import RunFolder
from alignattn.finetuning.options import ModelOptions, RunOptions
from alignattn.finetuning.run_folder import read_run_options
from alignattn.finetuning.training_arguments import (
    SET_BY_ALIGNATTN,
    check_sharding,
    training_arguments,
)
from alignattn.models import MODELS, SAMPLING_OPTION, capabilities_of
from alignattn.patching import alignment_parameters, function_parameters
from alignattn.utils.errors import AlignAttnError
from alignattn.utils.options import option_names, options_of, resolve

GIVEN = ("--model", "any", "--task", "mrpc", "--output_dir", "runs/x")
OWN = ("--model", "any", "--train_file", "rows.csv", "--text_columns", "a", "--output_dir", "runs/x")


def test_every_training_argument_of_transformers_is_an_option_or_set_by_us():
    names = {field.name for field in fields(TrainingArguments) if field.init}
    assert names - option_names(RunOptions) == SET_BY_ALIGNATTN
    ours = options_of(RunOptions)
    assert (ours["optim"].default, ours["max_grad_norm"].default) == (TrainingArguments.optim, 1.0)


def test_given_values_of_transformers_options_have_their_types(tmp_path: Path):
    words = (
        "--adam-beta1 0.8 --tf32 --no_dataloader_pin_memory --debug underflow_overflow --data_seed 7 "
        '--lr_scheduler_kwargs {"min_lr":1e-6} --deepspeed ds.json'
    )
    expected = {
        "adam_beta1": 0.8, "tf32": True, "dataloader_pin_memory": False, "debug": ["underflow_overflow"],
        "data_seed": 7, "lr_scheduler_kwargs": {"min_lr": 1e-6}, "deepspeed": "ds.json",
    }  # fmt: skip
    finetune, path = get_command("finetune"), tmp_path / "config.yaml"
    options = finetune.parse([*GIVEN, *words.split()])
    assert options.training.transformers == expected
    path.write_text(options.to_yaml())
    assert finetune.parse(["--config", str(path)]) == options
    values = {"model": "any", "task": "mrpc", "output_dir": "runs/x", "run_name": None}
    assert finetune.resolve(values | expected) == options


@pytest.mark.parametrize("model", MODELS)
def test_training_defaults_of_a_model_are_options(model: str):
    assert capabilities_of(model).training_defaults.keys() <= options_of(RunOptions).keys()


def test_own_options_need_no_torch():
    words = [
        *GIVEN,
        *["--attention", "soft", "--r_drop_weight", "1", "--early_stopping_patience", "2", "--balance", "start"],
    ]
    code = f"import sys; from alignattn.commands import get_command; get_command('finetune').parse({words}); "
    code += "assert not sys.modules.keys() & {'torch', 'transformers'}"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_trainers_arguments_are_the_options():
    words = (
        "--lr_scheduler_type cosine --debug underflow_overflow --use_cpu --seed 3 --warmup_steps 0.1 --report_to none "
        "--value qvi --slot_learning_rate 0.01 --push_to_hub"
    )
    options = get_command("finetune").parse([*GIVEN, *words.split(), "--hub_token", "secret"]).training
    args = training_arguments(options)
    assert (args.lr_scheduler_type, args.seed, args.warmup_steps) == ("cosine", 3, 0.1)
    assert (args.learning_rate, args.alignment_learning_rate, args.slot_learning_rate) == (2e-5, 1e-3, 0.01)
    assert not args.dataloader_pin_memory
    assert not args.push_to_hub
    assert args.hub_token is None


@pytest.mark.parametrize(
    "words",
    ["--adam_beta1 1", "--adam_epsilon -1", "--adam_epsilon x", "--data_seed -1", "--dataloader_num_workers -1"],
)
def test_numbers_that_would_end_the_training_are_refused_before_it(words: str):
    with pytest.raises(AlignAttnError, match=f"argument {words.split()[0]}: "):
        get_command("finetune").parse([*GIVEN, *words.split()])


@pytest.mark.parametrize(
    ("words", "culprit"),
    [
        ("--lr_scheduler_type reduce_lr_on_plateau --eval_strategy no", "strategy"),
        # On a CPU, accelerate would silently train without FSDP.
        ("--fsdp true", "--fsdp needs GPUs"),
        ("--report_to wandb", "--report_to wandb"),
    ],
)
def test_unusable_training_arguments_are_refused(words: str, culprit: str):
    options = get_command("finetune").parse([*GIVEN, "--use_cpu", *words.split()]).training
    with pytest.raises(AlignAttnError, match=culprit):
        training_arguments(options)


@pytest.mark.parametrize("by_launcher", [False, True])
@pytest.mark.parametrize("kind", ["FULL_STATE_DICT", "SHARDED_STATE_DICT"])
def test_fsdp_that_saves_no_model_is_refused(kind: str, by_launcher: bool, monkeypatch: pytest.MonkeyPatch):
    # A made launch on GPUs: the check needs none.
    gpus = {"device": torch.device("cuda"), "parallel_mode": ParallelMode.DISTRIBUTED}
    args = SimpleNamespace(**gpus, fsdp=not by_launcher, fsdp_config={"state_dict_type": kind})
    if by_launcher:
        args.fsdp_config = None
        monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
        monkeypatch.setenv("FSDP_STATE_DICT_TYPE", kind)
    with nullcontext() if kind == "FULL_STATE_DICT" else pytest.raises(AlignAttnError, match="set FULL_STATE_DICT"):
        check_sharding(args)


@pytest.mark.parametrize(
    "words",
    [
        "--attention aa-ct --alignment_weight 0.1 --gradient_scope all --alignment_learning_rate 1e-2",
        "--attention aa-ot --balance start --balance_centre true",
        "--normalizer entmax --normalizer_options learned=true --slot_learning_rate 1e-2",
        "--task squad --doc_stride 64 --n_best_size 3 --max_answer_length 3",
        "--max_train_samples 5 --take first",
        '--lr_scheduler_type cosine_with_min_lr --lr_scheduler_kwargs {"min_lr":1e-6}',
    ],
)
def test_options_with_an_effect_are_accepted(words: str):
    get_command("finetune").parse([*GIVEN, *words.split()])


@pytest.mark.parametrize("words", ["--max_eval_samples 5", "--mc_dropout_passes 5"])
def test_options_of_evaluation_need_evaluation_rows(words: str):
    with pytest.raises(AlignAttnError, match="--validation_share"):
        get_command("finetune").parse([*OWN, *words.split()])
    get_command("finetune").parse([*OWN, *words.split(), "--validation_share", "0.1"])
    with pytest.raises(AlignAttnError, match="--validation_share"):
        get_command("finetune").parse([*OWN, "--validation_file", "more.csv", "--validation_share", "0.1"])


def test_learned_choices_are_those_with_parameters() -> None:
    config = BertConfig(
        hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8, vocab_size=8, num_labels=2
    )
    options = {"entmax": {"normalizer_options": {"learned": False}}}
    for slots in (SCORES, NORMALIZERS, VALUES, ALIGNMENTS):
        for name in slots:
            torch.manual_seed(0)
            slot = alignattn.AttentionConfig(**{slots.kind: name, **options.get(name, {})})
            model = alignattn.patch(BertForSequenceClassification(config), slot)
            own = [*alignment_parameters(model), *function_parameters(model)]
            assert bool(own) == slot.choices[slots.kind].is_learned, name


@pytest.mark.parametrize("model", ["any", *(name for name in MODELS if "value" in MODELS[name].slots)])
def test_a_value_starts_at_the_pretrained_function_only_in_a_pretrained_model(model: str) -> None:
    for value in ("sum", "qvi"):
        attention = ModelOptions(model=model, value=value).attention_config
        assert attention.value_options == ({} if model == "any" else {"init": "paper"})


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("--eval_steps 5", {"eval_strategy": "steps", "save_strategy": "epoch"}),
        ("--save_steps 5", {"eval_strategy": "epoch", "save_strategy": "steps"}),
        ("--save_steps 5 --save_strategy no", {"save_strategy": "no"}),
        ("--early_stopping_patience 3 --eval_steps 5", {"eval_strategy": "steps", "save_steps": 5}),
        ("--load_best_model_at_end --save_steps 5", {"save_strategy": "steps", "eval_strategy": "steps"}),
        ("--early_stopping_patience 3 --eval_steps 5 --eval_strategy epoch", {"save_strategy": "epoch"}),
        ("--model transformer --warmup_steps 0.1", {"lr_scheduler_type": "constant_with_warmup"}),
        ("--model transformer", {"lr_scheduler_type": "constant"}),
        ("--warmup_steps 0.1", {"lr_scheduler_type": "linear"}),
    ],
)  # fmt: skip
def test_an_option_acts_without_another_that_it_needs(words: str, expected: dict[str, Any]):
    """transformers ignores steps if its strategy is epochs, and a warm-up if its schedule is constant."""
    training = get_command("finetune").parse([*GIVEN, *words.split()]).training
    assert {name: getattr(training, name) for name in expected} == expected


class TestSameRun:
    def options(self, *words: str) -> Any:
        return get_command("finetune").parse([*GIVEN, *words])

    def test_a_config_is_read_back_as_the_run_that_wrote_it(self, tmp_path: Path):
        options = self.options("--layers", "0", "1", "--seeds", "1", "2", "--model_config", "a=1", "--bf16")
        path = tmp_path / "config.yaml"
        path.write_text(options.to_yaml(), encoding="utf-8")
        assert get_command("finetune").parse(["--config", str(path)]) == options
        assert options.differences(yaml.safe_load(options.to_yaml())) == []

    @pytest.mark.parametrize("added", [
        ("--class_weights", "balanced"), ("--early_stopping_patience", "2"), ("--save_total_limit", "3"),
        ("--model", "lstm"), ("--max_train_samples", "10"),
    ])  # fmt: skip
    def test_an_option_added_to_the_config_of_a_run_implies_what_it_implies_without_one(
        self, tmp_path: Path, added: tuple[str, ...]
    ):
        path = tmp_path / "config.yaml"
        (run,) = self.options("--seeds", "3").runs()
        path.write_text(run.to_yaml(), encoding="utf-8")
        again = get_command("finetune").parse(["--config", str(path), *added])
        assert again == self.options("--seed", "3", "--output_dir", str(run.output_dir), *added)

    def test_given_and_edited_values_of_the_config_of_a_run_stay(self, tmp_path: Path):
        path, added = tmp_path / "config.yaml", ("--class_weights", "balanced")
        path.write_text(self.options("--max_grad_norm", "1.0").to_yaml(), encoding="utf-8")
        assert self.options("--config", str(path), *added).training.max_grad_norm == 1
        edited = yaml.safe_load(self.options().to_yaml()) | {"max_grad_norm": 0.5, "warmup_steps": 7}
        path.write_text(yaml.safe_dump(edited), encoding="utf-8")
        training = self.options("--config", str(path), *added).training
        assert (training.max_grad_norm, training.warmup_steps) == (0.5, 7)

    def test_the_options_of_a_run_are_those_it_had_whatever_they_would_follow_from(self, tmp_path: Path):
        options = self.options("--output_dir", str(tmp_path))
        of_other_defaults = yaml.safe_load(options.to_yaml()) | {"warmup_steps": 0.25}
        (tmp_path / "config.yaml").write_text(yaml.safe_dump(of_other_defaults), encoding="utf-8")
        assert read_run_options(tmp_path).training.warmup_steps == 0.25

    def test_a_run_says_its_attention_which_a_later_version_may_not_choose(self, tmp_path: Path):
        path, options = tmp_path / "config.yaml", self.options("--output_dir", str(tmp_path))
        path.write_text(options.to_yaml(), encoding="utf-8")
        assert yaml.safe_load(path.read_text())["attention"] == "soft"
        assert read_run_options(tmp_path).attention == options.attention
        # It was not given, so what needs an alignment is refused as without the file.
        with pytest.raises(AlignAttnError, match="--alignment_weight needs --attention or --alignment"):
            self.options("--config", str(path), "--alignment_weight", "0.1")
        assert self.options("--config", str(path), "--alignment", "ct").attention.alignment == "ct"
        edited = yaml.safe_load(path.read_text()) | {"attention": "aa-means"}
        path.write_text(yaml.safe_dump(edited), encoding="utf-8")
        assert self.options("--config", str(path)).attention.name == "aa-means"
        assert "attention" not in yaml.safe_load(self.options("--model", "lstm").to_yaml())

    def test_a_run_says_how_many_rows_it_draws_and_one_that_does_not_used_all(self, tmp_path: Path):
        aligned = ("--attention", "aa-ct", "--output_dir", str(tmp_path))
        options = self.options(*aligned)
        written = yaml.safe_load(options.to_yaml())
        assert written["alignment_rows"] == 8
        path = tmp_path / "config.yaml"
        path.write_text(yaml.safe_dump(written), encoding="utf-8")
        assert self.options("--config", str(path), "--attention", "aa-moments").attention.alignment_rows == 0
        del written["alignment_rows"]
        assert options.differences(written) == ["alignment_rows"]
        assert self.options("--alignment_rows", "0", *aligned).differences(written) == []
        path.write_text(yaml.safe_dump(written), encoding="utf-8")
        assert read_run_options(tmp_path).attention.alignment_rows == 0

    def test_an_option_that_a_config_lacks_counts_at_its_default(self):
        squad = ("--task", "squad")
        shorter = yaml.safe_load(self.options(*squad).to_yaml())
        del shorter["doc_stride"], shorter["alignment_warmup_ratio"]
        assert self.options(*squad).differences(shorter) == []
        assert self.options(*squad, "--doc_stride", "64").differences(shorter) == ["doc_stride"]

    def test_an_option_that_only_the_other_run_has_is_a_difference(self):
        other = yaml.safe_load(self.options().to_yaml()) | {"of_another_version": 1}
        assert self.options().differences(other) == ["of_another_version"]

    @pytest.mark.parametrize(
        ("mine", "theirs"),
        [
            ((), ("--attention", "soft")),
            (("--attention", "soft", "--value", "qvi"), ("--attention", "qvi")),
            (("--attention", "aa-gan+qvi"), ("--attention", "aa-gan", "--value", "qvi", "--alignment_weight", "0.01")),
        ],
    )
    def test_an_attention_is_the_same_however_it_is_named(self, mine: tuple[str, ...], theirs: tuple[str, ...]):
        written = yaml.safe_load(self.options(*theirs).to_yaml())
        assert self.options(*mine).differences(written) == []
        assert "layers" in self.options(*mine, "--layers", "0").differences(written)

    def test_a_none_that_is_not_the_default_is_written(self, tmp_path: Path):
        path = tmp_path / "config.yaml"
        path.write_text("save_total_limit: null\n", encoding="utf-8")
        options = self.options("--config", str(path))
        assert options.training.save_total_limit is None
        assert options.differences(yaml.safe_load(options.to_yaml())) == []
        assert options.differences(yaml.safe_load(self.options().to_yaml())) == ["save_total_limit"]

    @pytest.mark.parametrize(
        ("model", "order"), [("minilm", "group_by_length"), ("da", "random"), ("lstm", "random"), ("gat", "random")]
    )
    def test_encoders_batch_rows_by_length_and_other_models_at_random(self, model: str, order: str):
        values = {"model": model, "task": "cora" if model == "gat" else "mrpc", "output_dir": "run"}
        assert resolve(RunOptions, values).training.train_sampling_strategy == order
        of_a_table = RunFolder(Path("results"), Experiment("finetune", values))
        assert of_a_table.options.values[SAMPLING_OPTION] == order

    def test_a_file_may_ask_for_the_newest_checkpoint(self, tmp_path: Path):
        path = tmp_path / "config.yaml"
        path.write_text("resume_from_checkpoint: true\n", encoding="utf-8")
        assert self.options("--config", str(path)).values[SAMPLING_OPTION] == "group_by_length"

    def test_published_settings_draw_at_random(self):
        words = ("--model", "bert-base-uncased", "--output_dir", "run")
        shift = get_command("domain-shift").parse([*words, "--pair", "snli-mnli"])
        assert shift.values[SAMPLING_OPTION] == "random"
        configs = [*(ROOT / "configs").glob("albert-*.yaml")]
        assert configs
        for config in configs:
            options = get_command("finetune").parse(["--config", str(config), "--output_dir", "run"])
            assert options.values[SAMPLING_OPTION] == "random"

    def test_the_secret_is_not_written(self):
        assert "secret" not in self.options("--push_to_hub", "--hub_token", "secret").to_yaml()
