"""Every model type of Transformers with a plan, small and from its own config class: nothing is downloaded."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

TOKENS, IDS = 8, 64
"""The length of a row, and the size of the vocabulary."""

SIZES: dict[Any, str] = {
    IDS: """
        vocab_size vocab_size_per_layer_input codebook_size vision_vocab_size unpadded_vocab_size
        max_position_embeddings original_max_position_embeddings position_embedding_size
    """,
    32: """
        hidden_size intermediate_size moe_intermediate_size shared_expert_intermediate_size
        shared_intermediate_size expert_ffn_hidden_size ffn_hidden_size intermediate_size_mlp
        dense_intermediate_size moe_shared_expert_intermediate_size
        shared_experts_intermediate_size out_hidden_size projector_hidden_size moe_hidden_size
        share_expert_dim router_hidden_size prediction_head_size embedding_dim
    """,
    16: "q_lora_rank kv_lora_rank o_lora_rank index_topk embedding_rank laurel_rank",
    8: """
        head_dim v_head_dim qk_nope_head_dim qk_rope_head_dim swa_head_dim rotary_dim
        linear_key_head_dim linear_value_head_dim linear_head_dim index_head_dim d_rel
        mamba_d_head mamba_head_dim mamba_d_state ssm_state_size mamba_dt_rank
        hidden_size_per_layer_input hc_lowrank mamba_chunk_size chunk_size query_pre_attn_scalar
        sliding_window sliding_window_size attention_chunk_size block_size rel_extent
    """,
    4: """
        num_attention_heads num_heads linear_num_value_heads linear_num_heads index_n_heads
        swa_num_attention_heads mamba_num_heads num_sliding_attention_heads num_experts
        n_routed_experts num_local_experts moe_num_experts
    """,
    2: """
        num_key_value_heads linear_num_key_heads swa_num_key_value_heads n_groups o_groups
        num_experts_per_tok moe_k moe_topk top_k_experts num_hidden_layers num_layers depth
    """,
    1: """
        n_group topk_group n_shared_experts num_shared_experts first_k_dense_replace
        moe_layer_start_index num_dense_layers bos_token_id pad_token_id
    """,
    False: "use_cache",
}
"""What the fields of a config are set to, where it has them and they are not None."""

SMALL = {field: size for size, fields in SIZES.items() for field in fields.split()}

NEEDED = ("head_dim", "num_experts_per_tok", "num_key_value_heads")
"""Fields that are set where they are None too."""

KINDS = ("layer_types", "mlp_layer_types", "layers_block_type", "indexer_types")
"""Fields that say of each layer which kind it is: one layer of each kind is kept."""

MROPE = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 1, 1]}
ROPE = {"rope_type": "default", "rope_theta": 10000.0}
HALF_MROPE = MROPE | {"partial_rotary_factor": 0.5, "mrope_section": [1, 1, 0]}

EXCEPTIONS: dict[str, dict[str, Any]] = {
    **{
        key: {"rope_parameters": HALF_MROPE}
        for key in ("glm4v_text", "glm4v_moe_text", "glm_image_text", "glm_ocr_text")
    },
    **{
        key: {"rope_parameters": MROPE}
        for key in (
            "paddleocr_vl_text",
            "qwen2_5_omni_text",
            "qwen2_5_vl_text",
            "qwen2_vl_text",
            "cosmos3_edge_text",
        )
    },
    **{key: {"num_key_value_heads": 4} for key in ("doge", "esmc", "unlimited_ocr_text")},
    **{key: {"num_kv_shared_layers": 0} for key in ("embedding_gemma2_text", "gemma3n_text")},
    **{key: {"dropout_rate": 0.0} for key in ("t5_gemma_module", "t5gemma2_text")},
    "cohere_compass_text": {"rope_parameters": {"full_attention": ROPE, "sliding_attention": ROPE}},
    "deepseek_ocr2_text": {"mlp_layer_types": ["dense", "sparse"]},
    "diffusion_gemma_text": {"moe_intermediate_size": 32, "num_experts": 4, "top_k_experts": 2},
    "dots1": dict.fromkeys(("num_local_experts", "n_routed_experts"), 4)
    | {"moe_intermediate_size": 32, "n_shared_experts": 1},
    "dots3_note_vision_encoder": {"adapter_in_dim": 32, "adapter_out_dim": 32},
    "ernie4_5_vl_moe_text": {"moe_intermediate_size": [32, 32]}
    | {"rope_parameters": ROPE | {"mrope_section": [1, 1, 2]}},
    "glm5_next_text": {"num_key_value_heads": 4, "qk_rope_head_dim": 0},
    "granitemoehybrid": {"mamba_n_heads": 4, "mamba_d_head": 16},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "llama4_vision_model": {"intermediate_size": 128, "image_size": 16, "patch_size": 4}
    | dict.fromkeys(("vision_output_dim", "projector_input_dim", "projector_output_dim"), 32),
    "muse_spark_vision": {"num_hidden_layers": 4, "layer_types": ...},
    "neomme": {"head_dim": 16},
    "qwen3_omni_moe_talker_code_predictor": {"num_code_groups": 4},
    "qwen3_omni_moe_talker_text": {"shared_expert_intermediate_size": 32},
    "qwen4_exp_text": {"indexer_n_heads": 4, "indexer_kv_heads": 1, "indexer_head_dim": 8}
    | {"indexer_budget": 4, "indexer_compress_ratio": 2},
    "step3p5": {"sliding_window": 8},
    "zaya": {"num_experts_per_tok": 1},
}
"""What some model types need beside that."""


ENDINGS = ("ForCausalLM", "ForConditionalGeneration", "ForMaskedLM", "ForTokenClassification", "Model", "")
CLASSES = {"llama4": "Llama4ForConditionalGeneration", "t5_gemma_module": "T5GemmaEncoder"}
"""The ends of the names of classes, the wanted ones first; classes that the library's own table does not say."""


class Fed(nn.Module):
    """A model that takes something else than token ids: ``feed`` makes it of a tensor (rows, tokens, width)."""

    def __init__(self, model: nn.Module, feed: Callable[[Tensor], dict[str, Any]]) -> None:
        super().__init__()
        self.model, self.feed = model, feed

    def forward(self, inputs: Tensor) -> Any:
        return self.model(**self.feed(inputs))


def _grid(inputs: Tensor, size: int = 4) -> Tensor:
    """A square image of size * size patches for each row."""
    return torch.tensor([[1, size, size]] * len(inputs))


FEEDS: dict[str, tuple[tuple[int, ...], Callable[[Tensor], dict[str, Any]]]] = {
    "deepseek_ocr2_encoder": ((TOKENS, 32), lambda x: {"inputs_embeds": x, "num_patches": 4}),
    "llama4_vision_model": ((3, 16, 16), lambda x: {"pixel_values": x}),
    "ernie4_5_vl_moe_vision": ((16, 588), lambda x: {"hidden_states": x.flatten(0, 1), "grid_thw": _grid(x)}),
    "dots3_note_vision_encoder": (
        (16, 588),
        lambda x: {"pixel_values": x.flatten(0, 1), "grid_thw": _grid(x)},
    ),
    "muse_glimmer_vision": ((16, 1176), lambda x: {"pixel_values": x.flatten(0, 1), "grid_thw": _grid(x)}),
    "muse_glimmer_assistant": (
        (TOKENS, 160),
        lambda x: {"noise_embeds": x[..., :32], "context_hidden_states": x, "attention_mask": None},
    ),
    "gemma4_vision": ((9, 768), lambda x: {"pixel_values": x, "pixel_position_ids": _positions(x)}),
    "qwen3_omni_moe_talker_code_predictor": ((TOKENS, 32), lambda x: {"inputs_embeds": x[:, :4]}),
    "voxtral_realtime_text": ((TOKENS, 32), lambda x: {"inputs_embeds": x, "t_cond": x[:, :1]}),
}
"""By model type, the shape of a row and what it becomes."""


def _positions(inputs: Tensor) -> Tensor:
    """The places of nine patches, (rows, 9, 2)."""
    return torch.cartesian_prod(torch.arange(3), torch.arange(3)).expand(len(inputs), 9, 2)


def small_config(name: str) -> Any:
    """The config of a model type with small sizes, and no random numbers in the forward."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    return _small(CONFIG_MAPPING[name], EXCEPTIONS.get(name, {}))


def _small(config_class: Any, exceptions: dict[str, Any]) -> Any:
    default = config_class()
    given: dict[str, Any] = {}
    for field in (each.name for each in dataclasses.fields(config_class)):
        value = default.__dict__.get(field)
        if field in SMALL and (value is not None or field in NEEDED):
            given[field] = SMALL[field]
        elif field in getattr(config_class, "sub_configs", {}) and value is not None:
            given[field] = _small(type(value), EXCEPTIONS.get(value.model_type, {}))
        elif "dropout" in field or "jitter" in field or "drop_path" in field:
            given[field] = 0.0
    given |= _layers(default)
    if "kv_lora_rank" in given:  # latent attention has as many keys as queries
        given["num_key_value_heads"] = given["num_attention_heads"]
    given = {field: value for field, value in (given | exceptions).items() if value is not ...}
    if "eos_token_id" in default.__dict__:
        given.setdefault("eos_token_id", 2)
    config = config_class(**given)
    config._attn_implementation = "eager"
    config._experts_implementation = "eager"
    return config


def _layers(default: Any) -> dict[str, Any]:
    """One layer of each kind, and two at least."""
    kinds = {field: list(default.__dict__[field]) for field in KINDS if default.__dict__.get(field)}
    if not kinds:
        return {}
    count = min(len(values) for values in kinds.values())
    rows = list(dict.fromkeys(zip(*(values[:count] for values in kinds.values()), strict=True)))
    rows = rows if len(rows) > 1 else rows * 2
    trimmed = {field: [row[index] for row in rows] for index, field in enumerate(kinds)}
    return trimmed | {"num_hidden_layers": len(rows)}


def model_class(config: Any) -> type[nn.Module]:
    """The class with a head that computes logits, where there is one, or the base model."""
    from transformers import AutoModelForCausalLM, PreTrainedModel

    if config.model_type in CLASSES:
        name = type(config).__module__.replace(".configuration_", ".modeling_")
        named: type[nn.Module] = getattr(importlib.import_module(name), CLASSES[config.model_type])
        return named
    if type(config) in AutoModelForCausalLM._model_mapping:
        chosen: type[nn.Module] = AutoModelForCausalLM._model_mapping[type(config)]
        return chosen
    module = importlib.import_module(type(config).__module__.replace(".configuration_", ".modeling_"))

    found = [
        each
        for _, each in inspect.getmembers(module, inspect.isclass)
        if issubclass(each, PreTrainedModel) and each.__module__ == module.__name__ and _is_of(each, config)
    ]
    for ending in ENDINGS:
        for each in found:
            if each.__name__.endswith(ending) and not each.__name__.endswith("PreTrainedModel"):
                return each
    raise LookupError(f"{module.__name__} has no model of {type(config).__name__}")


def _is_of(model: Any, config: Any) -> bool:
    return model.config_class is type(config) or model.__init__.__annotations__.get("config") in (
        type(config),
        type(config).__name__,
    )


def small(kind: str) -> nn.Module:
    """A small model of this type, with batches of token ids, or of what else it takes."""
    config = small_config(kind)
    model = model_class(config)(config)
    model = Fed(model, FEEDS[kind][1]) if kind in FEEDS else model
    model.example = partial(rows_of, kind)
    return model.train()


def rows_of(kind: str, samples: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Token ids, (rows, tokens), which are the targets too; or what else this type takes."""
    if kind in FEEDS:
        inputs = torch.randn(samples, *FEEDS[kind][0], generator=generator)
    else:
        inputs = torch.randint(IDS, (samples, TOKENS), generator=generator)
    return inputs, inputs


def loss(outputs: Any, targets: Tensor) -> Tensor:
    """Cross entropy of the next token; of a model without a head the mean of the squares."""
    scores = getattr(outputs, "logits", None)
    if scores is None or targets.is_floating_point():
        return outputs[0].square().mean()
    return functional.cross_entropy(scores[:, :-1].flatten(0, 1), targets[:, 1:].flatten() % scores.shape[-1])
