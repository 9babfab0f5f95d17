"""The runs of a call: one, or one per seed with a summary."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from accelerate import PartialState

from alignattn.finetuning.options import RunOptions
from alignattn.finetuning.run_files import SEED_FOLDER_PREFIX
from alignattn.finetuning.run_folder import seed_folders

R = TypeVar("R")


def run_seeds(
    options: RunOptions,
    check: Callable[[Any], None],
    run: Callable[[Any], R],
    summarise: Callable[[Path, Sequence[R]], str],
) -> list[R]:
    """Run each unfinished seed of a call; with several seeds, write and print the summary.

    Args:
        options: options of the call.
        check: raises an error if the folder of a seed's options cannot be used.
        run: makes a seed's run from its options, or reads a finished one.
        summarise: writes the summary of the results to the folder of the call, and returns it as text.
    """
    runs = options.runs()
    # Each run checks its folder when it starts. Check those of later seeds now, so that an error comes before hours
    # of training. The folder may hold seeds of an earlier call, which must have the same options.
    for other in [*runs[1:], *_earlier(options)]:
        check(other)
    results = [run(one) for one in runs]
    if options.makes_several and PartialState().is_main_process:
        print(f"{options.output_dir}\n{summarise(options.output_dir, results)}")
    # A process group that still exists when the interpreter exits sometimes aborts in a background thread.
    PartialState().destroy_process_group()
    return results


def _earlier(options: RunOptions) -> list[RunOptions]:
    """Return the runs of this call's options with the seeds that the call omits and its folder holds."""
    if options.training.seeds is None:
        return []
    folders = [folder for folder in seed_folders(options.output_dir) if folder.name.startswith(SEED_FOLDER_PREFIX)]
    by_seed = {int(folder.name.removeprefix(SEED_FOLDER_PREFIX)): folder for folder in folders}
    return [
        options.changed(seeds=None, seed=seed, output_dir=str(folder))
        for seed, folder in by_seed.items()
        if seed not in options.training.seeds
    ]
