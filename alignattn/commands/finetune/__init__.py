"""`alignattn finetune`."""

from alignattn.runs.options import RunOptions
from alignattn.runs.training_options import PUSH_OPTIONS
from alignattn.support.command import Command, TableUse

COMMAND = Command(
    "finetune",
    "fine-tune a pretrained encoder on a task, with or without alignment attention",
    RunOptions,
    run="alignattn.commands.finetune.command:finetune",
    in_tables=TableUse(withheld=("seeds", "resume_from_checkpoint", *PUSH_OPTIONS)),
    shares_folder=True,
    examples=(
        "alignattn finetune --model albert-base-v2 --task mrpc --attention aa-ct --output_dir runs/mrpc",
        "alignattn finetune --config configs/albert-rte.yaml --seeds 1 2 3 --output_dir runs/rte",
        "alignattn finetune --model DIR --train_file rows.csv --text_columns a b --output_dir runs/own",
    ),
)
