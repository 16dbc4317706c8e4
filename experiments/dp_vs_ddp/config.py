"""Is one process with a thread for each device faster than one process for each device?"""

from dpexp.config.run_config import RunConfig
from dpexp.study.experiment import Bars, Claim

QUESTION = "Is one process with a thread for each device faster than one process for each device?"
ROWS = 1023


def run(strategy: str, **layout: object) -> RunConfig:
    """The small CNN on digits, batches of 1023 rows (512 + 511), one thread for each device's work."""
    return RunConfig(
        strategy,
        model="cnn",
        data="digits",
        batch_size=ROWS,
        steps=60,
        warmup=12,
        phase_steps=0,
        threads=1,
        track=False,
        **layout,
    )


RUNS = {
    "single": run("single", devices="cpu"),
    "threads-2": run("whole", virtual=2),
    "processes-1": run("ddp", devices="1"),
    "processes-2": run("ddp", devices="2"),
}
REPEATS = 4

CLAIMS = [
    Claim(
        "Two processes take less time per step than one.",
        "step_ms",
        "processes-2",
        "<",
        1.0,
        "processes-1",
    ),
    Claim(
        "Two processes take less time per step than two threads of one process.",
        "step_ms",
        "processes-2",
        "<",
        1.0,
        "threads-2",
        stated="not shown",
    ),
    Claim(
        "One process under DistributedDataParallel costs at most a quarter over none.",
        "step_ms",
        "processes-1",
        "<=",
        1.25,
        "single",
    ),
    Claim(
        "Two processes compute what a single device computes, on an uneven batch too.",
        "verified",
        "*",
        "==",
        True,
    ),
]

ANSWER = (
    "On two cores a step of two processes takes {ratio step_ms processes-2 single} the time of a single device, and one of "
    "two threads in one process {ratio step_ms threads-2 single}."
)
COLUMNS = ("step_ms", "sample_us", "verified")
FIGURE = Bars(
    "Threads in one process against processes: a step of a small CNN, batch 1023",
    "step_ms",
    {
        "single": "single device",
        "threads-2": "2 threads (DataParallel)",
        "processes-1": "1 process (DDP)",
        "processes-2": "2 processes (DDP)",
    },
)
