"""Tagging schemes: which tag may follow which, and which scheme rows are written in."""

import re
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

from alignattn.tasks.tags.entities import OUTSIDE

BIO: Literal["bio"] = "bio"
"""Also IOB2: an entity's first word is tagged `B-` and its type, the others `I-` and its type."""

ANY: Literal["any"] = "any"
"""Any other scheme, of which nothing is known: each tag may follow each."""

SchemeName = Literal["bio", "any"]

_BEGINS_OR_GOES_ON = re.compile(r"([BI])(-.+)?")


class Scheme(NamedTuple):
    """The scheme that rows are written in, and what is to be known of how they keep to it: a line, or None."""

    name: SchemeName
    remark: str | None = None


def is_bio(names: Iterable[str]) -> bool:
    """Whether a set of tags is one of BIO: `O`, and for each `I-X` there is a `B-X`."""
    names = set(names)
    others = names - {OUTSIDE}
    parts = [_BEGINS_OR_GOES_ON.fullmatch(name) for name in others]
    if OUTSIDE not in names or not all(parts):
        return False
    inside = {name for name in others if name.startswith("I")}
    return bool(inside) and all(f"B{name[1:]}" in others for name in inside)


def may_follow(before: str | None, tag: str) -> bool:
    """Whether BIO lets a tag follow another, None at the start of a sentence: `I-X` goes on `B-X` or `I-X` alone."""
    return not tag.startswith("I") or (before is not None and before != OUTSIDE and before[1:] == tag[1:])


def scheme_of(names: Sequence[str], rows: Iterable[Sequence[str]]) -> Scheme:
    """Return the scheme of tagged rows.

    IOB1 has the tags of BIO, and begins an entity by `I-` unless one of its type ends right before: there most entities
    begin as none of BIO may, and nothing is forbidden. A few that do are taken for mistakes.

    Args:
        names: of the tags.
        rows: the tags of each.
    """
    if not is_bio(names):
        return Scheme(ANY)
    begun = wrong = odd_rows = 0
    for tags in rows:
        here = sum(not may_follow(before, tag) for before, tag in zip((None, *tags), tags, strict=False))
        begun, wrong, odd_rows = begun + sum(tag.startswith("B") for tag in tags), wrong + here, odd_rows + (here > 0)
    if wrong == 0:
        return Scheme(BIO)
    told = f"in {odd_rows:,} training row(s) an I- tag goes on from nothing"
    if wrong > begun:
        return Scheme(ANY, f"{told}, more often than an entity begins by B-: taken for IOB1, any tag may follow any")
    return Scheme(BIO, f"{told}, against BIO: the CRF learns from them, and predicts no such tags")
