"""Import alignattn, patch and unpatch models, and check each time what that changes in this process."""

import gc
import pickle
import warnings

import peft
import torch
import transformers
from peft.config import PeftConfigMixin
from peft.tuners.tuners_utils import BaseTuner
from torch import nn
from torch.nn.modules import module as modules
from torch.optim import optimizer as optimizers
from transformers.integrations.peft import PeftAdapterMixin

OF_PEFT = (BaseTuner, peft.PeftModel, peft.PeftMixedModel, PeftAdapterMixin, PeftConfigMixin)
OF_OTHERS = (*OF_PEFT, nn.Module, torch.optim.Optimizer, transformers.PreTrainedModel, transformers.PreTrainedConfig)


def state():
    """Return the attributes of classes, the hooks and the settings of the process that a patch may change."""
    found = {
        (each.__name__, name): value for each in OF_OTHERS for name, value in vars(each).items() if name[:2] != "__"
    }
    for home in (modules, optimizers):
        names = [name for name, value in vars(home).items() if name.startswith("_global") and isinstance(value, dict)]
        found |= {(home.__name__, name): tuple(vars(home)[name].values()) for name in names}
    assert ("torch.nn.modules.module", "_global_module_registration_hooks") in found
    assert ("torch.optim.optimizer", "_global_optimizer_post_hooks") in found
    return found | {"dynamo": torch._dynamo.config.skip_nnmodule_hook_guards}


def changed():
    """Return the names of what differs from the process without a patch; hooks are compared by identity."""
    gc.collect()
    now = state()
    assert now.keys() == BEFORE.keys()
    identities = [
        {name: [*map(id, value)] if isinstance(value, tuple) else id(value) for name, value in values.items()}
        for values in (now, BEFORE)
    ]
    different = [name for name in now if identities[0][name] != identities[1][name]]
    return {name[1] if isinstance(name, tuple) else name for name in different}


def tiny():
    config = transformers.BertConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8)
    return transformers.BertForSequenceClassification(config)


def with_lora(model):
    return peft.get_peft_model(model, peft.LoraConfig(target_modules=["query"], r=2, task_type="SEQ_CLS"))


# transformers adds a method to `nn.Module` when it initialises its first model.
tiny()
BEFORE = state()

import alignattn  # noqa: E402
import alignattn.patching.adapters  # noqa: E402
import alignattn.patching.checkpoints  # noqa: E402
import alignattn.training  # noqa: E402

# What is there now is no garbage: collecting takes no time for it.
gc.collect()
gc.freeze()
assert changed() == set()

ADDING = {"inject_adapter", "_setup_prompt_encoder"}
OF_ALIGNMENT = {"_global_optimizer_post_hooks", "dynamo"} | ADDING
OF_FUNCTION = {"_global_module_registration_hooks", "save_pretrained", "from_pretrained", "load_adapter"} | ADDING
for attention, expected in (
    ("aa-ct", OF_ALIGNMENT),
    ("sparsemax", OF_FUNCTION),
    ("aa-ct+qvi", OF_ALIGNMENT | OF_FUNCTION),
):
    # Unpatched.
    model = alignattn.patch(tiny(), attention)
    assert changed() == expected, changed()
    twin = alignattn.patch(tiny(), attention)
    alignattn.unpatch(model)
    assert changed() == expected
    alignattn.unpatch(twin)
    assert changed() == set(), changed()
    # Deleted, and then copied before: the copy counts.
    model = with_lora(alignattn.patch(tiny(), attention).train())
    del model
    assert changed() == set(), changed()
    model = alignattn.patch(tiny(), attention)
    stored = pickle.dumps(model)
    del model
    assert changed() == set(), changed()
    model = pickle.loads(stored)
    assert changed() == expected
    del model
    assert changed() == set()

# The config of a deleted model still builds models that refuse to run without its slots.
model = alignattn.patch(tiny(), "sparsemax")
config = model.config
del model
assert changed() == {"_global_module_registration_hooks"}
built = transformers.BertForSequenceClassification._from_config(config, attn_implementation="eager")
try:
    built(torch.ones(1, 2, dtype=torch.long))
except alignattn.AlignAttnError:
    pass
else:
    raise AssertionError("it runs without the slots")
del built, config
assert changed() == set()

# A model that is not ours is untouched while a patched one lives.
patched, plain = alignattn.patch(tiny(), "aa-ct+qvi").train(), with_lora(tiny())
names = [name for name, _ in plain.named_modules()]
with warnings.catch_warnings():
    warnings.simplefilter("error")
    plain.train()
    optimizer, _of_patched = (torch.optim.SGD(each.parameters(), lr=0.1) for each in (plain, patched))
    patched(torch.ones(1, 4, dtype=torch.long))
    records = len(alignattn.patching.patch_of(patched).collector.calls())
    plain(torch.ones(1, 4, dtype=torch.long)).logits.sum().backward()
    optimizer.step()
assert len(alignattn.patching.patch_of(patched).collector.calls()) == records == 1
assert not any("alignattn" in name for name in names)
maps = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_state_dict_hooks", "_load_state_dict_pre_hooks")
assert not [hook for module in plain.modules() for name in maps for hook in vars(module)[name].values()]
assert all(type(module).__module__.partition(".")[0] in ("torch", "transformers", "peft") for module in plain.modules())
assert not any("alignattn" in vars(module) for module in plain.modules())
