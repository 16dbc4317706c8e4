"""What does it cost to record a run of several processes, and how well do two of them share a step?"""

from dpexp.config import RunConfig
from dpexp.experiment import Bars, Claim, Program

QUESTION = "What does it cost to record a run of several processes, and how well do two of them share a step?"
SMALL, LARGE = 4096, 8192


def run(devices: str, rows: int, strategy: str = "ddp") -> RunConfig:
    """The small CNN, a global batch that takes tens of ms, one thread a process; journal and MLflow on."""
    return RunConfig(
        strategy,
        model="cnn",
        data=f"random:samples={4 * rows}",
        batch_size=rows,
        steps=100 if rows == SMALL else 40,
        warmup=6,
        phase_steps=0,
        threads=1,
        devices=devices,
    )


RUNS = {
    "single": run("cpu", SMALL, "single"),
    **{
        f"{name}-{rows}": run(devices, rows)
        for rows in (SMALL, LARGE)
        for name, devices in (("one", "1"), ("two", "2"))
    },
    "turns": Program("turns.py", ("2", str(SMALL), "100")),
}
REPEATS = 6

CLAIMS = [
    Claim(
        "Of 8192 rows, two processes take at most 1 / (2 x 0.9) of the time of one, recording on.",
        "step_ms",
        "two-8192",
        "<=",
        0.556,
        "one-8192",
    ),
    Claim(
        "Of 4096 rows, two processes take at most 1 / (2 x 0.9) of the time of one, recording on.",
        "step_ms",
        "two-4096",
        "<=",
        0.556,
        "one-4096",
        stated="contradicted",
    ),
    Claim(
        "A step of two processes that goes to the journal takes at most 1.02 times one of the bare torchrun script.",
        "samples:ratio",
        "turns",
        "<=",
        1.02,
        stated="not shown",
    ),
    Claim("Two processes compute what a single device computes.", "verified", "two-4096", "==", True),
]

ANSWER = (
    "At one global batch of 4096 rows a step of two processes takes {ratio step_ms two-4096 one-4096} the time of one process, "
    "both recorded, and of 8192 rows {ratio step_ms two-8192 one-8192}; the journal makes a step {value samples:ratio turns} "
    "that of a bare torchrun script, in turn with it."
)
COLUMNS = ("step_ms", "samples:ratio", "wall_s", "verified")
FIGURE = Bars(
    "A step of the small CNN, a global batch of 4096 rows, over processes of one thread",
    "step_ms",
    {"single": "single device", "one-4096": "1 process (DDP)", "two-4096": "2 processes (DDP)"},
)
