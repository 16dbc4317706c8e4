"""Models of Hugging Face and torchvision, small and from a config: nothing is downloaded."""

from typing import Any

import torch

LANGUAGE = ("bert", "distilbert", "gpt2", "llama", "opt", "qwen2")
VISION = ("vit", "resnet18", "mobilenet_v3_small", "shufflenet_v2_x0_5", "squeezenet1_1")

SIZE: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
}
IDS: dict[str, Any] = {"vocab_size": 256, "use_cache": False, "bos_token_id": 0, "eos_token_id": 0}


def bert():
    from transformers import BertConfig, BertForMaskedLM

    return BertForMaskedLM(BertConfig(vocab_size=256, **SIZE))


def distilbert():
    from transformers import DistilBertConfig, DistilBertForMaskedLM

    return DistilBertForMaskedLM(
        DistilBertConfig(vocab_size=256, dim=32, hidden_dim=64, n_layers=2, n_heads=2)
    )


def gpt2():
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(GPT2Config(n_positions=64, n_embd=32, n_layer=2, n_head=2, **IDS))


def llama():
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(LlamaConfig(**SIZE, **IDS))


def opt():
    from transformers import OPTConfig, OPTForCausalLM

    shape = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "ffn_dim": 64}
    return OPTForCausalLM(OPTConfig(word_embed_proj_dim=32, pad_token_id=1, **shape, **IDS))


def qwen2():
    from transformers import Qwen2Config, Qwen2ForCausalLM

    return Qwen2ForCausalLM(Qwen2Config(num_key_value_heads=2, **SIZE, **IDS))


def vit():
    from transformers import ViTConfig, ViTForImageClassification

    return with_images(
        ViTForImageClassification(ViTConfig(image_size=32, patch_size=8, num_labels=10, **SIZE))
    )


def vision(name):
    """A model of torchvision by its name."""
    import torchvision

    return with_images(getattr(torchvision.models, name)(num_classes=10))


def with_images(model):
    """The model with random images and classes."""

    def example(samples, generator):
        images = torch.randn(samples, 3, 32, 32, generator=generator)
        return images, torch.randint(10, (samples,), generator=generator)

    model.example = example
    return model
