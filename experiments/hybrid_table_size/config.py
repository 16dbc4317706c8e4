"""How does the time of a step grow with the rows of an embedding table, with dense and with sparse gradients?"""

from dpexp.config.run_config import RunConfig
from dpexp.study.experiment import Claim, Lines

QUESTION = "How does the time of a step grow with the rows of an embedding table, with dense and with sparse gradients?"
ROWS = (1_000, 30_000, 1_000_000)
LARGE = (1_000_000, 4_000_000, 16_000_000)
"""Rows of tables of 256 MB, 1 GB and 4 GB: 64 numbers each."""


def run(strategy: str, rows: int, sparse: bool = False) -> RunConfig:
    """512 ids a batch, 32 numbers a row: the table of a million rows is 128 MB."""
    return RunConfig(
        strategy,
        model=f"embedding:rows={rows},dim=32",
        data="random:samples=512",
        batch_size=512,
        steps=100 if rows < 100_000 else 30,
        warmup=5,
        phase_steps=4,
        threads=1,
        track=False,
        options={"sparse": sparse} if strategy == "hybrid" else {},
        **({"virtual": 1} if strategy == "hybrid" else {"devices": "cpu"}),
    )


RUNS = {
    "single-1000": run("single", 1000),
    **{f"dense-{rows}": run("hybrid", rows) for rows in ROWS},
    **{f"sparse-{rows}": run("hybrid", rows, sparse=True) for rows in ROWS},
}
PROGRAMS = {f"large-{rows}": ("setup.py", str(rows)) for rows in LARGE}

CLAIMS = [
    Claim(
        "Dense, a million rows take at least 20 times the time of a thousand.",
        "step_ms",
        "dense-1000000",
        ">=",
        20.0,
        "dense-1000",
    ),
    Claim(
        "Sparse, a million rows take at most twice the time of a thousand.",
        "step_ms",
        "sparse-1000000",
        "<=",
        2.0,
        "sparse-1000",
    ),
    Claim(
        "At a million rows, sparse takes less than a tenth of dense.",
        "step_ms",
        "sparse-1000000",
        "<",
        0.1,
        "dense-1000000",
    ),
    Claim(
        "At a thousand rows, sparse takes longer than dense.",
        "step_ms",
        "sparse-1000",
        ">",
        1.0,
        "dense-1000",
        stated="contradicted",
    ),
    Claim(
        "What moves to the accelerator and back does not grow with the table.",
        "bytes_moved",
        "dense-1000000",
        "==",
        against="dense-1000",
    ),
    Claim(
        "Sparse, a table of 4 GB takes at most twice the time of one of 256 MB.",
        "step_ms",
        "large-16000000",
        "<=",
        2.0,
        "large-1000000",
    ),
    *(
        Claim(
            f"{rows:,} rows: the peak memory, verified, is at most 1.15 times the table and 300 MB.",
            "peak_bytes",
            f"large-{rows}",
            "<=",
            1.15 * 256 * rows + 300e6,
        )
        for rows in LARGE
    ),
    Claim(
        "Set-up, verification included, takes at most 1.5 times making the table.",
        "samples:setup",
        "large-*",
        "<=",
        1.5,
    ),
    Claim("Sparse and dense compute the same gradients.", "verified", "*", "==", True),
]

ANSWER = (
    "With dense gradients a table of a million rows takes {ratio step_ms dense-1000000 dense-1000} the time of one of a "
    "thousand, with sparse ones {ratio step_ms sparse-1000000 sparse-1000}; what moves to the accelerator and back is "
    "{value bytes_moved sparse-1000000} per step, whatever the table's size. With a table of 4 GB the process's peak is "
    "{value peak_bytes large-16000000}, and its set-up, verified, takes {value samples:setup large-16000000} the time of making "
    "the table."
)
COLUMNS = (
    "step_ms",
    "phase_ms:embedding",
    "phase_ms:backward",
    "phase_ms:optimizer",
    "bytes_moved",
    "parameter_bytes",
    "peak_bytes",
    "samples:setup",
)
FIGURE = Lines(
    "A dense gradient is as large as the table; a sparse one as the batch",
    "step_ms",
    "rows of the table",
    {
        "dense gradients": {rows: f"dense-{rows}" for rows in ROWS},
        "sparse gradients": {rows: f"sparse-{rows}" for rows in ROWS},
    },
)
