"""`alignattn finetune`: one run, or one per seed and a summary."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from alignattn.finetuning.options import PUSH_OPTIONS, RunOptions
from alignattn.utils.command import Command, TableResults

if TYPE_CHECKING:
    from alignattn.finetuning.results import RunResult


def finetune(options: RunOptions) -> list["RunResult"]:
    """Make or read the run of each seed of the call; with `--seeds`, summarise all finished seeds in the folder."""
    from alignattn.finetuning.run_folder import check_output_dir, other_seeds

    # Before torch is imported, which takes seconds.
    for run in (options.runs()[0], *other_seeds(options)):
        check_output_dir(run)

    from accelerate import PartialState

    from alignattn.finetuning.results import read_result
    from alignattn.finetuning.run import finetune_one

    results = [finetune_one(run) for run in options.runs()]
    if options.training.seeds is not None and PartialState().is_main_process:
        # Other calls may have finished other seeds of the same options.
        runs = sorted([options.runs()[0], *other_seeds(options)], key=lambda run: run.training.seed)
        finished = list(filter(None, (read_result(run.output_dir) for run in runs)))
        print(f"{options.output_dir}\n{write_seed_summary(options.output_dir, finished)}")
    # A process group that still exists when the interpreter exits sometimes aborts in a background thread.
    PartialState().destroy_process_group()
    return results


def write_seed_summary(folder: Path, results: Sequence["RunResult"]) -> str:
    """Write mean and standard deviation over the seeds to `results.json` in `folder`; return them as text."""
    from alignattn.evaluation.estimates import SeedSpread, over_seeds, with_deviation
    from alignattn.finetuning.results import RESULTS_FILE
    from alignattn.tasks.metrics import metric_of
    from alignattn.utils.files import write_json

    summary: dict[str, dict[str, SeedSpread]] = {}
    lines = []
    for split, scores in results[0].metrics.items():
        summary[split] = {}
        for name in scores:
            values = [result.metrics[split][name] for result in results]
            defined = [value for value in values if value is not None]
            if len(defined) < len(values):
                summary[split][name] = {"mean": None, "standard_deviation": None, "seeds": len(values)}
                spread = "undefined"
            else:
                summary[split][name] = over_seeds(defined)
                form = ("{:.4g}", 1) if metric_of(name).is_error else ("{:.2f}", 100)
                spread = with_deviation(summary[split][name], *form)
            lines.append(f"  {results[0].task} {split}: {name} {spread} ({len(values)} seeds)")
    content = {
        "task": results[0].task,
        "model": results[0].model,
        "attention": results[0].attention,
        "seeds": [result.seed for result in results],
        "metrics": summary,
    }
    write_json(folder / RESULTS_FILE, content)
    return "\n".join(lines)


COMMAND = Command(
    "finetune",
    "fine-tune a pretrained encoder on a task, with or without alignment attention",
    RunOptions,
    run="alignattn.commands.finetune:finetune",
    results=TableResults(
        withheld=("seeds", "resume_from_checkpoint", *PUSH_OPTIONS),
        check_folder="alignattn.finetuning.run_folder:check_output_dir",
    ),
    shares_folder=True,
    examples=(
        "alignattn finetune --model albert-base-v2 --task mrpc --output_dir runs/mrpc",
        "alignattn finetune --config configs/albert-rte.yaml --seeds 1 2 3 --output_dir runs/rte",
        "alignattn finetune --model DIR --train_file rows.csv --text_columns a b --output_dir runs/own",
    ),
)
