"""No option is accepted that does nothing: the first is refused in one line, before anything heavy is imported."""

import pytest
import torch
from transformers import BertConfig, BertForSequenceClassification

import alignattn
from alignattn.attention.choices import ALIGNMENTS, NORMALIZERS, SCORES, VALUES
from alignattn.cli import main
from alignattn.commands import get_command
from alignattn.finetuning.idle_options import ALWAYS_DONE, RULES
from alignattn.patching import alignment_parameters, function_parameters
from alignattn.utils.errors import AlignAttnError
from alignattn.utils.options import options_of

GIVEN = ("--model", "any", "--task", "mrpc", "--output_dir", "runs/x")
OWN = ("--model", "any", "--train_file", "rows.csv", "--text_columns", "a", "--output_dir", "runs/x")

IDLE = """
--attention soft --alignment_weight 0.1
--attention soft --gradient_scope all
--attention soft --head_reduction mean
--attention qvi --alignment_warmup_ratio 0.1
--alignment none --alignment_learning_rate 1e-2
--attention aa-ot --alignment_learning_rate 1e-2
--attention aa-ct --slot_learning_rate 1e-2
--attention sparsemax --slot_learning_rate 1e-2
--balance_centre true
--balance_basis random
--lora_alpha 8
--doc_stride 64
--n_best_size 3
--max_answer_length 3
--take first
--model minilm --model_revision other
--model da --model_sha256 aa
--seeds 1 2 --seed 3
--max_steps 5 --num_train_epochs 2
--eval_steps 5
--eval_strategy epoch --eval_steps 5
--eval_delay 5
--save_steps 5
--save_strategy no --save_total_limit 2
--save_strategy no --save_only_model
--logging_strategy epoch --logging_steps 5
--lr_scheduler_type constant --warmup_steps 5
--lr_scheduler_type constant_with_warmup --lr_scheduler_kwargs {"a":1}
--activation_checkpointing_kwargs {"every_n_layers":2}
--gradient_checkpointing_kwargs {"use_reentrant":false}
--liger_kernel_config {"rope":true}
--fsdp_config {"a":1}
--optim sgd --adam_beta1 0.5
--optim_args a=1
--optim_target_modules query
--dataloader_persistent_workers
--dataloader_prefetch_factor 3
--greater_is_better false
--freelb_max_norm 0.5
--freelb_steps 1 --freelb_step_size 0.5
--weight_averaging swa --ema_decay 0.5
--swa_start 0.5
--run_name one
--project two
--hub_model_id you/name
--hub_token secret
--use_cache
--include_for_metrics loss
--length_column_name len
--do_predict true
--do_train false
--do_eval false
--batch_eval_metrics
--encoding cp1252
--validation_share 0.1
"""

USED = """
--attention aa-ct --alignment_weight 0.1 --gradient_scope all --alignment_learning_rate 1e-2
--attention aa-ot --alignment_warmup_ratio 0.1 --head_reduction mean
--attention aa-ot --gradient_scope basis --alignment_learning_rate 1e-2 --balance start --balance_centre true
--attention bilinear --slot_learning_rate 1e-2
--balance start --balance_basis random
--normalizer entmax --normalizer_options learned=true --slot_learning_rate 1e-2
--task squad --doc_stride 64 --n_best_size 3 --max_answer_length 3
--max_train_samples 5 --take first
--model_revision other
--seeds 1 2
--max_steps 5
--eval_strategy steps --eval_steps 5 --eval_delay 1
--eval_strategy steps --logging_strategy epoch --logging_steps 5
--save_strategy steps --save_steps 5 --save_total_limit 2 --save_only_model
--lr_scheduler_type cosine --warmup_steps 5
--activation_checkpointing true --activation_checkpointing_kwargs {"every_n_layers":2}
--optim sgd --optim_args momentum=0.9
--dataloader_num_workers 1 --dataloader_prefetch_factor 3
--load_best_model_at_end --eval_strategy epoch --greater_is_better false
--push_to_hub --hub_model_id you/name --hub_token secret
--do_train true --do_eval true --do_predict false
"""


def lines(text: str) -> list[list[str]]:
    return [line.split() for line in text.strip().splitlines()]


@pytest.mark.parametrize("words", lines(IDLE), ids=" ".join)
def test_what_does_nothing_is_refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["finetune", *GIVEN, *words]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert any(word.removeprefix("--") in line for word in words if word.startswith("--"))
    assert "leave it out" in line or "give --lora_r" in line


@pytest.mark.parametrize("words", lines(USED), ids=" ".join)
def test_what_does_something_is_taken(words: list[str]) -> None:
    get_command("finetune").parse([*GIVEN, *words])


@pytest.mark.parametrize(
    ("words", "part"),
    [
        ("--train_file rows.parquet --encoding cp1252", "--encoding does nothing with Parquet"),
        ("--max_eval_samples 5", "--max_eval_samples does nothing without evaluation rows"),
        ("--laplace true", "--laplace does nothing without evaluation rows"),
        ("--mc_dropout_passes 5", "--mc_dropout_passes does nothing without evaluation rows"),
        ("--validation_file more.csv --validation_share 0.1", "--validation_share"),
    ],
)
def test_options_of_own_files(words: str, part: str) -> None:
    with pytest.raises(AlignAttnError, match=part):
        get_command("finetune").parse([*OWN, *words.split()])
    get_command("finetune").parse([*OWN, "--validation_share", "0.1", "--max_eval_samples", "5"])


def test_a_reporter_that_is_not_installed_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("alignattn.finetuning.idle_options.find_spec", lambda name: None)
    assert main(["finetune", *GIVEN, "--report_to", "wandb"]) == 2
    assert "--report_to wandb needs the package wandb" in capsys.readouterr().err
    monkeypatch.setattr("alignattn.finetuning.idle_options.find_spec", lambda name: name == "tensorboardX")
    get_command("finetune").parse([*GIVEN, "--report_to", "tensorboard", "--run_name", "one"])


def test_rules_are_of_options_that_there_are() -> None:
    known = options_of(get_command("finetune").options)
    assert {name for rule in RULES for name in rule.names} | set(ALWAYS_DONE) <= known.keys()


def test_choices_that_learn_are_those_with_parameters() -> None:
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
