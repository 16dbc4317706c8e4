"""What does it cost to record a run of several processes, and how well do two of them share a step?"""

from dpexp.config import RunConfig
from dpexp.experiment import Bars, Claim, Program

QUESTION = "What does it cost to record a run of several processes, and how well do two of them share a step?"
ROWS, STEPS = 4096, 40


def run(devices: str, strategy: str = "ddp") -> RunConfig:
    """The small CNN, a global batch that takes tens of ms, one thread a process; journal and MLflow on."""
    return RunConfig(
        strategy,
        model="cnn",
        data=f"random:samples={4 * ROWS}",
        batch_size=ROWS,
        steps=STEPS,
        warmup=6,
        phase_steps=0,
        threads=1,
        devices=devices,
    )


RUNS = {
    "single": run("cpu", "single"),
    "one": run("1"),
    "two": run("2"),
    "turns": Program("turns.py", ("2", str(ROWS), str(STEPS // 2))),
}
REPEATS = 4

CLAIMS = [
    Claim(
        "Two processes take at most 1 / (2 x 0.9) of the time of one, at the same global batch, recording on.",
        "step_ms",
        "two",
        "<=",
        0.556,
        "one",
    ),
    Claim(
        "A recorded step of two processes takes at most 1.02 times one of the bare torchrun script.",
        "samples:ratio",
        "turns",
        "<=",
        1.02,
    ),
    Claim("Two processes compute what a single device computes.", "verified", "two", "==", True),
]

ANSWER = (
    "At one global batch a step of two processes takes {ratio step_ms two one} the time of one process, both recorded; "
    "and recording makes it {value samples:ratio turns} that of a bare torchrun script, in turn with it."
)
COLUMNS = ("step_ms", "samples:ratio", "wall_s", "verified")
FIGURE = Bars(
    "A step of the small CNN at one global batch, over processes of one thread",
    "step_ms",
    {"single": "single device", "one": "1 process (DDP)", "two": "2 processes (DDP)"},
)
