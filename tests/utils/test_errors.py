"""A message is one line of printable characters, whatever it quotes."""

import pytest
import torch

from alignattn.utils.errors import AlignAttnError, is_out_of_memory


def test_line_breaks_and_control_characters_are_escaped():
    message = str(AlignAttnError("no file a\nb\x1b[2J\u202ec\udce9: give another λ"))
    assert message == r"no file a\nb\x1b[2J\u202ec\udce9: give another λ"


def test_a_long_message_keeps_its_start_and_end():
    message = str(AlignAttnError(f"unknown task {'x' * 10**6}: choose one of a, b"))
    assert message.startswith("unknown task xxx")
    assert message.endswith("xxx: choose one of a, b")
    assert len(message) == len(str(AlignAttnError("\0" * 10**5))) < 1500


def test_out_of_memory_errors_are_recognised():
    with pytest.raises(RuntimeError) as full:
        torch.empty(2**58)
    assert is_out_of_memory(full.value)
    assert is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory"))
    assert not is_out_of_memory(RuntimeError("shapes do not match"))
