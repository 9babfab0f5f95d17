"""Checks the source of unlabelled texts in a command's options."""

from typing import Any

from alignattn.tasks import MultipleChoice
from alignattn.tasks.definitions import get_task
from alignattn.tasks.names import TEXT_FILE, TEXT_FILES
from alignattn.utils.errors import AlignAttnError
from alignattn.utils.files import plain_suffix
from alignattn.utils.paths import no_folder


def check_text_source(options: Any, file_option: str, purpose: str) -> None:
    """Refuse options that name no source of texts, two sources, or an option that does not fit the source.

    Args:
        options: the command's options: `task`, `data_dir`, `text_columns` and `file_option`.
        file_option: the name of the option for a file of texts.
        purpose: what the texts are for, for the message.
    """
    file = getattr(options, file_option)
    if (options.task is None) == (file is None):
        raise AlignAttnError(f"give the texts to {purpose}: either --task NAME or --{file_option} FILE")
    if options.task is not None:
        task = get_task(options.task, file_option)
        if options.text_columns:
            raise AlignAttnError(f"--text_columns is for files, not task {task.name!r}: leave it out")
        if isinstance(task, MultipleChoice):
            raise AlignAttnError(f"task {task.name!r} has several sequences per row: choose a task with one")
        return
    if options.data_dir is not None:
        raise AlignAttnError(f"--data_dir is for tasks, not --{file_option}: leave it out")
    no_folder(f"--{file_option}", str(file))
    ending = plain_suffix(str(file))
    if ending not in TEXT_FILES:
        raise AlignAttnError(f"--{file_option} {file}: its name must end in {', '.join(TEXT_FILES)}")
    if ending == TEXT_FILE and options.text_columns:
        raise AlignAttnError(f"--text_columns: {file} has one text per line and no columns: leave it out")
