"""How long a plan takes, and how near it is to what others have published: writes the tables of README.md."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

sys.path[:0] = [str(Path(__file__).resolve().parents[each]) for each in (1, 2)]
from harness import markdown

import dpexp

README, GIB = Path(__file__).with_name("README.md"), 2**30


def llama(blocks: int = 32, width: int = 4096, ffn: int = 14336, kv: int = 8, words: int = 128256) -> Any:
    sizes = {"num_hidden_layers": blocks, "hidden_size": width, "intermediate_size": ffn, "vocab_size": words}
    heads = {"num_attention_heads": width // 128, "num_key_value_heads": kv}
    config = transformers.LlamaConfig(**sizes, **heads, max_position_embeddings=32768, use_cache=False)
    return transformers.LlamaForCausalLM(config)


def gpt2_xl() -> Any:
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(n_embd=1600, n_layer=48, n_head=25))


def bert_large(attention: str = "sdpa") -> Any:
    sizes = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16}
    config = transformers.BertConfig(**sizes, intermediate_size=4096, attn_implementation=attention)
    return transformers.BertForSequenceClassification(config)


class LoRA(nn.Module):
    """A frozen linear layer with an addition of rank 8, which is trained."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.linear, self.dropout = linear, nn.Dropout(0.05)
        self.down = nn.Linear(linear.in_features, 8, bias=False)
        self.up = nn.Linear(8, linear.out_features, bias=False)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.linear(inputs) + self.up(self.down(self.dropout(inputs)))


def llama2_lora(blocks: int, width: int, ffn: int) -> Any:
    """Llama 2, with additions to queries and values."""
    model = llama(blocks, width, ffn, width // 128, 32000).requires_grad_(False)
    for attention in (layer.self_attn for layer in model.model.layers):
        attention.q_proj, attention.v_proj = LoRA(attention.q_proj), LoRA(attention.v_proj)
    return model


def _kept(counts: dict[bool, int], context: Any, operator: Any, *args: Any, **more: Any) -> Any:
    aten, again = torch.ops.aten, context.is_recompute
    counts[again] = counts.get(again, 0) + (operator is aten.mm.default)
    is_first = operator is aten.mm.default and counts[again] % 2 == 1
    keeps = is_first or operator is aten._scaled_dot_product_flash_attention.default
    return CheckpointPolicy.MUST_SAVE if keeps else CheckpointPolicy.PREFER_RECOMPUTE


def torchtitan_full(model: Any, mesh: Any, **checkpoint: Any) -> Any:
    """Computes in bfloat16, with a checkpoint of each block."""
    short = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    layers = model.model.layers
    for index, layer in enumerate(layers):
        layers[index] = fully_shard(checkpoint_wrapper(layer, **checkpoint), mesh=mesh, mp_policy=short)
    return fully_shard(model, mesh=mesh, mp_policy=short)


def torchtitan(model: Any, mesh: Any) -> Any:
    """Checkpoints that keep every second matrix product."""
    contexts = lambda: create_selective_checkpoint_contexts(partial(_kept, {}))  # noqa: E731
    return torchtitan_full(model, mesh, context_fn=contexts)


@dataclass(frozen=True)
class Case:
    """A step of ``rows`` rows of so many tokens; ``published`` is in GiB, of one device."""

    model: Callable[[], nn.Module]
    rows: int
    tokens: int
    devices: str
    layouts: tuple[str, ...] = ("single", "ddp", "fsdp", "fsdp --checkpoint")
    published: float = 0
    dtype: str = "float32"
    optimizer: Any = "adamw"


MODELS = {
    "Llama 3.1 8B, bfloat16, 2 x 8192": Case(llama, 16, 8192, "8xH100", dtype="bfloat16"),
    "GPT-2 XL, float32, 4 x 1024": Case(gpt2_xl, 32, 1024, "8xH100"),
    "BERT-large, float32, 16 x 512": Case(bert_large, 128, 512, "8xH100"),
}
SELECTIVE, FULL = ((f"custom --layout {__file__}:torchtitan{each}",) for each in ("", "_full"))


def _lora(blocks: int, width: int, ffn: int, rows: int, published: float) -> Case:
    model = partial(llama2_lora, blocks, width, ffn)
    return Case(model, rows, 1304, "A100-40GB", ("single",), published * 1e9 / GIB, "bfloat16")


def _bert(rows: int, layout: str, published: int) -> Case:
    """Published are MiB with what the driver takes, 1343 MiB."""
    model, published_gib = partial(bert_large, "eager"), (published - 1343) / 1024
    one_by_one = partial(torch.optim.AdamW, foreach=False)
    return Case(model, rows, 512, "V100-16GB", (layout,), published_gib, optimizer=one_by_one)


PUBLISHED = {
    "torchtitan, Llama 3.1 8B, 2 x 8192, 8 devices": Case(llama, 16, 8192, "8xH100", SELECTIVE, 82.4),
    "torchtitan, the same, 128 devices": Case(llama, 256, 8192, "128xH100", SELECTIVE, 67.0),
    "torchtitan, 1 x 32768, full checkpoints": Case(llama, 8, 32768, "8xH100", FULL, 83.9),
    "LitGPT, Llama 2 7B, LoRA, 1 x 1304": _lora(32, 4096, 11008, 1, 21.30),
    "LitGPT, the same, 2 x 1304": _lora(32, 4096, 11008, 2, 29.07),
    "LitGPT, Llama 2 13B, LoRA, 1 x 1304": _lora(40, 5120, 13824, 1, 38.12),
    "Transformers, BERT-large, 4 x 512": _bert(4, "single", 14949),
    "Transformers, 4 times 1 x 512": _bert(1, "single --accumulate 4", 8681),
    "Transformers, the same, checkpoints": _bert(1, "single --accumulate 4 --checkpoint", 6775),
}


def loss_of(outputs: Any, targets: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(outputs.logits.flatten(0, -2).float(), targets.flatten())


def planned(case: Case, layout: str) -> dict[str, Any]:
    """The row of a plan, with its ``seconds``, and the most memory of this process in ``rss_bytes``."""
    ids, begun = torch.zeros(case.rows, case.tokens, dtype=torch.long), time.perf_counter()
    data = (ids, ids[:, 0] if "bert" in str(case.model) else ids)
    options: dict[str, Any] = {"optimizer": case.optimizer, "dtype": case.dtype, "batch_size": case.rows}
    (row,) = dpexp.plan(case.model, data, loss_of, layouts=[layout], devices=case.devices, **options)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return row | {"seconds": time.perf_counter() - begun, "rss_bytes": peak}


def rows(cases: dict[str, Case]) -> Iterator[tuple[str, ...]]:
    """The rows of a table, each planned in a process of its own."""
    for name, case in cases.items():
        for layout in case.layouts:
            words = [sys.executable, __file__, "--case", name, layout]
            row = json.loads(subprocess.check_output(words, text=True).splitlines()[-1])
            gib = row["peak_bytes"] / GIB
            if case.published:
                ratio = f"**{gib / case.published:.2f}**"
                yield name, f"{case.published:.1f}", f"{gib:.1f}", ratio, row["peak_module"]
            else:
                rss, fits = f"{row['rss_bytes'] / GIB:.1f}", "yes" if row["fits"] else "no"
                yield name, layout, f"{row['seconds']:.0f}", rss, f"{gib:.1f}", str(row["most_rows"]), fits


def write(name: str, titles: tuple[str, ...], cases: dict[str, Case]) -> None:
    """Write a table between the marks of this name in README.md."""
    begin, end = f"<!-- begin: {name} -->\n", f"<!-- end: {name} -->"
    before, _, rest = README.read_text().partition(begin)
    README.write_text(before + begin + markdown(titles, rows(cases)) + "\n" + end + rest.partition(end)[2])


if __name__ == "__main__":
    if sys.argv[1:2] == ["--case"]:
        print(json.dumps(planned((MODELS | PUBLISHED)[sys.argv[2]], sys.argv[3])))
    else:
        write("costs", ("model", "layout", "s", "GiB", "planned", "most rows", "fits"), MODELS)
        write("published", ("by", "published", "planned", "ratio", "planned peak in"), PUBLISHED)
