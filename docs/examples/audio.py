"""Align the queries and keys of a Wav2Vec2 with random weights; `from_pretrained` loads trained ones.

python docs/examples/audio.py
"""

import torch
from transformers import Wav2Vec2Config, Wav2Vec2ForSequenceClassification

import alignattn

sizes = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "conv_dim": [16] * 7,
}
config = Wav2Vec2Config(**sizes, num_conv_pos_embedding_groups=4, layerdrop=0.0, num_labels=2)
model = Wav2Vec2ForSequenceClassification(config).train()
alignattn.patch(model, "aa-ct")

seconds = torch.arange(8000) / 16000
waves = torch.sin(2 * torch.pi * torch.outer(torch.tensor([220.0, 440.0, 220.0, 440.0]), seconds))  # [B, samples]
labels = torch.tensor([0, 1, 0, 1])
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step in range(20):
    task_loss = model(waves, labels=labels).loss
    align_loss = alignattn.alignment_loss(model)
    if step % 5 == 0:
        print(f"step {step}: task loss {task_loss.item():.3f}, alignment loss {align_loss.item():.4f}")
    (task_loss + align_loss).backward()
    optimizer.step()
    optimizer.zero_grad()
model.save_pretrained("tones")
