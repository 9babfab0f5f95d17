"""Fields of small configs that the rules of `tiny_configs` get wrong, by model type and path of a field."""

from typing import Any

MROPE = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 1, 1]}
"""Rotary embeddings of heads of 8 features by time, height and width."""
MOE = {"num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 48}

OVERRIDES: dict[str, dict[str, Any]] = {
    "bamba": {"attn_layer_indices": [1]},
    "bridgetower": {"vision_config.num_attention_heads": 4},
    "clap": {"audio_config.hidden_size": 768},
    "perceiver": {"num_self_attends_per_block": 2},
    "llama4_vision_model": {"intermediate_size": 128},
    "lilt": {"hidden_size": 48, "num_attention_heads": 4},
    "cohere_compass_text": {"rope_parameters": {"full_attention": MROPE, "sliding_attention": MROPE}},
    "cohere_compass": {"text_config.rope_parameters": {"full_attention": MROPE, "sliding_attention": MROPE}},
    "deepseek_ocr2_text": {"mlp_layer_types": ["dense", "sparse"]},
    "deepseek_ocr2": {"text_config.mlp_layer_types": ["dense", "sparse"]},
    "dots1": {"n_routed_experts": 4, "n_shared_experts": 1},
    "fun_asr_nano": {"adaptor_config.intermediate_size": 8},
    "granite_speech5_ctc": {"encoder_config.context_size": 16},
    "granite_speech5_encoder": {"context_size": 16},
    "glm5_next_text": {"index_topk": 16},
    "glm5_next": {"text_config.index_topk": 16},
    "granitemoehybrid": {"layer_types": ["mamba", "attention"], "num_hidden_layers": 2},
    "glm4v_moe": {"text_config.rope_parameters": {**MROPE, "mrope_section": [1, 1, 0], "partial_rotary_factor": 0.5}},
    "glm4v_moe_text": {"rope_parameters": {**MROPE, "mrope_section": [1, 1, 0], "partial_rotary_factor": 0.5}},
    "dots3_note_audio_encoder": {"adapter_input_size": 32},
    "dots3_note": {"audio_config.adapter_input_size": 32},
    "chameleon": {"vocabulary_map": {"<image>": 100}},
    "depth_pro": {"patch_size": 64, "image_model_config.image_size": 64},
    "diffusion_gemma_text": MOE,
    "diffusion_gemma": {f"text_config.{field}": size for field, size in MOE.items()},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]], "num_layers": 2},
    "granite4_vision": {"downsample_rate": "1/2", "deepstack_layer_map": [[0, 0]]},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1, "expert_layer_period": 2, "expert_layer_offset": 1},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "mamba2": {"head_dim": 16, "num_heads": 4},
    "mistral4": {"head_dim": 8},
    "ernie4_5_vl_moe_text": {"rope_parameters": {**MROPE, "mrope_section": [1, 1, 2]}},
}
RESNET: dict[str, Any] = {
    "model_type": "resnet", "embedding_size": 16, "hidden_sizes": [16, 16, 32, 32], "depths": [1, 1, 1, 1],
    "layer_type": "basic",
}  # fmt: skip
"""A backbone for models whose default backbone comes from timm."""
for _name in ("detr", "conditional_detr", "dab-detr", "table-transformer"):
    OVERRIDES[_name] = {"backbone_config": {**RESNET, "out_features": ["stage4"]}, "use_timm_backbone": False}
OVERRIDES["deformable_detr"] = {
    "backbone_config": {**RESNET, "out_features": ["stage2", "stage3", "stage4"]},
    "use_timm_backbone": False,
}
for _name in ("glm4v", "glm46v", "glm_image", "glm_ocr", "glmga", "hunyuan_vl", "paddleocr_vl"):
    OVERRIDES[_name] = {"text_config.rope_parameters": MROPE}
for _name in ("glm4v_text", "glm_image_text", "glm_ocr_text", "hunyuan_vl_text", "paddleocr_vl_text"):
    OVERRIDES[_name] = {"rope_parameters": MROPE}
