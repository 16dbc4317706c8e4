"""What does it cost to record every step, against a bare loop and against other ways of recording?"""

from dpexp.study.experiment import Bars, Claim

QUESTION = "What does it cost to record every step, against a bare loop and against other ways of recording?"
STEPS = 300

RUNS = {}
PROGRAMS = {
    **{way: ("ways.py", way, str(STEPS)) for way in ("single", "bare", "recorded")},
    **{way: ("ways.py", way, str(STEPS // 3)) for way in ("mlflow", "accelerate", "lightning")},
}
REPEATS = 5

CLAIMS = [
    Claim(
        "The recorded loop takes at most 1.1 times the bare loop, in turn with it.",
        "samples:ratio",
        "recorded",
        "<=",
        1.10,
        stated="contradicted",
    ),
    Claim(
        "A whole recorded run takes at most 1.5 times a bare script.",
        "wall_s",
        "single",
        "<=",
        1.5,
        "bare",
    ),
    *(
        Claim(
            f"A step of {way} takes at least 3 times one of the recorded loop.",
            "step_ms",
            way,
            ">=",
            3.0,
            "recorded",
        )
        for way in ("mlflow", "accelerate", "lightning")
    ),
]

ANSWER = (
    "dpexp's loop takes {value samples:ratio recorded} the time of a bare loop, in turn with it, and a whole run "
    "{ratio wall_s single bare} that of a bare script; a metric logged to MLflow each step makes a step "
    "{ratio step_ms mlflow bare} as long."
)
COLUMNS = ("step_ms", "samples:ratio", "wall_s")
FIGURE = Bars(
    "A step of Linear(5, 2) with its loss recorded, by who records it",
    "step_ms",
    {
        "bare": "nothing recorded",
        "recorded": "dpexp",
        "mlflow": "mlflow.log_metric",
        "accelerate": "Accelerate",
        "lightning": "Lightning",
    },
)
