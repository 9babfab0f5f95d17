"""transformers' training options without transformers: the table holds what the installed version says."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from alignattn.commands import get_command
from alignattn.commands.reproduce.experiment import Experiment
from alignattn.commands.reproduce.folder import RunFolder
from alignattn.finetuning.options import RunOptions
from alignattn.finetuning.training_arguments import RunArguments, training_arguments
from alignattn.finetuning.training_options import TABLE_FILE, TrainingOptions, TransformersOptions
from alignattn.finetuning.training_table import RANGES, training_table
from alignattn.models import SAMPLING_OPTION
from alignattn.utils.errors import AlignAttnError
from alignattn.utils.options import options_of, resolve

OURS = {"output_dir", "learning_rate", "logging_steps", "logging_nan_inf_filter", "save_strategy", "save_total_limit"}
"""Options whose defaults here are not transformers'."""

GIVEN = ("--model", "any", "--task", "mrpc", "--output_dir", "runs/x")


def test_the_table_is_what_the_installed_transformers_says():
    assert json.loads(TABLE_FILE.read_text(encoding="utf-8")) == training_table(), (
        "transformers has changed: python -m alignattn.finetuning.training_table"
    )


def test_what_is_declared_anew_has_the_default_and_the_range_of_the_table():
    theirs, ours = options_of(TransformersOptions), options_of(TrainingOptions)
    assert theirs.keys() < ours.keys()
    assert {name for name in theirs if ours[name].default != theirs[name].default} == OURS
    for name in RANGES.keys() & theirs.keys():
        bounds = [(known[name].low, known[name].high, known[name].above, known[name].below) for known in (theirs, ours)]
        assert bounds[0] == bounds[1], name


def test_the_trainers_arguments_are_the_options():
    words = (
        "--lr_scheduler_type cosine --debug underflow_overflow --use_cpu --seed 3 --warmup_steps 0.1 --report_to none "
        "--value qvi --slot_learning_rate 0.01 --push_to_hub"
    )
    options = get_command("finetune").parse([*GIVEN, *words.split(), "--hub_token", "secret"]).training
    args = training_arguments(options, RunArguments)
    assert (args.lr_scheduler_type, args.seed, args.warmup_steps) == ("cosine", 3, 0.1)
    assert (args.learning_rate, args.alignment_learning_rate, args.slot_learning_rate) == (2e-5, 1e-3, 0.01)
    assert not args.dataloader_pin_memory
    assert args.hub_token == "secret"
    assert args.__getstate__()["hub_token"] is None


def test_what_transformers_refuses_is_one_line():
    options = (
        get_command("finetune").parse([*GIVEN, "--lr_scheduler_type", "reduce_lr_on_plateau", "--use_cpu"]).training
    )
    with pytest.raises(AlignAttnError, match="strategy"):
        training_arguments(options, RunArguments)


def test_weights_are_shared_out_over_gpus_alone():
    """On a CPU accelerate would train without FSDP, and say nothing."""
    options = get_command("finetune").parse([*GIVEN, "--fsdp", "true", "--use_cpu"]).training
    with pytest.raises(AlignAttnError, match="--fsdp shares the weights out over GPUs, and here is none"):
        training_arguments(options, RunArguments)


class TestSameRun:
    def options(self, *words: str) -> Any:
        return get_command("finetune").parse([*GIVEN, *words])

    def test_a_config_is_read_back_as_the_run_that_wrote_it(self, tmp_path: Path):
        options = self.options("--layers", "0", "1", "--seeds", "1", "2", "--model_config", "a=1", "--bf16")
        path = tmp_path / "config.yaml"
        path.write_text(options.to_yaml(), encoding="utf-8")
        assert get_command("finetune").parse(["--config", str(path)]) == options
        assert options.differences(yaml.safe_load(options.to_yaml())) == []

    def test_an_option_that_a_config_lacks_counts_at_its_default(self):
        squad = ("--task", "squad")
        shorter = yaml.safe_load(self.options(*squad).to_yaml())
        del shorter["doc_stride"], shorter["alignment_warmup_ratio"]
        assert self.options(*squad).differences(shorter) == []
        assert self.options(*squad, "--doc_stride", "64").differences(shorter) == ["doc_stride"]

    def test_an_option_that_only_the_other_run_has_tells_them_apart(self):
        other = yaml.safe_load(self.options().to_yaml()) | {"of_another_version": 1}
        assert self.options().differences(other) == ["of_another_version"]

    @pytest.mark.parametrize(
        ("mine", "theirs"),
        [
            ((), ("--attention", "aa-ct")),
            (("--attention", "soft", "--value", "qvi"), ("--attention", "qvi")),
            (("--attention", "aa-gan+qvi"), ("--attention", "aa-gan", "--value", "qvi", "--alignment_weight", "0.01")),
        ],
    )
    def test_an_attention_is_the_same_however_it_is_named(self, mine: tuple[str, ...], theirs: tuple[str, ...]):
        written = yaml.safe_load(self.options(*theirs).to_yaml())
        assert self.options(*mine).differences(written) == []
        assert "layers" in self.options(*mine, "--layers", "0").differences(written)

    def test_what_is_no_default_is_written_even_where_it_is_none(self, tmp_path: Path):
        path = tmp_path / "config.yaml"
        path.write_text("save_total_limit: null\n", encoding="utf-8")
        options = self.options("--config", str(path))
        assert options.training.save_total_limit is None
        assert options.differences(yaml.safe_load(options.to_yaml())) == []
        assert options.differences(yaml.safe_load(self.options().to_yaml())) == ["save_total_limit"]

    @pytest.mark.parametrize(
        ("model", "order"), [("minilm", "group_by_length"), ("da", "random"), ("lstm", "random"), ("gat", "random")]
    )
    def test_rows_of_like_length_go_together_in_an_encoder_s_batches(self, model: str, order: str):
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
        for config in Path("configs").glob("albert-*.yaml"):
            options = get_command("finetune").parse(["--config", str(config), "--output_dir", "run"])
            assert options.values[SAMPLING_OPTION] == "random"

    def test_the_secret_is_not_written(self):
        assert "secret" not in self.options("--push_to_hub", "--hub_token", "secret").to_yaml()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--batch_size 8", "--batch_size is called --per_device_train_batch_size in a training"),
        ("--warmup_ratio 0.1", "--warmup_ratio is called --warmup_steps: below 1 it is a share of all steps"),
        ("--adam_beta1 1", "--adam_beta1 1.0 must lie between 0 and 1"),
        ("--gradient_accumulation_steps 0", "--gradient_accumulation_steps 0 must be at least 1"),
        ("--lr_scheduler_kwargs nonsense", "--lr_scheduler_kwargs 'nonsense' must be a JSON object"),
        ("--alignment_learning_rate 0", "--alignment_learning_rate 0.0 must be above 0"),
        ("--slot_learning_rate 0", "--slot_learning_rate 0.0 must be above 0"),
        ("--optim adam", "invalid choice: 'adam'"),
    ],
)
def test_a_wrong_training_option_is_refused_at_once(words, message):
    with pytest.raises(AlignAttnError) as raised:
        get_command("finetune").parse([*GIVEN, *words.split()])
    assert message in str(raised.value)
