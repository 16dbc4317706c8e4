"""A log of clicks in the format of Criteo's data sets, as a data set for ``--data``.

python examples/click_logs.py clicks.tsv    # writes a log that stands for a real one
python scripts/run.py hybrid --sparse --model dlrm:dim=8 --data examples/click_logs.py:Clicks:path=clicks.tsv
"""

import math
import random
import sys
import zlib

import torch


class Clicks(torch.utils.data.Dataset):
    """A line is a label, 13 integers and 26 categories, with tabs between; all but the label may be empty."""

    def __init__(self, path: str, rows: int = 10_000) -> None:
        from dpexp.config.features import Features

        self.path, self.rows, self.starts = path, rows, [0]
        with open(path, "rb") as log:
            for line in log:
                self.starts.append(self.starts[-1] + len(line))
        self.features = Features("clicks", (13,), vocabulary=rows, tables=26)  # a model is built for them

    def __len__(self) -> int:
        return len(self.starts) - 1

    def __getitem__(self, index: int) -> tuple[tuple[torch.Tensor, torch.Tensor], torch.Tensor]:
        with open(self.path, "rb") as log:
            log.seek(self.starts[index])
            label, *fields = log.readline().rstrip(b"\n").split(b"\t")
        dense = [math.log1p(max(0, int(each or 0))) for each in fields[:13]]
        ids = [zlib.crc32(b"%d %s" % pair) % self.rows for pair in enumerate(fields[13:])]
        return (torch.tensor(dense), torch.tensor(ids)), torch.tensor(float(label))


def write(path: str, lines: int = 2000) -> None:
    """Write a log of random lines."""
    with open(path, "w") as log:
        for _ in range(lines):
            integers = [str(random.randrange(100)) for _ in range(13)]
            categories = [f"{random.randrange(500):08x}" for _ in range(26)]
            print(random.randrange(2), *integers, *categories, sep="\t", file=log)


if __name__ == "__main__":
    write(sys.argv[1])
