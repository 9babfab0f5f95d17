# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Tutorial: from a patch to a picture
#
# We patch a pretrained model with alignment attention, fine-tune it in our own loop, and look at one of its heads.
# This takes half a minute on a laptop. The data are generated messages to a shop in three classes.

# %%
import csv

import matplotlib.pyplot as plt
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

import alignattn
from alignattn.attention.distance import sliced_wasserstein
from alignattn.models.packaged import model_source

torch.manual_seed(0)
source = model_source("minilm")  # the folder of a packaged model; any encoder of the Hub will do: "albert-base-v2"
tokenizer = AutoTokenizer.from_pretrained(source)
model = AutoModelForSequenceClassification.from_pretrained(source, num_labels=3)

# %% [markdown]
# ## Patch
#
# One call patches the model. `aa-ct` is alignment by conditional transport; `alignattn list slots` lists the others.

# %%
alignattn.patch(model, "aa-ct", alignment_weight=0.1)
print(f"{sum(parameter.numel() for parameter in model.parameters()):,} parameters")

# %% [markdown]
# In evaluation mode the patched model computes bitwise what the plain one does. `collect` records what each layer sees:

# %%
sentence = tokenizer("where is the parcel that i ordered yesterday ?", return_tensors="pt")
model.eval()
with torch.no_grad(), alignattn.collect(model) as before:
    model(**sentence)
print(len(before.layers), "layers; queries", list(before.layers[0].query.shape), "= [batch, heads, tokens, head_dim]")

# %% [markdown]
# ## Train
#
# The loop minimises the task loss plus the alignment loss, λ · A(Q, K). `parameter_groups` gives the alignment's own
# small networks the higher learning rate that they need.

# %%
with open("examples/messages.tsv", newline="") as file:
    rows = list(csv.DictReader(file, delimiter="\t"))
kinds = sorted({row["kind"] for row in rows})

optimizer = torch.optim.AdamW(alignattn.parameter_groups(model, learning_rate=2e-4))
history = []
model.train()
for start in list(range(0, len(rows), 8)) * 2:
    part = rows[start : start + 8]
    batch = tokenizer([row["message"] for row in part], padding=True, return_tensors="pt")
    labels = torch.tensor([kinds.index(row["kind"]) for row in part])
    task_loss = model(**batch, labels=labels).loss
    weighted_alignment = alignattn.alignment_loss(model)  # λ · A(Q, K); the trainer logs A(Q, K) as align_loss
    (task_loss + weighted_alignment).backward()
    optimizer.step()
    optimizer.zero_grad()
    history.append((task_loss.item(), weighted_alignment.item()))
print(f"task loss {history[0][0]:.1f} to {history[-1][0]:.1f} in {len(history)} steps")

# %% [markdown]
# ## Look
#
# The same sentence before and after training: where the head attends, and the distance of its queries and keys.

# %%
model.eval()
with torch.no_grad(), alignattn.collect(model) as after:
    model(**sentence)

layer, head = 2, 3
tokens = tokenizer.convert_ids_to_tokens(sentence["input_ids"][0])
figure, panels = plt.subplots(1, 2, figsize=(9, 4.2), dpi=80, sharey=True, layout="constrained")
for axes, name, seen in zip(panels, ("pretrained", "fine-tuned"), (before, after), strict=True):
    record = seen.layers[layer]
    distance = sliced_wasserstein(record.query, record.key)[head]
    axes.imshow(record.weights[0, head], cmap="Blues", vmin=0, vmax=1)
    axes.set_xticks(range(len(tokens)), tokens, rotation=90)
    axes.set_yticks(range(len(tokens)), tokens)
    axes.set_title(f"{name}: query-key distance {distance:.2f}")
    axes.set_xlabel("key")
panels[0].set_ylabel("query")
plt.show()

# %% [markdown]
# One sentence and one head prove nothing: `alignattn inspect` measures all heads on many rows.
#
# ## Keep
#
# Plain transformers loads this checkpoint and computes the same. `alignattn.from_pretrained` also restores the patch
# and its networks, for further training.

# %%
model.save_pretrained("tutorial-model")
tokenizer.save_pretrained("tutorial-model")
again = alignattn.from_pretrained("tutorial-model", AutoModelForSequenceClassification).eval()
new = tokenizer(["the kettle is broken", "thank you for the lovely lamp"], padding=True, return_tensors="pt")
with torch.no_grad():
    for probabilities in again(**new).logits.softmax(-1):
        print({kind: round(value.item(), 1) for kind, value in zip(kinds, probabilities, strict=True)})

# %% [markdown]
# Next: [from Python](python.md) has the trainer, custom loops and adapters; [the slots](slots.md) have the other
# choices.
