"""What does it cost to emulate N devices on one CPU, on a model that does real work?"""

from dpexp.config.run_config import RunConfig
from dpexp.study.experiment.experiment import Claim, Program
from dpexp.study.experiment.figure_kinds import Bars

QUESTION = "What does it cost to emulate N devices on one CPU, on a model that does real work?"


SMALL, LARGE = 256, 8192


def run(devices: int, rows: int) -> RunConfig:
    """The small CNN on random images; torch's own number of threads."""
    return RunConfig(
        "whole" if devices else "single",
        model="cnn",
        data=f"random:samples={4 * rows}",
        batch_size=rows,
        steps=60,
        warmup=12,
        phase_steps=0,
        track=False,
        **({"virtual": devices} if devices else {"devices": "cpu"}),
    )


RUNS = {
    **{
        f"{f'whole-{devices}' if devices else 'single'}-{rows}": run(devices, rows)
        for rows in (SMALL, LARGE)
        for devices in (0, 1, 2, 8)
    },
    "pieces-cnn": Program("pieces.py", ("cnn", str(SMALL), "8")),
    "pieces-linear": Program("pieces.py", ("linear", "240", "8")),
}
REPEATS = 4

CLAIMS = [
    Claim(
        "With 8192 rows, eight virtual devices take at most 1.25 times a single device.",
        "step_ms",
        "whole-8-8192",
        "<=",
        1.25,
        "single-8192",
    ),
    Claim(
        "With 256 rows, eight virtual devices take at most 1.25 times a single device.",
        "step_ms",
        "whole-8-256",
        "<=",
        1.25,
        "single-256",
        stated="contradicted",
    ),
    Claim(
        "One virtual device takes at most 1.1 times none.",
        "step_ms",
        "whole-1-8192",
        "<=",
        1.1,
        "single-8192",
        stated="not shown",
    ),
    Claim(
        "With 256 rows, the operators of eight pieces alone take at least 1.5 times those of the batch.",
        "samples:pieces_over_batch",
        "pieces-cnn",
        ">=",
        1.5,
    ),
    Claim(
        "With 256 rows, eight virtual devices take at most 1.25 times the operators of their pieces.",
        "samples:emulated_over_pieces",
        "pieces-cnn",
        "<=",
        1.25,
    ),
    Claim(
        "A virtual device costs at most 50 µs a step of Linear(5, 2).",
        "time_ms:replica",
        "pieces-linear",
        "<=",
        0.05,
        stated="contradicted",
    ),
    Claim("Eight devices compute what one computes.", "verified", "whole-8-8192", "==", True),
]

ANSWER = (
    "A step on eight virtual devices takes {ratio step_ms whole-8-8192 single-8192} the time of the same step on the CPU as "
    "one device for 8192 rows, {ratio step_ms whole-8-256 single-256} for 256: a layout of many devices can be tried on a "
    "laptop."
)
COLUMNS = ("split", "step_ms", "sample_us", "replicated_bytes")
FIGURE = Bars(
    "The same step of a small CNN, 8192 rows, cut over virtual devices of one CPU",
    "step_ms",
    {
        "single-8192": "single device",
        **{f"whole-{n}-8192": f"{n} virtual device{'s' * (n > 1)}" for n in (1, 2, 8)},
    },
)
