"""Every model of the package is on a page that explains it."""

import re

import pytest
from documentation import ROOT

from alignattn.models import MODELS

PAGES = [ROOT / "docs" / f"{page}.md" for page in ("tasks", "texts", "sequences", "graphs", "vqa")]
NAMED = {name for page in PAGES for name in re.findall(r"`([\w-]+)`", page.read_text(encoding="utf-8"))}


@pytest.mark.parametrize("name", MODELS)
def test_a_model_is_on_a_page(name):
    assert name in NAMED
