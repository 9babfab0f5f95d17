"""`alignattn robustness` and its subcommands."""

from alignattn.commands.robustness.options import (
    ROBUSTNESS,
    MaskedLanguageOptions,
    RobustnessOptions,
    ShowOptions,
)
from alignattn.utils.command import Command, TableResults

COMMAND = Command(
    "robustness",
    "attack classifiers with TextFooler, TextBugger and BAE, and report how many attacks fail",
    RobustnessOptions,
    run="alignattn.commands.robustness.command:robustness",
    shares_folder=True,
    examples=(
        f"{ROBUSTNESS} --run runs/mrpc/seed-1 --recipes textfooler --num_examples 20 --output_dir attacks",
        f"{ROBUSTNESS} --merge --output_dir attacks",
    ),
    results=TableResults(
        "robustness.json",
        needs="finetune",
        needs_saved_model=True,
        withheld=("run", "model", "task", "seed", "shard", "merge"),
    ),
    subcommands={
        "show": Command(
            "robustness show",
            "show the adversarial examples",
            ShowOptions,
            run="alignattn.commands.robustness.show:show",
            examples=(f"{ROBUSTNESS} show attacks/mrpc-seed-1/textfooler.jsonl --html textfooler.html",),
        ),
        "train-mlm": Command(
            "robustness train-mlm",
            "train a masked-language head for BAE",
            MaskedLanguageOptions,
            run="alignattn.commands.robustness.train_mlm:train_masked_language_model",
            examples=(f"{ROBUSTNESS} train-mlm --model DIR --train_file texts.txt --output_dir mlm",),
        ),
    },
)
