"""What does it cost to record a run of several processes, and how well do two of them share a step?"""

from dpexp.config.run_config import RunConfig
from dpexp.study.experiment.experiment import Claim, Program
from dpexp.study.experiment.figure_kinds import Bars

QUESTION = "What does it cost to record a run of several processes, and how well do two of them share a step?"
ROWS = 4096


def run(devices: str, strategy: str = "ddp") -> RunConfig:
    """The small CNN, a global batch that takes tens of ms, one thread a process; with journal and MLflow."""
    return RunConfig(
        strategy,
        model="cnn",
        data=f"random:samples={4 * ROWS}",
        batch_size=ROWS,
        steps=100,
        warmup=6,
        phase_steps=0,
        threads=1,
        devices=devices,
    )


RUNS = {
    "single": run("cpu", "single"),
    "one": run("1"),
    "two": run("2"),
    "turns": Program("turns.py", ("2", str(ROWS), "48")),
    "kept": Program("turns.py", ("2", str(ROWS), "48", "keep")),
}
REPEATS = 8

CLAIMS = [
    Claim(
        "A step of two processes that goes to the journal takes at most 1.02 times one of the bare torchrun script.",
        "samples:ratio",
        "turns",
        "<=",
        1.02,
    ),
    Claim(
        "Where no step maps new memory, a step of two processes that is recorded takes at most 1.02 times a bare one.",
        "samples:ratio",
        "kept",
        "<=",
        1.02,
    ),
    Claim(
        "Two processes, recorded, reach an efficiency of 0.9 against one bare process, in turn with it.",
        "samples:efficiency",
        "turns",
        ">=",
        0.9,
    ),
    Claim(
        "Where no step maps new memory, two processes reach an efficiency of 0.9 against one bare process.",
        "samples:efficiency",
        "kept",
        ">=",
        0.9,
        stated="contradicted",
    ),
    Claim(
        "A whole run of two processes takes at most 1 / (2 x 0.9) of the time a step of a whole run of one.",
        "step_ms",
        "two",
        "<=",
        0.556,
        "one",
        stated="not shown",
    ),
    Claim("Two processes compute what a single device computes.", "verified", "two", "==", True),
]

ANSWER = (
    "The journal makes a step of two processes {value samples:ratio turns} that of a bare torchrun script ({value samples:ratio "
    "kept} where freed memory is kept), and the two reach an efficiency of {value samples:efficiency turns} against one bare "
    "process ({value samples:efficiency kept}), each in turn with the other; in whole runs, recorded and delivered, a step of two takes {ratio step_ms two one} the time of one."
)
COLUMNS = ("step_ms", "samples:ratio", "samples:efficiency", "wall_s", "verified")
FIGURE = Bars(
    "A step of the small CNN, a global batch of 4096 rows, over processes of one thread",
    "step_ms",
    {"single": "single device", "one": "1 process (DDP)", "two": "2 processes (DDP)"},
)
