"""Names of data and models without the paths of a machine."""

from alignattn.support.publishing import publishable, published_names

SNAPSHOT = "/home/me/.cache/huggingface/hub/models--nyu-mll--roberta/snapshots/0a1b2c"


def test_no_absolute_path_is_left_at_any_depth():
    value = {"model": "/data/models/albert", "files": ["/a/b.csv", "../shared/c.csv"], "rows": 3, "hub": "nyu-mll/glue"}
    assert publishable(value) == value | {"model": "albert", "files": ["b.csv", "../shared/c.csv"]}
    assert publishable(SNAPSHOT) == "nyu-mll/roberta"


def test_names_beside_one_another_differ():
    assert published_names(["/runs/a/model", "org/model"]) == ["model", "org/model"]
    assert published_names(["/runs/a/model", "/runs/b/model"]) == ["a/model", "b/model"]
    assert published_names(["/runs/a", "/runs/a"]) == ["a", "a"]
