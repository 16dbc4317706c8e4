"""Nine models that users bring first: torchvision's and Hugging Face's, small, with random weights.

``python standard_models.py WORD...`` prints how a run of each word ends, as JSON; ranks call ``judged``.
A word is ``llama,ddp,16``: a model, a layout and the rows of a batch; ``llama,ddp,16,scaled`` plants a bug.
"""

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from torch import nn

from dpexp import devices
from dpexp.config.run_config import RunConfig
from dpexp.distributed.group import ProcessGroup
from dpexp.engine.prepare import prepare
from dpexp.strategies.base import Strategy
from dpexp.strategies.placed import GradientSync, Placed
from helpers.engine_runs import ended
from helpers.torchvision_operators import define_missing

define_missing()

LAYOUTS: dict[str, dict[str, Any]] = {
    "whole": {"virtual": 3},
    "functional": {"virtual": 2},
    "ddp": {},
    "fsdp": {},
}
OF_RANKS = ("ddp", "fsdp")
SAMPLES = {"5": 15, "16": 41}
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


LANGUAGE = ("llama", "gpt2", "mixtral", "bert")
VISION = (
    "resnet18",
    "shufflenet_v2_x0_5",
    "swin_t",
    "convnext_tiny",
    "vit_b_16",
)

# --- data -----------------------------------------------------------------------------------------------


def images(samples: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(samples, 3, SIZE, SIZE), torch.randint(CLASSES, (samples,))


def text(samples: int) -> dict[str, torch.Tensor]:
    ids = torch.randint(1, 64, (samples, 12))
    return {"input_ids": ids, "labels": ids}


# --- bugs -----------------------------------------------------------------------------------------------


def scaled(strategy: Strategy, place: Callable[..., Placed], model: nn.Module, *args: Any) -> Placed:
    """On the second replica or rank, gradients before the last layer are 1.01 times as large."""

    def scale(module: nn.Module, inputs: Any, outputs: torch.Tensor) -> None:
        replica = strategy.group.rank if strategy.group.size > 1 else devices.current_device()[1]
        if replica == 1 and outputs.requires_grad:
            outputs.register_hook(lambda gradient: 1.01 * gradient)

    is_layer = ("Linear", "Conv2d", "Conv1D").__contains__  # the last is of Transformers, a linear layer
    layers = [each for each in model.modules() if is_layer(type(each).__name__)]
    layers[-2].register_forward_hook(scale)
    return place(model, *args)


class MeanOverRanks(GradientSync):
    """The loss of each rank counts the same, however many rows it has."""

    def backward(self, loss: torch.Tensor, batch: Any) -> None:
        loss.backward()  # type: ignore[no-untyped-call]


def averaged(strategy: Strategy, place: Callable[..., Placed], *args: Any) -> Placed:
    return replace(place(*args), gradient_sync=MeanOverRanks())


BUGS = {"scaled": scaled, "averaged": averaged}


def planted(strategy: Strategy, bug: str) -> Strategy:
    """The same strategy with a bug in what it places."""
    kind = type(strategy)

    class Planted(kind):  # type: ignore[misc, valid-type]
        def place(self, *args: Any) -> Placed:
            return BUGS[bug](self, super().place, *args)

    return Planted(**vars(strategy))


# --- runs -----------------------------------------------------------------------------------------------


def judged(group: ProcessGroup, word: str) -> dict[str, Any]:
    """How a run of a word ends: the type of its error, if there is one, the message, and the verification."""
    name, layout, rows, *bugs = word.split(",")
    source = f"{'text' if name in LANGUAGE else 'images'}:samples={SAMPLES[rows]}"
    options = {
        "strategy": layout,
        "model": f"{__file__}:{name}",
        "data": f"{__file__}:{source}",
        "batch_size": int(rows),
        "steps": 1,
        "warmup": 3,
        "phase_steps": 1,
        "loss": "" if name in LANGUAGE else "cross_entropy",
    }
    prepared = prepare(RunConfig.from_dict(options | LAYOUTS[layout]), group=group)
    if bugs:
        prepared = replace(prepared, strategy=planted(prepared.strategy, bugs[0]))
    return ended(prepared)


if __name__ == "__main__":
    print(json.dumps({word: judged(ProcessGroup(), word) for word in sys.argv[1:]}))
