"""mkdocs hooks that add generated pages, links and equations to the pages of `docs/`.

The page of a command comes from the declarations of its options, so building the site imports neither torch nor
transformers. All functions named `on_…` are hooks of mkdocs.
"""

import json
import math
import posixpath
import re
from collections.abc import Iterable, Iterator
from html import unescape
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

import alignattn
from alignattn.commands import COMMANDS, get_command
from alignattn.utils.command import Command
from alignattn.utils.options import CONFIG, REQUIRED, Option, options_of, source_of_others

ROOT = Path(__file__).parents[1]
BESIDE = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "RELEASING.md": "releasing.md",
    "SECURITY.md": "security.md",
}
"""Files in the repository's root that are pages of the site."""
TUTORIAL = ROOT / "docs" / "tutorial.ipynb"
COMMAND_PAGES = "commands"
"""Folder of the commands' pages, and the name of their section in lower case."""

SHOWN = "image/png"
WORD_OF_COMMAND = re.compile(r"(?<!\[)`alignattn ([a-z-]+)`(?!\])")
PUBLIC_NAME = re.compile(r"(?<!\[)`alignattn\.(\w+)`(?!\])")
EQUATION = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.DOTALL)

TRANSFORMERS_OPTIONS = " and the other fields of `transformers.TrainingArguments`, which are also options"


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put the commands into the navigation."""
    pages = [{name: f"{COMMAND_PAGES}/{name}.md"} for name in COMMANDS]
    for section in config.nav or ():
        for title in section if isinstance(section, dict) else ():
            if title.lower() == COMMAND_PAGES:
                section[title] = pages
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are not files in `docs/`."""
    made = {f"{COMMAND_PAGES}/{name}.md": command_page(get_command(name)) for name in COMMANDS}
    made |= {page: page_of((ROOT / name).read_text(encoding="utf-8")) for name, page in BESIDE.items()}
    made["tutorial.md"] = notebook_page(json.loads(TUTORIAL.read_text(encoding="utf-8")))
    for path, text in made.items():
        files.append(File.generated(config, path, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Link commands and public names in the text to their documentation."""
    here = posixpath.dirname(page.file.src_uri)

    def command(match: re.Match[str]) -> str:
        path = f"{COMMAND_PAGES}/{match[1]}.md"
        known = match[1] in COMMANDS and path != page.file.src_uri
        return f"[{match[0]}]({posixpath.relpath(path, here or '.')})" if known else match[0]

    def name(match: re.Match[str]) -> str:
        return f"[{match[0]}][{documented_as(match[1])}]" if match[1] in alignattn.__all__ else match[0]

    # Links to files, which work on GitHub, become links to pages of the site.
    markdown = re.sub(r"\]\((?:\.\./)*tutorial\.ipynb", "](tutorial.md", markdown)
    for path, made in BESIDE.items():
        markdown = re.sub(rf"\]\(((?:\.\./)*)\.\./{re.escape(path)}", rf"](\1{made}", markdown)
    return PUBLIC_NAME.sub(name, WORD_OF_COMMAND.sub(command, markdown))


def on_page_content(html: str, **_: Any) -> str:
    """Write equations as MathML, which browsers render without a script."""

    def equation(match: re.Match[str]) -> str:
        return convert(unescape(match[2]).strip(), display="block" if match[1] == "div" else "inline")

    return EQUATION.sub(equation, html)


def documented_as(name: str) -> str:
    """Return the path by which mkdocstrings finds a public name: the full one if a module of the same name hides it."""
    home = f"alignattn.{alignattn._HOMES[name]}"
    is_hidden = (ROOT / home.replace(".", "/") / f"{name}.py").is_file()
    return f"{home}.{name}.{name}" if is_hidden else f"alignattn.{name}"


def page_of(text: str) -> str:
    """Return the text of a file in the repository's root as a page, with links relative to `docs/`."""
    text = text.replace("](docs/", "](").replace('src="docs/', 'src="')
    for name, page in BESIDE.items():
        text = text.replace(f"]({name}", f"]({page}")
    return text


def command_page(command: Command) -> str:
    """Return the page of a command, generated from the declarations of its options."""
    lines = [f"# {command.prog}", ""]
    if command.examples:
        lines += ["```bash", *command.examples, "```", ""]
    lines += [f"{_cell(command.help[0].upper() + command.help[1:])}.", ""]
    known = [*options_of(command.options).values(), CONFIG]
    lines += _tables((option for option in known if not (option.rare or option.rest)), "##")
    if rare := [option for option in known if option.rare]:
        others = TRANSFORMERS_OPTIONS if source_of_others(command.options) else ""
        lines += ["## Rare options", "", f"`{command.prog} --help-all` also lists these{others}.", ""]
        lines += _tables(rare, "###")
    return "\n".join(lines) + "\n"


def _tables(options: Iterable[Option], heading: str) -> Iterator[str]:
    groups: dict[str, list[Option]] = {}
    for option in options:
        groups.setdefault(option.group, []).append(option)
    for group, members in groups.items():
        yield from (f"{heading} {group[0].upper()}{group[1:]}", "")
        yield from ("| option | what it does | default |", "|---|---|---|")
        yield from (" | ".join(["", *_row(option), ""]).strip() for option in members)
        yield ""


def _row(option: Option) -> tuple[str, str, str]:
    many = " …" if option.is_list else ""
    usage = option.label if option.types[0] is bool else f"{option.usage}{many}"
    limits = "".join(f" {limit}." for limit in _limits(option))
    return f"`{usage}`", f"{_cell(option.help)}{_cell(limits)}", _default(option)


def _limits(option: Option) -> Iterator[str]:
    bounds = (("At least", option.low), ("above", option.above), ("at most", option.high), ("below", option.below))
    said = [f"{word} {number:g}" for word, number in bounds if math.isfinite(number)]
    if said and option.high != math.inf and option.high >= 2**31:
        said = [words for words in said if not words.startswith("at most")]
    if said:
        yield ", ".join(said).capitalize()
    choices = [str(choice) for choice in option.choices]
    if any(choice not in option.help for choice in choices):
        yield f"One of {', '.join(choices)}"


def _default(option: Option) -> str:
    if option.default is REQUIRED:
        return "required"
    if option.default is None or option.default == () or "(default" in option.help:
        return ""
    values = option.default if isinstance(option.default, tuple) else (option.default,)
    return f"`{' '.join(str(value).lower() if isinstance(value, bool) else str(value) for value in values)}`"


def _cell(text: str) -> str:
    """Escape a text for a cell of a Markdown table."""
    return re.sub(r"([|*_<>\[\]`])", r"\\\1", text)


def notebook_page(notebook: dict[str, Any]) -> str:
    """Return an executed notebook as a page: texts, code and outputs."""
    parts = []
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        parts += [_shown(output) for output in cell.get("outputs", ())]
    return "\n\n".join(filter(None, parts)) + "\n"


def _shown(output: dict[str, Any]) -> str:
    data = output.get("data", {})
    if SHOWN in data:
        return f"![Output of the cell above](data:{SHOWN};base64,{''.join(data[SHOWN]).strip()})"
    text = "".join(output.get("text", data.get("text/plain", ()))).rstrip()
    return f"```text\n{text}\n```" if text else ""
