"""`alignattn compare`: finished runs in one table and on one page."""

from pathlib import Path

from alignattn.commands.compare import CompareOptions
from alignattn.commands.compare.comparison import ComparedRuns, compare_entries
from alignattn.commands.compare.entries import check_same_rows, read_entries
from alignattn.commands.compare.formats import to_html, to_markdown, to_text, write_lines
from alignattn.utils.files import check_free, unfinished, write_text

TABLE_FILE, LINES_FILE, PAGE_FILE = "comparison.md", "comparison.csv", "comparison.html"


def compare_runs(options: CompareOptions) -> ComparedRuns:
    """Compare runs, write the table and the page, print the table, and return what they show."""
    folder = Path(options.output_dir)
    check_free(folder, (TABLE_FILE, LINES_FILE, PAGE_FILE))
    entries = read_entries(options)
    check_same_rows(entries)
    compared = compare_entries(entries)
    with unfinished(folder):
        write_text(folder / TABLE_FILE, to_markdown(compared))
        write_lines(folder / LINES_FILE, compared)
        write_text(folder / PAGE_FILE, to_html(compared))
    print(f"{to_text(compared)}\nwritten to {folder}")
    return compared
