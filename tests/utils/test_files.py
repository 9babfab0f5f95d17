"""JSON as the standard defines it: without NaN and infinity."""

import json
import math

import numpy as np
import pytest

from alignattn.utils.files import parse_json, read_json, to_json, write_json


def strict(text):
    """Parse JSON as other programs do, which refuse NaN."""

    def refuse(constant):
        raise ValueError(f"{constant} is no JSON")

    return json.loads(text, parse_constant=refuse)


def test_numbers_that_are_not_finite_are_null():
    odd = [math.nan, math.inf, -math.inf, np.float64("nan")]
    content = {"a": odd, "b": {"c": (math.nan, 1.5, "NaN", True, None)}, "d": [[math.inf]]}
    expected = {"a": [None] * 4, "b": {"c": [None, 1.5, "NaN", True, None]}, "d": [[None]]}
    assert strict(to_json(content)) == expected


def test_finite_content_is_written_as_by_the_standard_library():
    content = {"ä": [1e300, -0.0, 7, "x"], "b": {"c": []}}
    for options in ({}, {"indent": 2}, {"ensure_ascii": False, "sort_keys": True}):
        assert to_json(content, **options) == json.dumps(content, **options)


def test_a_value_without_a_form_in_json_is_still_refused():
    with pytest.raises(TypeError):
        to_json({"a": math.nan, "b": object()})


def test_files_have_null_and_old_files_with_nan_are_read(tmp_path):
    write_json(tmp_path / "new.json", {"loss": math.nan})
    assert strict((tmp_path / "new.json").read_text()) == {"loss": None}
    (tmp_path / "old.json").write_text('{"loss": NaN, "most": -Infinity}')
    assert math.isnan(read_json(tmp_path / "old.json")["loss"])
    assert parse_json("[-Infinity]") == [-math.inf]
