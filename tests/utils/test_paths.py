"""Names of data and models without the paths of a machine."""

import pytest

from alignattn.utils.paths import publishable, publishable_text, published_names

SNAPSHOT = "/home/me/.cache/huggingface/hub/models--nyu-mll--roberta/snapshots/0a1b2c"


def test_no_absolute_path_is_left_at_any_depth():
    value = {"model": "/data/models/albert", "files": ["/a/b.csv", "../shared/c.csv"], "rows": 3, "hub": "nyu-mll/glue"}
    assert publishable(value) == value | {"model": "albert", "files": ["b.csv", "../shared/c.csv"]}
    assert publishable(SNAPSHOT) == "nyu-mll/roberta"


def test_published_names_of_different_paths_differ():
    assert published_names(["/runs/a/model", "org/model"]) == ["model", "org/model"]
    assert published_names(["/runs/a/model", "/runs/b/model"]) == ["a/model", "b/model"]
    assert published_names(["/runs/a", "/runs/a"]) == ["a", "a"]


@pytest.mark.parametrize(
    ("text", "published"),
    [
        ("no data in /home/me/shared/data: give another", "no data in shared/data: give another"),
        ("--model '/srv/x/y/model' --output_dir=/a/b/c", "--model 'y/model' --output_dir=b/c"),
        ("model: /c/hub/models--google--bert/snapshots/1f/model", "model: google/bert"),
        *[(text, text) for text in ("../shared/data, 1/2/3 and google/bert", "https://host/a/b")],
    ],
)
def test_a_text_keeps_no_path_of_the_machine(text, published):
    assert publishable_text(text) == published
