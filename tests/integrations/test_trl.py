"""TRL's trainers, watched by a callback: their loss is computed outside of the model."""

from typing import Any

import pytest
import torch
from datasets import Dataset
from loops import Claims, check_on_two_ranks
from peft import LoraConfig
from test_transformers import summed
from tokenizers import Tokenizer, models, pre_tokenizers
from trainers import HEADS, SIZES, llama, trained
from transformers import LlamaConfig, LlamaForSequenceClassification, PreTrainedTokenizerFast
from trl import DPOConfig, DPOTrainer, RewardConfig, RewardTrainer, SFTConfig, SFTTrainer

pytestmark = pytest.mark.filterwarnings("default")  # TRL, Transformers and PyTorch warn of each other

alone, claims = Claims(), Claims()


@pytest.mark.parametrize("name", alone)
def test_the_verdict_on_one_process_of(name: str) -> None:
    alone[name].check(alone[name].ends())


@pytest.mark.parametrize("name", claims)
def test_the_verdict_on_two_ranks_of(name: str) -> None:
    check_on_two_ranks(__name__, name)


# --- data ---


def tokenizer() -> PreTrainedTokenizerFast:
    words = ["<pad>", "<eos>", "<unk>", *(f"w{number}" for number in range(60))]
    model = models.WordLevel({word: place for place, word in enumerate(words)}, unk_token="<unk>")
    made = Tokenizer(model)
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(
        tokenizer_object=made, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>"
    )


def text(row: int, words: int) -> str:
    return "".join(f" w{(row * 7 + place * 5) % 60}" for place in range(words))


def texts() -> Dataset:
    return Dataset.from_list([{"text": text(row, 4 + row % 6)} for row in range(48)])


def completions() -> Dataset:
    rows = [{"prompt": text(row, 3), "completion": text(row + 9, 3 + row % 5)} for row in range(48)]
    return Dataset.from_list(rows)


def preferences(rows: int = 48) -> Dataset:
    columns = [("prompt", 3, 3), ("chosen", 3, 5), ("rejected", 2, 4)]
    return Dataset.from_list(
        [
            {name: text(row + least, least + row % span) for name, least, span in columns}
            for row in range(rows)
        ]
    )


def lora() -> LoraConfig:
    return LoraConfig(r=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")


# --- SFT ---


def sft(data: Dataset | None = None, extra: Any = None, **options: Any) -> Any:
    given = {"train_dataset": data or texts(), "processing_class": tokenizer(), **(extra or {})}
    return trained(SFTTrainer, SFTConfig, extra=given, **options)


alone.right(
    sft_clipped=lambda: sft(max_grad_norm=0.1),
    sft_of_completions=lambda: sft(completions()),
    sft_of_an_adapter=lambda: sft(extra={"peft_config": lora()}),
    sft_by_a_loss_function=lambda: sft(extra={"compute_loss_func": summed}),
    sft_of_smoothed_labels=lambda: sft(label_smoothing_factor=0.1),
    dft=lambda: sft(loss_type="dft"),
    sft_of_packed_rows=lambda: sft(packing=True, max_length=16),
)
claims.right(
    sft=sft,
    sft_in_bfloat16=lambda: sft(bf16=True, max_grad_norm=0.1),
    sft_of_an_adapter_on_ranks=lambda: sft(extra={"peft_config": lora()}),
    sft_by_a_loss_function_on_ranks=lambda: sft(extra={"compute_loss_func": summed}),
)
claims.wrong("unequal labels", sft_of_own_labels=lambda: sft(average_tokens_across_devices=False))

# --- DPO, rewards ---


def dpo(data: Dataset | None = None, extra: Any = None, **options: Any) -> Any:
    given = {"train_dataset": data or preferences(), "processing_class": tokenizer(), "ref_model": llama()}
    return trained(DPOTrainer, DPOConfig, extra=given | (extra or {}), **options)


def rewards(**options: Any) -> Any:
    torch.manual_seed(0)
    model = LlamaForSequenceClassification(LlamaConfig(**SIZES, **HEADS, num_labels=1, pad_token_id=0))
    given = {"model": model, "train_dataset": preferences(), "processing_class": tokenizer()}
    return trained(RewardTrainer, RewardConfig, extra=given, **options)


alone.right(
    dpo_clipped=lambda: dpo(max_grad_norm=0.1),
    dpo_of_an_adapter=lambda: dpo(extra={"peft_config": lora(), "ref_model": None}),
    ipo=lambda: dpo(loss_type="ipo"),
    dpo_and_sft=lambda: dpo(loss_type=["sigmoid", "sft"], loss_weights=[1.0, 0.5]),
    of_rewards=rewards,
)
alone.wrong("averaged as if equal", dpo_of_fewer_rows_at_last=lambda: dpo(preferences(5), bf16=False))
claims.right(
    dpo=dpo,
    dpo_in_bfloat16=lambda: dpo(bf16=True),
    dpo_of_an_adapter_on_ranks=lambda: dpo(extra={"peft_config": lora(), "ref_model": None}),
    of_rewards_on_ranks=rewards,
)
