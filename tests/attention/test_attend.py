"""Run the example in the docstring of `attend`, as a user would paste it."""

from inspect import cleandoc
from textwrap import dedent

import torch
from torch import Tensor, nn

import alignattn
from alignattn.attention import attend


def example_of(docstring):
    return dedent("\n".join(line for line in cleandoc(docstring).split("\n") if line.startswith("    ") or not line))


def test_the_example_makes_a_model_whose_attention_is_aligned():
    names = {"alignattn": alignattn, "nn": nn, "Tensor": Tensor}
    exec(example_of(attend.__doc__), names)
    attention = names["model"].train()["attention"]
    attended = attention(torch.randn(2, 5, 64), torch.ones(2, 5, dtype=torch.bool))
    assert attended.shape == (2, 5, 64)
    alignattn.alignment_loss(names["model"]).backward()
    for projection in (attention.query_projection, attention.key_projection):
        assert projection.weight.grad.abs().sum() > 0
