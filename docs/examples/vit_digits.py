"""A ViT with alignment attention on scikit-learn's images of digits: half a minute on a CPU.

The model is tiny and has random weights, so that nothing is downloaded: put
ViTForImageClassification.from_pretrained("google/vit-base-patch16-224-in21k", num_labels=10) in its place.
"""

import torch
from sklearn.datasets import load_digits
from transformers import TrainingArguments, ViTConfig, ViTForImageClassification, set_seed

import alignattn

digits = load_digits()  # 1,797 images of 8 x 8 pixels, from 0 to 16
pixels = torch.tensor(digits.images, dtype=torch.float32)[:, None] / 8 - 1
rows = [{"pixel_values": image, "labels": int(label)} for image, label in zip(pixels, digits.target, strict=True)]
train_rows, test_rows = rows[:1500], rows[1500:]

set_seed(0)
config = ViTConfig(
    image_size=8,
    patch_size=2,
    num_channels=1,
    hidden_size=64,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=128,
    num_labels=10,
    initializer_range=0.1,
)
model = alignattn.patch(ViTForImageClassification(config), "aa-ct", alignment_weight=1.0)
trainer = alignattn.AlignmentTrainer(
    model=model,
    args=TrainingArguments(
        "out",
        num_train_epochs=4,
        per_device_train_batch_size=64,
        learning_rate=2e-3,
        logging_steps=24,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    ),
    train_dataset=train_rows,
)
trainer.train()
for entry in trainer.state.log_history[:-1]:
    print(f"step {entry['step']}: task loss {entry['task_loss']:.3f}, alignment loss {entry['align_loss']:.3f}")
predicted = trainer.predict(test_rows).predictions.argmax(-1)
print(f"accuracy {(predicted == digits.target[1500:]).mean():.3f}")
