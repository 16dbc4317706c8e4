"""Layouts that Transformers makes by the plans of its model types, as ``from_pretrained(distributed_config=...)``."""

from torch import nn
from transformers import PreTrainedModel
from transformers.distributed import DistributedConfig
from tried import FOLDER, tried

MODELS = f"{FOLDER}/transformers_models.py"
MODEL = MODELS + ":small:kind={}"
OPTIONS = {"loss": f"{MODELS}:loss"}

WITH_TP = """
    afmoe apertus arcee aria_text axk1 axk2 bailing_hybrid beam cohere cohere2 cohere2_moe
    cohere_compass_text cosmos3_edge_text cwm deepseek_ocr2_encoder deepseek_ocr2_text deepseek_v2
    deepseek_v3 deepseek_v32 deepseek_v4 diffusion_gemma_text doge dots1 dots3_note_text
    dots3_note_vision_encoder embedding_gemma2_text ernie4_5 ernie4_5_moe ernie4_5_vl_moe_text
    ernie4_5_vl_moe_vision esmc eurobert exaone4 exaone_moe flex_olmo flint gemma gemma2 gemma3_text
    gemma3n_text gemma4_text gemma4_unified_text gemma4_vision glm glm4 glm4_moe glm4_moe_lite
    glm4v_moe_text glm4v_text glm5_next_text glm_image_text glm_moe_dsa glm_ocr_text gpt_neox granite
    granite4_vision_text granite_docling_text granite_swa granitemoe granitemoe_swa granitemoehybrid
    granitemoeshared helium higgs_audio_v2 hrm_text hunyuan_v1_moe hy_v3 hy_v4 hyperclovax inkling2_text
    inkling_text internlm3 iquestcoder jais2 jamba kimi_linear kolibri1 laguna lfm2_moe llama llama4
    llama4_text llama4_vision_model longcat_flash mellum mimo_v2_flash minicpm3 minimax minimax_m2
    minimax_m3_vl_text ministral ministral3 mistral mistral4 mistral_large4_text mixtral muse_glimmer
    muse_glimmer_assistant muse_glimmer_text muse_glimmer_vision muse_spark muse_spark_text nanochat
    nemotron nemotron_h neomme olmo olmo2 olmo3 olmo_hybrid olmoe paddleocr_vl_text phi phi3
    phi4_multimodal phimoe qwen2 qwen2_5_omni_text qwen2_5_vl_text qwen2_moe qwen2_vl_text qwen3
    qwen3_5_moe_text qwen3_5_text qwen3_moe qwen3_next qwen3_omni_moe_talker_code_predictor
    qwen3_omni_moe_talker_text qwen3_omni_moe_text qwen3_vl_moe_text qwen4_exp_text seed_oss smollm3
    solar_open starcoder2 step3p5 t5_gemma_module t5gemma2_decoder t5gemma2_text ultrabert
    unlimited_ocr_text vaultgemma voxtral_realtime_text youtu
"""
"""The model types that have a plan for tensor parallelism, and those with one for experts."""

WITH_EP = """
    afmoe aria_text axk1 axk2 bailing_hybrid beam cohere2_moe deepseek_ocr2_text deepseek_v2 deepseek_v3
    deepseek_v32 deepseek_v4 diffusion_gemma_text dots1 dots3_note_text dots3_note_vision_encoder
    ernie4_5_moe ernie4_5_vl_moe_text exaone_moe flex_olmo flint gemma4_text glm4_moe glm4_moe_lite
    glm4v_moe_text glm5_next_text glm_moe_dsa gpt_oss granitemoe granitemoe_swa granitemoehybrid
    granitemoeshared hunyuan_v1_moe hy_v3 hy_v4 inkling2_text inkling_text jamba kimi_linear kolibri1
    laguna lfm2_moe mellum mimo_v2_flash minimax minimax_m2 minimax_m3_vl_text mistral4
    mistral_large4_text mixtral muse_spark_text nemotron_h olmoe openai_privacy_filter phimoe qwen2_moe
    qwen3_5_moe_text qwen3_moe qwen3_next qwen3_omni_moe_talker_text qwen3_omni_moe_text
    qwen3_vl_moe_text qwen4_exp_text solar_open step3p5 unlimited_ocr_text zaya
"""

FEW = "cohere2 deepseek_v3 gemma2 glm4_moe llama mixtral olmo2 phi3 qwen3 qwen3_moe"


def distributed(model, **sizes):
    """The model by its own plans, over these sizes: tp_size, ep_size, fsdp_size, dp_replicate_size."""
    inner = model if isinstance(model, PreTrainedModel) else model.model
    untie(inner)
    config, _, meshes = PreTrainedModel.prepare_distribute_model(DistributedConfig(**sizes))
    inner.maybe_distribute_model(inner, config, meshes)
    inner.tie_weights(recompute_mapping=False)
    return model


def untie(model):
    """Give a tied weight a parameter of its own: a model is laid out before its weights are tied."""
    for name in model.all_tied_weights_keys:
        module, _, parameter = name.rpartition(".")
        holder = model.get_submodule(module)
        setattr(holder, parameter, nn.Parameter(getattr(holder, parameter).detach().clone()))


def planned(models, mesh="tp=2", accumulate=1, **sizes):
    """The model type's own plans, over these sizes."""
    lay_out = lambda model, mesh: distributed(model, **sizes)  # noqa: E731
    return tried(models, lay_out, mesh, accumulate=accumulate, steps=accumulate)


tp = planned(WITH_TP, tp_size=2)
ep = planned(WITH_EP, tp_size=2, ep_size=2)  # experts on the ranks of tensor parallelism
fsdp = planned(FEW, mesh="dp=2", fsdp_size=2)
hsdp = planned("llama mixtral", mesh="dp_replicate=2,dp_shard=2", dp_replicate_size=2, fsdp_size=2)
tp_fsdp = planned(FEW, mesh="dp=2,tp=2", tp_size=2, fsdp_size=2)
ep_over_data = planned("deepseek_v3 glm4_moe mixtral qwen3_moe", mesh="dp=2", fsdp_size=2, ep_size=2)
tp_accumulated = planned("gemma3_text llama olmo2 qwen3 qwen3_moe", accumulate=2, tp_size=2)
