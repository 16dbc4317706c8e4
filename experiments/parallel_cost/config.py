"""What does it cost to emulate N devices on one CPU, on a model that does real work?"""

from dpexp.config import RunConfig
from dpexp.experiment import Bars, Claim

QUESTION = "What does it cost to emulate N devices on one CPU, on a model that does real work?"


def run(devices: int) -> RunConfig:
    """The small CNN on digits, batches of 256 rows; torch's own number of threads."""
    return RunConfig(
        "whole" if devices else "single",
        model="cnn",
        data="digits",
        batch_size=256,
        steps=60,
        warmup=12,
        phase_steps=0,
        track=False,
        **({"virtual": devices} if devices else {"devices": "cpu"}),
    )


RUNS = {"single": run(0), **{f"whole-{devices}": run(devices) for devices in (1, 2, 8)}}
REPEATS = 4

CLAIMS = [
    Claim(
        "Eight virtual devices take at most 1.25 times a single device.",
        "step_ms",
        "whole-8",
        "<=",
        1.25,
        "single",
        stated="not shown",
    ),
    Claim(
        "One virtual device takes at most 1.1 times none.",
        "step_ms",
        "whole-1",
        "<=",
        1.1,
        "single",
        stated="not shown",
    ),
    Claim("Eight devices compute what one computes.", "verified", "whole-8", "==", True),
]

ANSWER = (
    "A step on eight virtual devices takes {ratio step_ms whole-8 single} the time of the same step on the CPU as one "
    "device, so that a layout of many devices can be tried on a laptop."
)
COLUMNS = ("split", "step_ms", "sample_us", "replicated_bytes")
FIGURE = Bars(
    "The same step of a small CNN, cut over virtual devices of one CPU",
    "step_ms",
    {"single": "single device", **{f"whole-{n}": f"{n} virtual device{'s' * (n > 1)}" for n in (1, 2, 8)}},
)
