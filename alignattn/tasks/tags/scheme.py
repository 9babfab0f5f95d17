"""Tagging schemes: which tag may follow which, and which scheme rows use."""

import re
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

from alignattn.tasks.tags.entities import OUTSIDE
from alignattn.utils.errors import plural

BIO: Literal["bio"] = "bio"
"""Also called IOB2: an entity's first word has the tag `B-` and its type, the others `I-` and its type."""

ANY: Literal["any"] = "any"
"""Any other scheme: any tag may follow any other."""

SchemeName = Literal["bio", "any"]

_BEGIN_OR_INSIDE = re.compile(r"([BI])(-.+)?")


class Scheme(NamedTuple):
    """The scheme of rows, and a remark on how they deviate from it, or None."""

    name: SchemeName
    remark: str | None = None


def is_bio(names: Iterable[str]) -> bool:
    """Return whether tags are those of BIO: `O`, and a `B-X` for each `I-X`."""
    names = set(names)
    others = names - {OUTSIDE}
    parts = [_BEGIN_OR_INSIDE.fullmatch(name) for name in others]
    if OUTSIDE not in names or not all(parts):
        return False
    inside = {name for name in others if name.startswith("I")}
    return bool(inside) and all(f"B{name[1:]}" in others for name in inside)


def may_follow(before: str | None, tag: str) -> bool:
    """Return whether BIO allows a tag after another, None for the start: `I-X` continues only `B-X` or `I-X`."""
    return not tag.startswith("I") or (before is not None and before != OUTSIDE and before[1:] == tag[1:])


def scheme_of(names: Sequence[str], rows: Iterable[Sequence[str]]) -> Scheme:
    """Return the scheme of tagged rows.

    IOB1 has the tags of BIO, but an entity begins with `I-` unless another of its type ends right before it. If more
    entities begin with `I-` than with `B-`, the scheme is IOB1, in which any tag may follow any other; otherwise they
    are mistakes.

    Args:
        names: the tags.
        rows: the tags of each row.
    """
    if not is_bio(names):
        return Scheme(ANY)
    begun = wrong = odd_rows = 0
    for tags in rows:
        here = sum(not may_follow(before, tag) for before, tag in zip((None, *tags), tags, strict=False))
        begun, wrong, odd_rows = begun + sum(tag.startswith("B") for tag in tags), wrong + here, odd_rows + (here > 0)
    if wrong == 0:
        return Scheme(BIO)
    remark = f"in {plural(odd_rows, 'training row')} an I- tag does not continue an entity"
    if wrong > begun:
        return Scheme(ANY, f"{remark}, more often than an entity begins with B-: read as IOB1, any tag may follow any")
    return Scheme(BIO, f"{remark}, against BIO: the CRF learns from them and never predicts such tags")
