"""Qwen, LoRA and TRL's SFTTrainer with alignment attention: pip install -e ".[trl]", half a minute on a CPU.

The model is tiny and has random weights, so that nothing is downloaded: put
AutoModelForCausalLM.from_pretrained("Qwen/Qwen3-0.6B") and its tokenizer in their places.
"""

from dataclasses import dataclass

from datasets import Dataset
from peft import LoraConfig
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM, set_seed
from trl import SFTConfig, SFTTrainer

import alignattn

DIGITS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
sums = [(first, second) for first in range(10) for second in range(10 - first)]
prompts = [f"{DIGITS[first]} plus {DIGITS[second]} is" for first, second in sums]
rows = Dataset.from_dict({"prompt": prompts, "completion": [f" {DIGITS[first + second]}" for first, second in sums]})
names = ["<pad>", "<end>", "plus", "is", *DIGITS]
words = Tokenizer(models.WordLevel({word: index for index, word in enumerate(names)}, "<end>"))
words.pre_tokenizer = pre_tokenizers.Whitespace()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", eos_token="<end>")

set_seed(0)
sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "head_dim": 16, "initializer_range": 0.1}
heads = {"num_attention_heads": 4, "num_key_value_heads": 2}  # two heads of queries share one of keys
tokens = {"vocab_size": len(tokenizer), "pad_token_id": 0, "eos_token_id": 1, "bos_token_id": None}
model = alignattn.patch(Qwen3ForCausalLM(Qwen3Config(**sizes, **heads, **tokens)), "aa-ct", alignment_weight=1.0)


@dataclass
class Arguments(alignattn.AlignmentArguments, SFTConfig): ...


class Trainer(alignattn.AlignmentMixin, SFTTrainer): ...


trainer = Trainer(
    model=model,
    args=Arguments(
        "out",
        packing=True,
        max_length=16,
        num_train_epochs=20,
        learning_rate=1e-2,
        bf16=False,  # as a CPU has it; leave it out on a GPU
        logging_steps=20,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    ),
    train_dataset=rows,
    processing_class=tokenizer,
    peft_config=LoraConfig(r=8, target_modules=["q_proj", "k_proj", "v_proj", "o_proj"], task_type="CAUSAL_LM"),
)
trainer.train()
for entry in trainer.state.log_history[:-1]:
    print(f"step {entry['step']}: task loss {entry['task_loss']:.3f}, alignment loss {entry['align_loss']:.3f}")
