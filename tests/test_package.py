import ast
import os
import subprocess
import sys
from pathlib import Path

import datasets
import evaluate
import huggingface_hub
import matplotlib
import pytest

import alignattn

HEAVY = ("torch", "transformers", "datasets", "evaluate", "sklearn", "pandas", "matplotlib")


def test_importing_the_package_and_checking_an_attention_by_name_import_nothing_heavy():
    code = (
        "import sys; from alignattn import AttentionConfig;"
        "AttentionConfig.resolve('aa-ct+qvi+entmax15', alignment_weight=0.1, layers=[0], gradient_scope='all');"
        f"print([name for name in {HEAVY} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "[]"


def test_the_slots_import_without_transformers():
    code = "import sys, alignattn.attention.variant; print('transformers' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "False"


@pytest.mark.parametrize("name", alignattn.__all__)
def test_public_names_are_there_and_documented(name):
    value = getattr(alignattn, name)
    assert name in dir(alignattn)
    assert isinstance(value, dict) or value.__doc__


def test_unknown_names():
    with pytest.raises(AttributeError, match="no attribute 'patches'"):
        _ = alignattn.patches


def test_libraries_cache_in_the_home_of_the_tests():
    caches = [huggingface_hub.constants.HF_HOME, datasets.config.HF_DATASETS_CACHE, evaluate.config.HF_METRICS_CACHE]
    for cache in (*caches, matplotlib.get_cachedir()):
        assert Path(os.environ["ALIGNATTN_TESTS_HOME"]) in Path(cache).parents


def is_of_sets(node):
    """Return whether an expression is a set, or a set operation on the keys of a dict: its order is random."""
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Sub | ast.BitAnd | ast.BitOr | ast.BitXor):
        return isinstance(node, ast.Set | ast.SetComp)
    return any(
        is_of_sets(side)
        or (isinstance(side, ast.Call) and isinstance(side.func, ast.Attribute) and side.func.attr == "keys")
        for side in (node.left, node.right)
    )


@pytest.mark.parametrize("code", ["a.keys() - b", "a & b.keys()", "{x for x in a} - b", "a.keys() - b - c"])
def test_what_has_no_order_is_seen(code):
    assert is_of_sets(ast.parse(code, mode="eval").body)
    assert not is_of_sets(ast.parse(f"sorted({code})", mode="eval").body)


def test_no_loop_raises_in_the_order_of_a_set():
    """Of several mistakes, a random one would be reported: another line each time a command is run."""
    found = [
        f"{path}:{node.lineno}"
        for path in Path(alignattn.__file__).parent.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.For) and is_of_sets(node.iter)
        for within in ast.walk(node)
        if isinstance(within, ast.Raise)
    ]
    assert found == []
