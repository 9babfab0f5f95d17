"""Tiny causal language models of several families, with random weights."""

import torch
import transformers

SIZES = {
    "vocab_size": 60,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 64,
    "pad_token_id": 1,
    "bos_token_id": 2,
    "eos_token_id": 3,
}
GROUPED = SIZES | {"num_key_value_heads": 2}
"""Two query heads share one key head."""

MODELS = {
    "llama": lambda **fields: transformers.LlamaForCausalLM(transformers.LlamaConfig(**GROUPED | fields)),
    "mistral": lambda **fields: transformers.MistralForCausalLM(
        transformers.MistralConfig(**GROUPED | {"sliding_window": 4} | fields)
    ),
    "qwen2": lambda **fields: transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**GROUPED | fields)),
    "qwen3": lambda **fields: transformers.Qwen3ForCausalLM(
        transformers.Qwen3Config(**GROUPED | {"head_dim": 8} | fields)
    ),
    "gemma2": lambda **fields: transformers.Gemma2ForCausalLM(
        transformers.Gemma2Config(**GROUPED | {"head_dim": 8, "query_pre_attn_scalar": 8} | fields)
    ),
    "gemma3": lambda **fields: transformers.Gemma3ForCausalLM(
        transformers.Gemma3TextConfig(**GROUPED | {"head_dim": 8, "sliding_window": 4} | fields)
    ),
    "phi3": lambda **fields: transformers.Phi3ForCausalLM(transformers.Phi3Config(**GROUPED | fields)),
    "gpt_neox": lambda **fields: transformers.GPTNeoXForCausalLM(transformers.GPTNeoXConfig(**SIZES | fields)),
    "olmo2": lambda **fields: transformers.Olmo2ForCausalLM(transformers.Olmo2Config(**GROUPED | fields)),
}


def decoder(name, seed=0, **fields):
    """Return a model in float64 and evaluation mode; its norms and biases are random, too."""
    torch.manual_seed(seed)
    model = MODELS[name](**fields).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return model


def batch(rows=2, tokens=7, padding=2):
    """Return a batch of ids; the last row is padded on the right."""
    ids = torch.randint(4, 60, (rows, tokens), generator=torch.Generator().manual_seed(7))
    mask = torch.ones_like(ids)
    mask[-1, tokens - padding :] = 0
    return {"input_ids": ids, "attention_mask": mask}
