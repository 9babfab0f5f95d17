"""The documentation: its links lead to existing pages, and the options and names in it exist."""

import csv
import inspect
import pkgutil
import re
import unicodedata
from pathlib import Path

import pytest
import yaml
from documentation import NEEDS, PAGES, ROOT, blocks

import alignattn
from alignattn.attention.choices import SLOTS
from alignattn.attention.config import PRESETS
from alignattn.commands import COMMANDS, get_command
from alignattn.commands.domain_shift import OUT_OF_DOMAIN_FILE
from alignattn.commands.reproduce.folder import EXPERIMENT_FILE, SECONDS_FILE
from alignattn.commands.reproduce.table import load_table, parse_table
from alignattn.commands.uncertainty import UNCERTAINTY_FILE
from alignattn.finetuning.results import CONFIG_FILE, DATA_FILE, PREDICTIONS_FILE, RESULTS_FILE, TASK_FILE
from alignattn.finetuning.tables import TABLES
from alignattn.robustness.records import RECORDS_SUFFIX
from alignattn.robustness.summary import TABLE_NAME
from alignattn.tasks.definitions import TASK_TYPES, TASKS
from alignattn.utils.options import CONFIG, option_names

DOCS = ROOT / "docs"
LINK = re.compile(r"\]\(([^)\s]+)\)")
CODE = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
OPTION = re.compile(r"(?<![\w-])--([A-Za-z][\w-]*)")
OTHERS = {
    *("index-url", "no-deps", "group", "nproc_per_node", "nproc-per-node"),  # pip, torchrun
    *("shape", "min_words", "compile", "dropout"),  # benchmarks/, scripts/
    *("help", "help-all", "version"),
}
"""Options of other programs, and options of every command."""


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", CODE.sub("", page.read_text(encoding="utf-8")), re.MULTILINE)
    words = (re.sub(r"[^\w\- ]", "", unicodedata.normalize("NFC", heading.lower())) for heading in headings)
    return {word.replace(" ", "-") for word in words}


def test_every_link_leads_to_an_existing_file_and_heading():
    links = [(page, link) for page in PAGES for link in LINK.findall(CODE.sub("", page.read_text(encoding="utf-8")))]
    for page, link in links:
        path, _, anchor = link.partition("#")
        if "://" in link:
            continue
        target = page if not path else (page.parent / path).resolve()
        assert target.is_file(), f"{page}: {link}"
        assert ROOT in target.parents, f"{page}: {link} leaves the repository"
        if anchor:
            assert anchor in anchors(target), f"{page}: {link}"


def known_options() -> set[str]:
    commands = [get_command(name) for name in COMMANDS]
    named = {name for command in commands for name in option_names(command.options)}
    return named | {CONFIG.name} | OTHERS


def test_every_option_named_in_a_text_exists():
    known = known_options()
    named = {page: set(OPTION.findall(CODE.sub("", page.read_text(encoding="utf-8")))) for page in PAGES}
    assert {page: options - known for page, options in named.items() if options - known} == {}


@pytest.mark.parametrize("slot", SLOTS)
def test_every_choice_is_in_the_tables_with_its_paper(slot):
    for name in SLOTS[slot]:
        check_row(slot, name)


def check_row(slot, name):
    (row,) = [line for line in (DOCS / "slots.md").read_text().splitlines() if line.startswith(f"| `{name}` |")]
    choice = SLOTS[slot][name]
    if choice.reference is not None:
        assert str(choice.reference).partition(",")[0] in row
        assert (choice.place or "") in row
    parameters = inspect.signature(SLOTS[slot].load(name)).parameters
    for option in choice.options:
        default = parameters[option.name].default
        value = str(default).lower() if isinstance(default, bool) else default
        assert f"`{option.name}`" in row if default is None else f"`{option.name}={value}`" in row


def test_the_table_options_of_reproduce_are_on_its_page():
    page = (DOCS / "reproduce.md").read_text(encoding="utf-8")
    (row,) = [line for line in page.splitlines() if line.startswith("| `--tasks` |")]
    narrowed = {name for name in TABLES if load_table(name).default_tasks is not None}
    assert set(re.findall(r"`(\w+)`", row.partition("which")[2])) == narrowed
    for line in page.partition("\n## Full tables on GPUs\n")[2].partition("\n## ")[0].splitlines():
        if line.startswith("alignattn reproduce "):
            table, *words = line.partition(NEEDS)[0].split()[2:]
            columns = get_command("reproduce").parse([table, *words]).selected_table.columns
            assert [column.label for column in columns] == [column.label for column in load_table(table).columns]


def test_the_commands_that_fill_tables_are_on_their_page():
    listed = re.search(r"A table's `command` \(([^)]+)\)", (DOCS / "reproduce.md").read_text(encoding="utf-8"))[1]
    assert set(re.findall(r"`([\w-]+)`", listed)) == {
        name for name in COMMANDS if get_command(name).results is not None
    }


def test_all_files_of_results_are_copied_to_another_machine():
    page = (DOCS / "reproduce.md").read_text(encoding="utf-8")
    (command,) = re.findall(r"^rsync (.*?)^```", page, re.DOTALL | re.MULTILINE)
    included = set(re.findall(r"--include='?([^'\s]+)", command)) - {"*/"}
    of_runs = {EXPERIMENT_FILE, SECONDS_FILE, CONFIG_FILE, DATA_FILE, TASK_FILE, RESULTS_FILE, PREDICTIONS_FILE}
    of_others = {f"{TABLE_NAME}.json", f"*{RECORDS_SUFFIX}", OUT_OF_DOMAIN_FILE, UNCERTAINTY_FILE}
    assert included == of_runs | of_others


INSTALL = re.compile(r"pip install[^`\n]* \"?alignattn\b")


def test_no_page_installs_alignattn_from_the_index():
    """Nothing has been released: whoever registers the name would be installed."""
    assert [page for page in PAGES if INSTALL.search(page.read_text(encoding="utf-8"))] == []


def test_every_preset_and_task_is_named():
    slots, tasks = (DOCS / "slots.md").read_text(), (DOCS / "tasks.md").read_text()
    assert [name for name in PRESETS if f"`{name}`" not in slots] == []
    assert [name for name in TASKS if f"`{name}`" not in tasks] == []


def documented_paths():
    pages = "".join(page.read_text() for page in (DOCS / "api").iterdir())
    return re.findall(r"^::: (\S+)$", pages, re.MULTILINE)


def test_every_public_name_is_in_the_api():
    named = [path.rpartition(".")[2] for path in documented_paths()]
    assert [name for name in alignattn.__all__ if named.count(name) != 1] == [], "each has its place in docs/api"


def test_every_name_in_the_api_exists():
    for path in documented_paths():
        pkgutil.resolve_name(path)


@pytest.mark.parametrize("path", sorted((DOCS / "examples").glob("*.yaml")), ids=lambda path: path.name)
def test_the_example_files_have_the_columns_and_labels_of_their_task(path):
    task = yaml.safe_load(path.read_text())
    columns = task.get("text_columns") or [task[name] for name in ("source_column", "target_column") if name in task]
    for name in task.get("sources", {}).get("files", {}).values():
        with (path.parent / name).open(newline="") as file:
            rows = list(csv.DictReader(file, delimiter="\t" if name.endswith("tsv") else ","))
        assert all(row[column] for row in rows for column in columns)
        if "labels" in task:
            assert {row[task["label_column"]] for row in rows} == set(task["labels"])


@pytest.mark.parametrize("block", blocks("yaml"))
def test_every_yaml_block_is_a_task_or_a_table(block):
    values = yaml.safe_load(block)
    if "rows" in values:
        assert parse_table("shown", block).rows
        return
    record = TASK_TYPES[values.pop("kind")]
    assert values.keys() <= record.__dataclass_fields__.keys()


def number_of_words(pages):
    return sum(len(page.read_text(encoding="utf-8").split()) for page in pages)


def test_the_pages_are_short():
    """In words: a user needs a part of them, and nobody reads more."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(readme.partition("## Citation")[0].split()) <= 800
    assert number_of_words([ROOT / "CONTRIBUTING.md"]) <= 1200
    guide = re.findall(r": ([\w-]+\.md)$", (ROOT / "mkdocs.yml").read_text().partition("- Reference:")[0], re.MULTILINE)
    assert number_of_words(DOCS / name for name in guide if (DOCS / name).exists()) <= 14_000
    assert [page.name for page in (DOCS / "study").glob("*.md") if number_of_words([page]) > 700] == []
    assert number_of_words(PAGES) <= 30_000


def test_the_citation_and_the_changelog_are_of_this_version():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == alignattn.__version__
    assert f"\n## {alignattn.__version__}" in (ROOT / "CHANGELOG.md").read_text()
    assert {"cff-version", "title", "message", "authors", "references"} <= citation.keys()
