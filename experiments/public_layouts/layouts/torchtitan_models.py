"""Small models of torchtitan's own classes, the tokens they read, and the loss that it trains them with."""

import torch
from torch import nn
from torch.nn import functional
from torchtitan.models.deepseek_v3 import DeepSeekV3Model, DeepSeekV3ModelArgs
from torchtitan.models.llama3 import Transformer, TransformerModelArgs
from torchtitan.models.llama4 import Transformer as Transformer4
from torchtitan.models.llama4 import TransformerModelArgs as TransformerModelArgs4
from torchtitan.models.moe import MoEArgs
from torchtitan.models.qwen3 import Qwen3Model, Qwen3ModelArgs
from torchtitan_on_cpu import lets_run_on_cpu

lets_run_on_cpu()

VOCABULARY, LENGTH = 64, 8
SHAPE = {"vocab_size": VOCABULARY, "max_seq_len": LENGTH, "dim": 32, "n_heads": 4}


def experts(**options):
    return MoEArgs(num_experts=4, use_grouped_mm=False, **({"top_k": 2} | options))


def made(kind, arguments):
    """A model with buffers of its own initialization, which draws weights too small for one as narrow as this."""
    arguments.moe_impl = "standard"
    model = kind(arguments)
    model.init_weights(buffer_device=torch.device("cpu"))
    for parameter in model.parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=parameter.shape[-1] ** -0.5)
    return model


def llama3():
    return made(Transformer, TransformerModelArgs(**SHAPE, n_layers=2, n_kv_heads=2, multiple_of=16))


class WithLoss(Transformer):
    """The same, which computes the loss where it gets targets."""

    def forward(self, tokens, targets=None):
        logits = super().forward(tokens)
        return logits if targets is None else loss(logits, targets)


def llama3_with_loss():
    """Six layers, of which stages take some."""
    return made(WithLoss, TransformerModelArgs(**SHAPE, n_layers=6, n_kv_heads=2, multiple_of=16))


def llama4():
    shape = SHAPE | {"n_layers": 2, "n_kv_heads": 2, "multiple_of": 16}
    return made(Transformer4, TransformerModelArgs4(**shape, moe_args=experts(top_k=1)))


def qwen3(**options):
    shape = SHAPE | {"n_layers": 2, "n_kv_heads": 2, "head_dim": 8, "hidden_dim": 48}
    return made(Qwen3Model, Qwen3ModelArgs(**shape, **options))


def qwen3_tied():
    """As parallelize_qwen3 makes it on a single device."""
    model = qwen3(enable_weight_tying=True)
    model.output.weight = model.tok_embeddings.weight
    return model


def qwen3_moe():
    arguments = experts(
        num_shared_experts=0, score_func="softmax", route_norm=True, score_before_experts=False
    )
    return qwen3(moe_enabled=True, moe_inter_dim=24, moe_args=arguments)


def deepseek_v3(score_before_experts=False):
    heads = {"kv_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "v_head_dim": 8}
    shape = SHAPE | heads | {"n_layers": 3, "inter_dim": 48, "moe_inter_dim": 24}
    arguments = experts(num_shared_experts=1, score_func="softmax", score_before_experts=score_before_experts)
    return made(DeepSeekV3Model, DeepSeekV3ModelArgs(**shape, moe_args=arguments))


def deepseek_v3_scored_before():
    """As the released configuration does not have it: tokens are weighted before the experts."""
    return deepseek_v3(score_before_experts=True)


def tokens(samples=9):
    return torch.randint(VOCABULARY, (samples, LENGTH)), torch.randint(VOCABULARY, (samples, LENGTH))


def texts(samples=8):
    """Tokens with targets that the model itself takes."""
    inputs, targets = tokens(samples)
    return [{"tokens": x, "targets": y} for x, y in zip(inputs, targets, strict=True)]


def loss(outputs, targets):
    """torchtitan's own, but in the type of the outputs and not in float32."""
    return functional.cross_entropy(outputs.flatten(0, 1), targets.flatten(0, 1))
