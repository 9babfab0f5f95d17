"""Options that conflict are refused in one line, which names the culprit, before anything is read."""

import pytest

from alignattn.cli import main

CHOICE = "--model any --task mrpc"
PAIRS = "--train_file rows.csv --text_columns a b"

MISTAKES = [
    # A CRF tags words.
    ("--model x --crf --task mrpc", "--crf"),
    ("--model transformer-crf --crf --task msra", "--crf"),
    ("--model x --crf --lora_r 4 --task msra", "--lora_r"),
    ("--model x --crf --r_drop_weight 1 --task msra", "--r_drop_weight"),
    ("--model transformer-crf --label_smoothing_factor 0.1 --task msra", "--label_smoothing_factor"),
    ("--model transformer-crf --task mrpc", "--model transformer-crf"),
    # Models from scratch, which lack what pretrained ones have.
    (f"--model da --attention aa-ct {PAIRS}", "--model da"),
    (f"--model seq2seq-lstm --model_config hard_attention=true --value qvi {PAIRS}", "'qvi'"),
    (f"--model co-attention --balance start {PAIRS}", "co-attention"),
    ("--model esim --train_file rows.csv --text_columns a", "--model esim"),
    (f"--model da --model_config no_such=1 {PAIRS}", "'no_such'"),
    (f"--model da --model_config hidden_dim=0 {PAIRS}", "hidden_dim"),
    (f"--model da --embeddings missing.txt {PAIRS}", "missing.txt"),
    (f"--model ./missing --embeddings missing.txt {PAIRS}", "--embeddings"),
    # Training methods.
    (f"{CHOICE} --weight_averaging ema --early_stopping_patience 2", "--load_best_model_at_end"),
    # Adapters are for pretrained models.
    (f"{CHOICE} --lora_alpha 8", "--lora_r"),
    (f"--model esim --lora_r 2 {PAIRS}", "--lora_r"),
    (f"--model esim --model_sha256 abc {PAIRS}", "--model_sha256"),
    # The best checkpoint needs evaluations and saved checkpoints.
    (f"{CHOICE} --early_stopping_patience 2 --eval_strategy no", "--eval_strategy"),
    (f"{CHOICE} --load_best_model_at_end --save_strategy no", "--save_strategy"),
    (f"{CHOICE} --load_best_model_at_end --eval_strategy epoch --save_strategy steps", "--save_strategy"),
    (f"{CHOICE} --load_best_model_at_end --eval_strategy steps --eval_steps 5 --save_steps 10", "--save_steps"),
    ("--model any --early_stopping_patience 2 --train_file rows.csv --text_columns a", "--validation_file"),
    ("--model any --save_strategy best --train_file rows.csv --text_columns a", "--validation_file"),
    (f"{CHOICE} --save_strategy best --eval_strategy no", "--eval_strategy"),
    # Options that need or exclude others.
    (f"{CHOICE} --balance_centre true", "--balance_centre"),
    (f"{CHOICE} --seeds 1 2 --seed 3", "--seed"),
    (f"{CHOICE} --weight_averaging swa --ema_decay 0.5", "--ema_decay"),
    (f"{CHOICE} --validation_share 0.1", "--validation_share"),
    # Options of transformers.
    (f"{CHOICE} --adam_beta1 much", "--adam_beta1"),
    (f"{CHOICE} --lr_scheduler_kwargs nonsense", "--lr_scheduler_kwargs"),
    (f"{CHOICE} --remove_unused_columns false", "--remove_unused_columns"),
]


@pytest.mark.parametrize(("words", "culprit"), MISTAKES)
def test_options_that_do_not_fit_are_refused_in_one_line(words, culprit, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows.csv").write_text("a,b,label\na cat,a dog,1\na man,a bird,0\n")
    assert main(["finetune", *words.split(), "--output_dir", "run"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert culprit in line
    assert not (tmp_path / "run").exists()
