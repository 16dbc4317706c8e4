"""Trainer and Seq2SeqTrainer, watched by a callback, on one process and on two gloo ranks."""

from pathlib import Path
from typing import Any

import pytest
import torch
from loops import Claims, check_on_two_ranks
from torch import nn
from torch.nn import functional
from trainers import Rows, llama, made, trained
from transformers import (
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    T5Config,
    T5ForConditionalGeneration,
    Trainer,
)

from dpexp.config.errors import ConfigError, VerificationError
from dpexp.integrations.transformers import WatchCallback
from dpexp.record.fold import load_record

pytestmark = pytest.mark.filterwarnings("default")  # Transformers and PyTorch warn of each other

alone, claims = Claims(), Claims()


@pytest.mark.parametrize("name", alone)
def test_the_verdict_on_one_process_of(name: str) -> None:
    alone[name].check(alone[name].ends())


@pytest.mark.parametrize("name", claims)
def test_the_verdict_on_two_ranks_of(name: str) -> None:
    check_on_two_ranks(__name__, name)


# --- the loss is inside the model ---


def seq2seq(accepts_loss_kwargs: bool = False, **options: Any) -> Any:
    """T5's loss is the mean over the labels of its call; Trainer divides it where it is told of that."""
    torch.manual_seed(0)
    sizes = {"vocab_size": 64, "d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 1, "num_heads": 2}
    model = T5ForConditionalGeneration(T5Config(**sizes, decoder_start_token_id=0))
    model.accepts_loss_kwargs = accepts_loss_kwargs
    return trained(Seq2SeqTrainer, Seq2SeqTrainingArguments, extra={"model": model, **options})


def equal() -> Rows:
    return Rows(lambda row: 1)


def sharded(**options: Any) -> Any:
    layers = {
        "auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "transformer_layer_cls_to_wrap": ["LlamaDecoderLayer"],
    }
    return trained(fsdp="full_shard", fsdp_config={"version": 2, **layers}, **options)


alone.right(
    clipped=lambda: trained(max_grad_norm=0.1),
    a_model_that_train_makes=lambda: trained(extra={"model_init": llama}),
    checkpointed=lambda: trained(gradient_checkpointing=True),
    noisy_embeddings=lambda: trained(neftune_noise_alpha=5.0),
    a_last_step_of_fewer_rows=lambda: trained(
        extra={"train_dataset": Rows(count=9)},
        num_train_epochs=2,
        max_steps=-1,
        per_device_train_batch_size=2,
    ),
    seq2seq_of_equal_labels=lambda: seq2seq(train_dataset=equal()),
)
alone.wrong("averaged as if equal", seq2seq_of_unequal_labels=seq2seq)
alone.wrong(
    "not divided by 3",  # Transformers 5.24 takes T5 for a model that divides by num_items_in_batch
    seq2seq_that_nobody_divides=lambda: seq2seq(True, train_dataset=equal()),
)
claims.right(
    trainer=lambda: trained(max_grad_norm=0.1),
    trainer_in_bfloat16=lambda: trained(bf16=True),
    seq2seq_on_ranks=lambda: seq2seq(train_dataset=equal()),
    fully_sharded=sharded,
    fully_sharded_and_clipped=lambda: sharded(max_grad_norm=0.1),
)
claims.wrong(
    "unequal labels", each_rank_divides_by_its_own=lambda: trained(average_tokens_across_devices=False)
)
claims.wrong("averaged as if equal", seq2seq_of_unequal_labels_on_ranks=seq2seq)

# --- the loss is outside of it ---


def summed(outputs: Any, labels: torch.Tensor, num_items_in_batch: Any = None) -> torch.Tensor:
    """A compute_loss_func, as Transformers' documentation has it."""
    logits, labels = outputs["logits"][:, :-1].flatten(0, 1), labels[:, 1:].flatten()
    return functional.cross_entropy(logits, labels, reduction="sum") / num_items_in_batch


class Calling(Trainer):
    """It calls that of its base class."""

    def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
        return super().compute_loss(*args, **kwargs)


class Averaging(Trainer):
    """The loss of Transformers' documentation: the mean of each call, which Trainer may divide."""

    def compute_loss(
        self, model: nn.Module, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        labels = inputs.pop("labels")[:, 1:].flatten()
        outputs = model(**inputs)
        loss = functional.cross_entropy(outputs.logits[:, :-1].flatten(0, 1), labels)
        return (loss, outputs) if return_outputs else loss


class Divided(Averaging):
    loss_is_scaled_for_ga = False


class Twice(Trainer):
    """Two passes with other dropout, as R-Drop."""

    def compute_loss(self, model: nn.Module, inputs: Any, **_: Any) -> Any:
        first, second = model(**inputs).logits, model(**inputs).logits
        return functional.mse_loss(first, second) + first.square().mean()


class OfPairs(Divided):
    """The first half of the rows is preferred to the second."""

    def compute_loss(self, model: nn.Module, inputs: Any, **_: Any) -> Any:
        better, worse = model(input_ids=inputs["input_ids"]).logits.mean((1, 2)).chunk(2)
        return -functional.logsigmoid(better - worse).mean()


def pairs(**options: Any) -> Any:
    return trained(OfPairs, of_callback=options, per_device_train_batch_size=4)


alone.right(
    a_loss_function=lambda: trained(extra={"compute_loss_func": summed}),
    smoothed_labels=lambda: trained(label_smoothing_factor=0.1),
    the_loss_of_the_base_class=lambda: trained(Calling),
    means_that_are_divided=lambda: trained(Divided, extra={"train_dataset": equal()}),
)
alone.not_comparable("a row depends on other rows", pairs_of_unknown_weight=pairs)
alone.wrong(
    "not divided by 3",
    means_that_are_not_divided=lambda: trained(Averaging, extra={"train_dataset": equal()}),
)
alone.right(
    "weights of the loss were not compared: compute_loss calls the model 2 times",
    two_passes=lambda: trained(Twice),
)
claims.right(
    a_loss_function_on_ranks=lambda: trained(extra={"compute_loss_func": summed}, bf16=True),
    smoothed_labels_on_ranks=lambda: trained(label_smoothing_factor=0.1),
    the_loss_of_the_base_class_on_ranks=lambda: trained(Calling),
    pairs_on_ranks=lambda: pairs(weight=lambda outputs, inputs, **_: len(inputs["input_ids"])),
    means_on_ranks=lambda: trained(Divided, extra={"train_dataset": equal()}, max_grad_norm=0.1),
)
claims.wrong("averaged as if equal", means_of_unequal_labels=lambda: trained(Divided))

# --- the callback ---


def test_a_watched_trainer_computes_the_same_bits_and_keeps_nothing(tmp_path: Path) -> None:
    trainers = []
    for callbacks in ([], [WatchCallback(steps=2, track=False)]):
        trainer = made(
            folder=str(tmp_path), callbacks=callbacks, label_smoothing_factor=0.1, logging_strategy="steps"
        )
        trainer.train()
        trainers.append(trainer)
    plain, watched = trainers
    pairs = zip(plain.model.parameters(), watched.model.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
    assert not {"compute_loss", "create_optimizer"} & vars(watched).keys()
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in watched.model.modules())


def test_metrics_and_the_verdict_are_recorded(
    dpexp_home: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    callback = WatchCallback(steps=2, name="mine")
    trainer = made(folder=str(tmp_path), callbacks=[callback], logging_strategy="steps", logging_steps=1)
    trainer.train()
    trainer.evaluate(Rows())  # after the end of the run
    assert "dpexp: right: 2 steps" in capfd.readouterr().out
    (folder,) = (dpexp_home / "runs").iterdir()
    record = load_record(folder)
    assert record.name == "mine"
    assert record.status == "finished"
    assert len(record.metrics["loss"]) == 3
    assert record.verification["note"] == ""


def test_a_wrong_loop_raises_in_train_where_that_is_asked_for(tmp_path: Path) -> None:
    callback = WatchCallback(steps=2, track=False, raises=True)
    with pytest.raises(VerificationError, match="not divided by 3"):
        made(Averaging, folder=str(tmp_path), callbacks=[callback], extra={"train_dataset": equal()}).train()


def test_a_model_that_cannot_be_watched_is_trained(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    model = llama()
    model.rows = (row for row in ())  # no copy of a generator
    callback = WatchCallback(track=False)
    made(folder=str(tmp_path), callbacks=[callback], extra={"model": model}).train()
    assert callback.run is None
    assert "dpexp: not watched: LlamaForCausalLM cannot be copied" in capfd.readouterr().out


def test_a_callback_that_comes_after_the_constructor_is_refused(tmp_path: Path) -> None:
    trainer = made(folder=str(tmp_path))
    trainer.add_callback(WatchCallback(track=False))
    with pytest.raises(ConfigError, match="constructor"):
        trainer.train()
