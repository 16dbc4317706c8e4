"""How do the rows of a batch fall on the devices of DataParallel?"""

from dpexp.config.run_config import RunConfig
from dpexp.study.experiment import Claim

QUESTION = "How do the rows of a batch fall on the devices of DataParallel?"


def whole(devices: int) -> RunConfig:
    """Linear(5, 2) in DataParallel on 100 samples, batches of 30: the tutorials' example."""
    return RunConfig("whole", virtual=devices, steps=40, warmup=4, phase_steps=0, track=False)


RUNS = {
    "single": RunConfig("single", devices="cpu", steps=40, warmup=4, phase_steps=0, track=False),
    **{f"whole-{devices}": whole(devices) for devices in (1, 2, 3, 8)},
}

REPEATS = 3

CLAIMS = [
    Claim("One device sees every batch whole.", "split", "whole-1", "==", "30; 10"),
    Claim("Two devices get halves.", "split", "whole-2", "==", "15 + 15; 5 + 5"),
    Claim("Three get 4, 4 and 2 of ten rows.", "split", "whole-3", "==", "10 + 10 + 10; 4 + 4 + 2"),
    Claim("Of ten rows, only five of eight devices get any.", "split", "whole-8", "==", "7 × 4 + 2; 5 × 2"),
    Claim("Every layout computes what one device computes.", "verified", "*", "==", True),
    Claim(
        "One device in DataParallel trains the same bits as none.",
        "weights",
        "whole-1",
        "==",
        against="single",
    ),
]

ANSWER = (
    "A batch is cut into pieces of ceil(rows / devices) rows, in order, until none are left: of 30 rows eight "
    "devices get {value split whole-8} (full batch; last batch of 10), so the last pieces are smaller and some "
    "devices get none."
)
COLUMNS = ("split", "shapes", "error:output", "error:gradient", "verified")
