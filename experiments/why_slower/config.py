"""Why are two devices slower than one, and from which batch and model size on are they not?"""

from dpexp.config.run_config import RunConfig
from dpexp.study.experiment import Claim, Lines

QUESTION = "Why are two devices slower than one, and from which batch and model size on are they not?"
MODELS = {"small": "mlp:in=64,hidden=64", "large": "mlp:in=64,hidden=512"}
BATCHES = (8, 128, 2048)


def run(strategy: str, model: str, batch: int) -> RunConfig:
    """One thread for each device, so that two virtual devices use two cores."""
    return RunConfig(
        strategy,
        model=MODELS[model],
        data=f"random:samples={batch}",
        batch_size=batch,
        steps=150 if batch < 512 else 30,
        warmup=10,
        phase_steps=0,
        threads=1,
        track=False,
        **({"devices": "cpu"} if strategy == "single" else {"virtual": 2}),
    )


RUNS = {
    f"{strategy}-{model}-{batch}": run(strategy, model, batch)
    for model in MODELS
    for batch in BATCHES
    for strategy in ("single", "whole")
}

CLAIMS = [
    Claim(
        "With 8 rows and the small model, two devices take longer than one.",
        "step_ms",
        "whole-small-8",
        ">",
        1.0,
        "single-small-8",
    ),
    Claim(
        "With 8 rows and the large model, two devices take longer than one.",
        "step_ms",
        "whole-large-8",
        ">",
        1.0,
        "single-large-8",
    ),
    Claim(
        "With 2048 rows and the large model, two devices take less time than one.",
        "step_ms",
        "whole-large-2048",
        "<",
        1.0,
        "single-large-2048",
    ),
    Claim("All compute what one device computes.", "verified", "*", "==", True),
]

ANSWER = (
    "A step of two devices takes {ratio step_ms whole-small-8 single-small-8} the time of one for 8 rows of the small "
    "model, {ratio step_ms whole-small-2048 single-small-2048} for 2048 rows of it, and "
    "{ratio step_ms whole-large-2048 single-large-2048} for 2048 rows of the large one."
)
COLUMNS = ("rows", "step_ms", "sample_us", "replicated_bytes")
LABELS = {"small": "small model (64 wide)", "large": "large model (512 wide)"}
FIGURE = Lines(
    "Two devices against one: below the dashed line they are faster",
    "step_ms",
    "rows in a batch",
    {label: {batch: f"whole-{model}-{batch}" for batch in BATCHES} for model, label in LABELS.items()},
    {label: {batch: f"single-{model}-{batch}" for batch in BATCHES} for model, label in LABELS.items()},
    "time of a step, two devices : one",
)
