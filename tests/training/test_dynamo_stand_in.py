"""Optimizers without ``torch._dynamo``: not imported, the same bits, and there as soon as somebody needs it.

In processes of their own: in one that has imported the module, nothing is replaced.
"""

import functools
import json
import subprocess
import sys
from pathlib import Path

from command_lines import PATIENCE_S, ROOT

STEPS = """
import sys, torch
from dpexp.config.run_config import RunConfig
from dpexp.training.optimizer_names import OPTIMIZERS
from dpexp.training.optimizers import RunOptimizer, check_optimizer
from dpexp.strategies.placed import Placed

def trained(name):
    torch.manual_seed(0)
    table = torch.nn.Embedding(9, 4, sparse=name in ("sgd", "adam", "adagrad"))
    model = torch.nn.Sequential(table, torch.nn.Linear(4, 2))
    config = RunConfig("single", optimizer=name, clip_norm=1.0)
    check_optimizer(config, model)
    cpu = torch.device("cpu")
    optimizers = RunOptimizer(config).of(Placed(model, cpu, cpu, (cpu,)))
    for batch in torch.arange(27).reshape(3, 9) % 7:
        model(batch).square().sum().backward()
        optimizers.step()
        optimizers.restart()
    return [parameter.detach().clone() for parameter in model.parameters()]

def in_dynamo():
    return "torch._dynamo" in sys.modules
"""


def run(program: str) -> str:
    """What a new interpreter prints; ``-B`` keeps the command from being forked with all imported."""
    command = [sys.executable, "-B", "-c", f"import sys; sys.path.insert(0, {str(ROOT)!r})\n{program}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_run_does_not_import_torch_dynamo(dpexp_home: Path) -> None:
    program = (
        "import dpexp\n"
        "for strategy in ('whole', 'hybrid'):\n"
        "    config = dpexp.RunConfig(strategy, steps=2, warmup=1, virtual=2, track=False)\n"
        "    assert dpexp.run(config, quiet=True).status == 'finished'\n"
        "print('torch' in sys.modules, 'torch._dynamo' in sys.modules)"
    )
    assert run(program) == "True False\n"


PROGRAMS = {
    "bits": (
        "before = {name: trained(name) for name in OPTIMIZERS}\n"
        "print(in_dynamo())\n"
        "import torch._dynamo\n"
        "after = {name: trained(name) for name in OPTIMIZERS}\n"
        "pairs = [pair for name in OPTIMIZERS for pair in zip(before[name], after[name])]\n"
        "print(len(pairs), all(torch.equal(*pair) for pair in pairs))"
    ),
    "asked": (
        "parameter = torch.nn.Parameter(torch.ones(2))\n"
        "with without_dynamo():\n"
        "    optimizer = torch.optim.SGD([parameter], lr=0.1)\n"
        "    import torch._dynamo.config\n"
        "    print(torch._dynamo.config.cache_size_limit > 0, in_dynamo())\n"
        "real = sys.modules['torch._dynamo']\n"
        "print(real is torch._dynamo, callable(real.optimize))\n"
        "optimizer.add_param_group({'params': [torch.nn.Parameter(torch.ones(3))]})\n"
        "model = torch.compile(lambda x: x * 2 + 1, backend='eager', fullgraph=True)\n"
        "print(model(torch.ones(2)).tolist(), len(optimizer.param_groups))"
    ),
    "decorator": (
        "with without_dynamo():\n"
        "    @torch.compiler.disable(recursive=False)\n"
        "    def doubled(value):\n"
        "        return 2 * value\n"
        "print(doubled(3), in_dynamo())"
    ),
    "error": (
        "try:\n"
        "    with without_dynamo():\n"
        "        raise KeyError\n"
        "except KeyError:\n"
        "    print(in_dynamo(), '_dynamo' in vars(torch))"
    ),
}
FORKS = """
import json, os
from dpexp.training.dynamo_stand_in import without_dynamo
assert not in_dynamo()
printed = {}
for name, program in PROGRAMS.items():
    reads, writes = os.pipe()
    if not os.fork():
        os.dup2(writes, 1)
        exec(program)
        sys.stdout.flush()
        os._exit(0)
    os.close(writes)
    with open(reads) as file:
        printed[name] = file.read()
    assert os.wait()[1] == 0
print(json.dumps(printed))
"""
"""Runs each program in a fork of an interpreter that has imported torch, and nothing of dynamo."""


@functools.cache
def printed() -> dict[str, str]:
    """What each of the programs prints."""
    found: dict[str, str] = json.loads(run(f"{STEPS}\nPROGRAMS = {PROGRAMS!r}\n{FORKS}"))
    return found


def test_every_optimizer_gives_the_same_bits_without_torch_dynamo() -> None:
    assert printed()["bits"] == "False\n33 True\n"


def test_the_real_module_is_there_for_whatever_else_is_asked() -> None:
    assert printed()["asked"] == "True True\nTrue True\n[3.0, 3.0] 2\n"


def test_a_decorator_with_options_in_a_step_is_the_real_one() -> None:
    """An optimizer's factory may import a file that has some."""
    assert printed()["decorator"] == "6 True\n"


def test_an_error_in_a_step_leaves_no_stand_in() -> None:
    assert printed()["error"] == "False False\n"
