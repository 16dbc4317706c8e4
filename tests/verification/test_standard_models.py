"""Standard models, laid out rightly, are verified or said not to be comparable, and a bug in them is found.

They are nine that users bring first: torchvision's and Hugging Face's, small, with random weights.
"""

import importlib.util
from typing import Any

import pytest
import torch
from helpers.engine_runs import ended
from helpers.in_ranks import in_ranks
from helpers.torchvision_operators import define_missing
from torch import distributed, nn

from dpexp import devices
from dpexp.config.run_config import RunConfig
from dpexp.distributed.group import ProcessGroup
from dpexp.engine.prepare import prepare

define_missing()
LAYOUTS: dict[str, dict[str, Any]] = {
    "whole": {"virtual": 3},
    "functional": {"virtual": 2},
    "ddp": {},
    "fsdp": {},
}
SAMPLES = {5: 15, 16: 41}
"""By the rows of a batch: the last of 41 has nine, which two ranks share unevenly."""

# --- models ---------------------------------------------------------------------------------------------

CLASSES, SIZE = 10, 32
SHAPE: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
}
IDS: dict[str, Any] = {"vocab_size": 64, "use_cache": False, "bos_token_id": 0, "eos_token_id": 0}


def resnet18() -> nn.Module:
    from torchvision.models import resnet18

    return resnet18(num_classes=CLASSES)


def shufflenet_v2_x0_5() -> nn.Module:
    from torchvision.models import shufflenet_v2_x0_5

    return shufflenet_v2_x0_5(num_classes=CLASSES)


def swin_t() -> nn.Module:
    from torchvision.models import SwinTransformer

    size = {"embed_dim": 24, "depths": [2, 2], "num_heads": [1, 2]}
    return SwinTransformer([4, 4], window_size=[3, 3], num_classes=CLASSES, stochastic_depth_prob=0.2, **size)


def convnext_tiny() -> nn.Module:
    from torchvision.models import ConvNeXt
    from torchvision.models.convnext import CNBlockConfig

    blocks = [CNBlockConfig(24, 48, 3), CNBlockConfig(48, 96, 3), CNBlockConfig(96, None, 3)]
    return ConvNeXt(blocks, stochastic_depth_prob=0.1, num_classes=CLASSES)


def vit_b_16() -> nn.Module:
    from torchvision.models import VisionTransformer

    return VisionTransformer(SIZE, 16, 4, 2, 32, 64, num_classes=CLASSES)


def llama() -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(LlamaConfig(**SHAPE, **IDS))


def gpt2() -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(GPT2Config(n_positions=64, n_embd=32, n_layer=2, n_head=2, **IDS))


def mixtral() -> nn.Module:
    from transformers import MixtralConfig, MixtralForCausalLM

    experts = {"num_key_value_heads": 2, "num_local_experts": 4, "num_experts_per_tok": 2}
    return MixtralForCausalLM(MixtralConfig(**experts, **SHAPE, **IDS))


def bert() -> nn.Module:
    from transformers import BertConfig, BertForMaskedLM

    return BertForMaskedLM(BertConfig(vocab_size=64, **SHAPE))


def scaled(model: str) -> nn.Module:
    """On the second replica or rank, gradients before the last layer are 1.01 times as large."""

    def scale(module: nn.Module, inputs: Any, outputs: torch.Tensor) -> None:
        replica = distributed.get_rank() if distributed.is_initialized() else devices.current_device()[1]
        if replica == 1 and outputs.requires_grad:
            outputs.register_hook(lambda gradient: 1.01 * gradient)

    made: nn.Module = globals()[model]()
    is_layer = ("Linear", "Conv2d", "Conv1D").__contains__  # the last is of Transformers, a linear layer
    layers = [each for each in made.modules() if is_layer(type(each).__name__)]
    layers[-2].register_forward_hook(scale)
    return made


def images(samples: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(samples, 3, SIZE, SIZE), torch.randint(CLASSES, (samples,))


def text(samples: int) -> dict[str, torch.Tensor]:
    ids = torch.randint(1, 64, (samples, 12))
    return {"input_ids": ids, "labels": ids}


# --- runs -----------------------------------------------------------------------------------------------

LANGUAGE = ("llama", "gpt2", "mixtral", "bert")
VISION = ("resnet18", "shufflenet_v2_x0_5", "swin_t", "convnext_tiny", "vit_b_16")
without_torchvision = pytest.mark.skipif(
    importlib.util.find_spec("torchvision") is None, reason="torchvision is not installed"
)
MODELS = [*(pytest.param(model, marks=without_torchvision) for model in VISION), *LANGUAGE]
ONE_VALUE = (
    "ConfigError: a batch norm got one value for each channel of a batch of 5 rows, split over 3 devices"
)
"""The third of three replicas has one of five rows."""
OVER_ONE_VALUE = ("resnet18", "shufflenet_v2_x0_5")


def end(group: ProcessGroup | None, model: str, layout: str, rows: str, is_scaled: str = "") -> Any:
    """How the run of a model ends: its error and its verification."""
    is_text = model in LANGUAGE
    options = {
        "strategy": layout,
        "model": f"{__file__}:{f'scaled:model={model}' if is_scaled else model}",
        "data": f"{__file__}:{'text' if is_text else 'images'}:samples={SAMPLES[int(rows)]}",
        "batch_size": int(rows),
        "steps": 1,
        "warmup": 3,
        "phase_steps": 1,
        "loss": "" if is_text else "cross_entropy",
    }
    return ended(prepare(RunConfig.from_dict(options | LAYOUTS[layout]), group=group))


def of_ranks(group: ProcessGroup, words: str) -> Any:
    return end(group, *words.split())


def run(*words: str) -> dict[str, Any]:
    if words[1] not in ("ddp", "fsdp"):
        return end(None, *words)
    (by_rank,) = in_ranks(2, __file__, f"of_ranks:{' '.join(words)}").values()
    return by_rank[0]


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("model", MODELS)
def test_a_model_is_verified_in_every_layout(model: str, layout: str) -> None:
    for rows in SAMPLES:
        found = run(model, layout, str(rows))
        if (layout, rows) == ("whole", 5) and model in OVER_ONE_VALUE:
            assert found["error"].startswith(ONE_VALUE)
            continue
        assert found["error"] == ""
        verification = found["verification"]
        assert verification["passed"]
        for part in (verification["first_steps"], verification["last_step"]):
            assert part["passed"] or "not comparable" in part["note"]


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("model", MODELS)
def test_a_bug_in_any_layout_of_a_model_is_found(model: str, layout: str) -> None:
    found = run(model, layout, "16", "scaled")
    assert found["fields"], found
