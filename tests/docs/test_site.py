"""The pages that the site generates from the code. `make docs` builds the whole site and checks every link."""

import importlib.util
import subprocess
import sys

import pytest
from documentation import ROOT

from alignattn.commands import COMMANDS, get_command
from alignattn.utils.options import options_of

PATH = ROOT / "scripts" / "site_pages.py"


@pytest.fixture(scope="module")
def site():
    spec = importlib.util.spec_from_file_location("site_pages", PATH)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", COMMANDS)
def test_the_page_of_a_command_has_its_options_and_examples(site, name):
    command, page = get_command(name), site.command_page(get_command(name))
    assert page.startswith(f"# alignattn {name}\n")
    assert all(example in page for example in command.examples)
    for option in options_of(command.options).values():
        assert option.rest or f"| `{option.label}" in page or f"| `{option.usage}" in page, option.name


def test_ranges_choices_and_defaults_are_shown(site):
    page = site.command_page(get_command("calibrate"))
    assert (
        "| `--num_bins N` | Bins of the calibration errors and of the diagrams. At least 1, at most 1000. | `10` |"
        in page
    )
    assert "| `--fit_on SPLIT` | Fit a temperature on half of this split; report the other half. |  |" in page
    assert "| `--skip_bad_rows` | Skip and list bad rows. | `false` |" in page
    needed = "| `--run DIR` | Run folder of a classifier. | required |"
    assert needed in site.command_page(get_command("uncertainty"))


def test_markdown_characters_are_escaped(site):
    assert site._cell("a|b *c* <d>") == r"a\|b \*c\* \<d\>"


def test_an_equation_is_written_as_mathml(site):
    page = site.on_page_content(r'<p><span class="arithmatex">\(q &lt; \sqrt{d}\)</span></p>')
    assert "<math" in page
    assert "<msqrt>" in page
    assert "arithmatex" not in page


def test_names_link_to_their_documentation(site):
    class Page:
        class file:  # noqa: N801
            src_uri = "api/x.md"

    linked = site.on_page_markdown(
        "`alignattn list` `alignattn foo` `alignattn.patch` `alignattn.attend` [a](../../CONTRIBUTING.md#style)", Page
    )
    assert linked == (
        "[`alignattn list`](../commands/list.md) `alignattn foo` "
        "[`alignattn.patch`][alignattn.patching.patch.patch] [`alignattn.attend`][alignattn.attend] "
        "[a](../contributing.md#style)"
    )


def test_the_pages_are_generated_without_torch():
    code = "import sys; sys.path.insert(0, sys.argv[1]); import site_pages; "
    code += "[site_pages.command_page(site_pages.get_command(name)) for name in site_pages.COMMANDS]; "
    code += "print([name for name in ('torch', 'transformers', 'pandas') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code, str(PATH.parent)], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "[]"
