"""``python -m dpexp.watch SCRIPT``, where the script has a Trainer, which gets the callback by itself."""

from pathlib import Path

import pytest
from helpers.command_lines import ROOT
from helpers.launching import start, wait

LIGHTNING = """
import sys
import torch
from lightning import LightningModule, Trainer, seed_everything
from torch import nn

class Model(LightningModule):
    def __init__(self):
        super().__init__()
        self.layer, self.loss = nn.Linear(8, 3), nn.CrossEntropyLoss()

    def training_step(self, batch, number):
        return self.loss(self.layer(batch[0]), batch[1])

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

seed_everything(0, verbose=False)
rows = torch.utils.data.TensorDataset(torch.randn(64, 8), torch.randint(0, 3, (64,)))
quiet = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")
options = {"accelerator": "cpu", "devices": int(sys.argv[1]), "strategy": sys.argv[2]}
trainer = Trainer(max_epochs=1, accumulate_grad_batches=2, **options, **dict.fromkeys(quiet, False))
trainer.fit(Model(), torch.utils.data.DataLoader(rows, batch_size=4))
"""
TRANSFORMERS = """
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 24

    def __getitem__(self, index):
        ids = torch.randint(64, (8,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": ids, "labels": ids}

sizes = {"vocab_size": 64, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1}
model = LlamaForCausalLM(LlamaConfig(**sizes, num_attention_heads=2, num_key_value_heads=1))
quiet = {"report_to": [], "save_strategy": "no", "disable_tqdm": True}
arguments = TrainingArguments("out", use_cpu=True, max_steps=4, per_device_train_batch_size=2, **quiet)
Trainer(model, arguments, train_dataset=Rows()).train()
"""


@pytest.mark.parametrize(
    ("program", "words"),
    [(LIGHTNING, ["1", "auto"]), (LIGHTNING, ["2", "ddp"]), (TRANSFORMERS, [])],
    ids=["lightning", "lightning-starts-a-rank", "transformers"],
)
def test_a_script_with_a_trainer_is_watched(tmp_path: Path, program: str, words: list[str]) -> None:
    (tmp_path / "train.py").write_text(program)
    watched = ["-m", "dpexp.watch", "--no-track", "train.py", *words]
    done = wait(start(*watched, folder=tmp_path, PYTHONPATH=str(ROOT), HF_HUB_OFFLINE="1"))
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("dpexp.watch: right: 4 steps") == 1
