"""With n devices, should the batch be n times as large? Its effect on time per sample and on learning."""

from dpexp.config.run_config import RunConfig
from dpexp.study.experiment import Bars, Claim

QUESTION = "With n devices, should the batch be n times as large?"
EPOCHS = 6


def run(strategy: str, batch: int, lr: float) -> RunConfig:
    """Softmax regression of digits over ``EPOCHS``: every cell trains on the same samples equally often."""
    return RunConfig(
        strategy,
        model="linear",
        data="digits",
        batch_size=batch,
        epochs=EPOCHS,
        lr=lr,
        warmup=0,
        phase_steps=0,
        threads=1,
        track=False,
        **({"devices": "cpu"} if strategy == "single" else {"virtual": 4}),
    )


RUNS = {
    "single-32": run("single", 32, 0.05),
    "whole-32": run("whole", 32, 0.05),
    "whole-128": run("whole", 128, 0.05),
    "whole-128-lr": run("whole", 128, 0.2),
}

REPEATS = 3

CLAIMS = [
    Claim(
        "On four devices, four times the batch takes less than half the time per sample.",
        "sample_us",
        "whole-128",
        "<",
        0.5,
        "whole-32",
    ),
    Claim(
        "With the same learning rate, four times the batch ends with a larger loss.",
        "loss:1437",
        "whole-128",
        ">",
        1.2,
        "whole-32",
    ),
    Claim(
        "With four times the learning rate too, the loss is within a tenth of that of batch 32.",
        "loss:1437",
        "whole-128-lr",
        "<",
        1.1,
        "whole-32",
    ),
    Claim(
        "Four devices with batch 32 learn as one device with batch 32, to 1%.",
        "loss:1437",
        "whole-32",
        "<=",
        1.01,
        "single-32",
    ),
    Claim("All compute what one device computes.", "verified", "*", "==", True),
]

ANSWER = (
    "It pays in time: on four devices a sample takes {ratio sample_us whole-128 whole-32} of the time with four times the "
    "batch. But alone it learns less from the same samples (loss {value loss:1437 whole-128} after six epochs, not "
    "{value loss:1437 whole-32}); with four times the learning rate it does not ({value loss:1437 whole-128-lr})."
)
COLUMNS = ("rows", "steps", "step_ms", "sample_us", "loss:1437", "metric:accuracy")
FIGURE = Bars(
    "A larger batch learns less per sample, unless the learning rate grows too: the loss after six epochs",
    "loss:1437",
    {
        "single-32": "one device, batch 32",
        "whole-32": "4 devices, batch 32",
        "whole-128": "4 devices, batch 128",
        "whole-128-lr": "4 devices, batch 128, 4 x rate",
    },
)
