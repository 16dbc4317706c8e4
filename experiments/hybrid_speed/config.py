"""What does a step with a large embedding table take, by the way in which the model is laid out?"""

from dpexp.study.experiment import Claim, Lines

QUESTION = "What does a step with a large embedding table take, by the way in which the model is laid out?"
ROWS = (1_000, 100_000, 4_000_000)
WAYS = ("tutorial", "dense", "sparse", "accelerate", "dataparallel", "emulated", "serial")

RUNS = {}
PROGRAMS = {f"{dense}-{rows}": ("ways.py", str(rows), dense) for dense in ("linear", "mlp") for rows in ROWS}

CLAIMS = [
    Claim(
        "All ways train the same weights, to the rounding of float32.",
        "metric:difference",
        "*-*",
        "<=",
        1e-6,
    ),
    Claim(
        "Plain PyTorch, dense: four million rows take at least 100 times the time of a thousand.",
        "time_ms:dense",
        "linear-4000000",
        ">=",
        100.0,
        "linear-1000",
    ),
    *(
        Claim(
            f"{name}: four million rows take at most twice the time of a thousand.",
            f"time_ms:{way}",
            "linear-4000000",
            "<=",
            2.0,
            "linear-1000",
        )
        for way, name in (
            ("sparse", "Plain PyTorch, sparse"),
            ("serial", "hybrid --sparse"),
        )
    ),
    Claim(
        "At four million rows the tutorial's class takes at least 100 times as long as hybrid --sparse.",
        "samples:tutorial_over_serial",
        "linear-4000000",
        ">=",
        100.0,
    ),
    Claim(
        "With the perceptron, at four million rows, it still takes at least twice as long.",
        "samples:tutorial_over_serial",
        "mlp-4000000",
        ">=",
        2.0,
    ),
    Claim(
        "hybrid --sparse takes at most 1.25 times plain PyTorch with sparse gradients.",
        "samples:serial_over_sparse",
        "*-*",
        "<=",
        1.25,
    ),
    Claim(
        "hybrid --sparse takes at most 1.1 times Accelerate's device map.",
        "samples:serial_over_accelerate",
        "*-*",
        "<=",
        1.1,
    ),
    Claim(
        "PyTorch's DataParallel, which does nothing without an accelerator, takes at most 1.1 times plain PyTorch, dense.",
        "samples:dataparallel_over_dense",
        "*-*",
        "<=",
        1.1,
        stated="not shown",
    ),
    Claim(
        "At four million rows two emulated devices, which copy the table, take at least 1.5 times plain PyTorch, dense.",
        "samples:emulated_over_dense",
        "linear-4000000",
        ">=",
        1.5,
    ),
]

ANSWER = (
    "At four million rows a step of the tutorial's class takes {value samples:tutorial_over_serial linear-4000000} that of "
    "`hybrid --sparse`, whose step takes {ratio time_ms:serial linear-4000000 linear-1000} that with a thousand rows, "
    "{value samples:serial_over_sparse linear-4000000} that of plain PyTorch with sparse gradients and "
    "{value samples:serial_over_accelerate linear-4000000} that of Accelerate's device map."
)
COLUMNS = tuple(f"time_ms:{way}" for way in WAYS)
FIGURE = Lines(
    "A step with a linear layer behind the table: dense gradients are as large as the table",
    "time_ms:{}",
    "rows of the table",
    {way: {rows: f"linear-{rows}" for rows in ROWS} for way in WAYS},
    y="time of a step",
)
