"""What does wrapping only one block in DataParallel cost, move and keep in memory, against the whole model?"""

from dpexp.config.run_config import RunConfig
from dpexp.study.experiment import Bars, Claim

QUESTION = "What does wrapping only one block in DataParallel cost, move and keep in memory, against the whole model?"
MODEL, BATCH, DEVICES = "blocks:in=256,hidden=256,out=256", 128, 4


def run(strategy: str, block: tuple[str, ...] = ()) -> RunConfig:
    """Three linear blocks of equal size: block2 is a third of the model."""
    return RunConfig(
        strategy,
        model=MODEL,
        data=f"random:samples={BATCH}",
        batch_size=BATCH,
        steps=150,
        warmup=20,
        phase_steps=6,
        threads=1,
        track=False,
        options={"block": block} if block else {},
        **({"devices": "cpu"} if strategy == "single" else {"virtual": DEVICES}),
    )


RUNS = {
    "single": run("single"),
    "whole": run("whole"),
    "block2": run("block", ("block2",)),
    "all-three": run("block", ("block1", "block2", "block3")),
}

CLAIMS = [
    Claim(
        "block2 alone copies a third of the bytes that the whole model copies.",
        "replicated_bytes",
        "block2",
        "<=",
        0.34,
        "whole",
    ),
    Claim(
        "Three wrapped blocks copy as much as the whole model.",
        "replicated_bytes",
        "all-three",
        "==",
        against="whole",
    ),
    Claim(
        "Three wrapped blocks move more than the whole model.", "bytes_moved", "all-three", ">", 1.1, "whole"
    ),
    Claim(
        "A step of one wrapped block takes less time than one of the whole model wrapped.",
        "step_ms",
        "block2",
        "<",
        1.0,
        "whole",
    ),
    Claim(
        "A step of three separately wrapped blocks takes longer than one of the whole model wrapped.",
        "step_ms",
        "all-three",
        ">",
        1.0,
        "whole",
    ),
    Claim(
        "A step of the whole model wrapped takes longer than one of a single device.",
        "step_ms",
        "whole",
        ">",
        1.0,
        "single",
    ),
    Claim("All compute what one device computes.", "verified", "*", "==", True),
]

ANSWER = (
    "Wrapping block2 alone copies {value replicated_bytes block2} per step where the whole model copies "
    "{value replicated_bytes whole}, and its step takes {ratio step_ms block2 whole} of the whole model's; wrapping each "
    "block by itself moves {ratio bytes_moved all-three whole} the bytes and takes {ratio step_ms all-three whole} the time."
)
COLUMNS = (
    "step_ms",
    "bytes_moved",
    "replicated_bytes",
    "phase_ms:replicate",
    "phase_ms:parallel_apply",
    "phase_ms:gather",
)
FIGURE = Bars(
    "Each wrapped part pays for its own scatter, replicate and gather",
    "step_ms",
    {
        "single": "single device",
        "block2": "only block2 wrapped",
        "whole": "whole model wrapped",
        "all-three": "each block wrapped",
    },
)
