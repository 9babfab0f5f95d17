"""Importing alignattn changes nothing in a process; patches change what they must, while a patched model lives."""

import subprocess
import sys
from pathlib import Path


def test_a_process_without_patched_models_is_as_before():
    script = Path(__file__).parent / "untouched_process.py"
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr


PATCH_BEFORE_PEFT = """
import sys, torch, transformers, alignattn
sizes = dict(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, vocab_size=20)
transformers.BertModel(transformers.BertConfig(**sizes)).save_pretrained(sys.argv[1] + "/base")
model = transformers.BertModel.from_pretrained(sys.argv[1] + "/base")
alignattn.patch(model, "bilinear")
import peft
model = peft.get_peft_model(model, peft.LoraConfig(target_modules=["query"]))
slots = [weights for name, weights in model.named_parameters() if "alignattn" in name]
assert slots and all(weights.requires_grad for weights in slots)
with torch.no_grad():
    for weights in slots:
        weights.normal_()
model.save_pretrained(sys.argv[1] + "/adapter")
loaded = alignattn.from_pretrained(sys.argv[1] + "/adapter", transformers.BertModel)
ids = torch.arange(10)[None]
torch.testing.assert_close(loaded.eval()(ids)[0], model.eval()(ids)[0])
"""


def test_a_patch_goes_with_an_adapter_of_a_later_import_of_peft(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", PATCH_BEFORE_PEFT, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert not done.returncode, done.stderr
