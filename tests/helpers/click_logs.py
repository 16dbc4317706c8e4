"""Click logs in Criteo's format, for tests."""

from __future__ import annotations

import gzip
import random
from pathlib import Path

COLUMNS = 26


def lines(count: int, seed: int = 0) -> list[str]:
    """So many lines; a tenth of the integers and categories is empty, some integers are negative."""
    rng = random.Random(seed)

    def integer() -> str:
        return "" if rng.random() < 0.1 else str(int(rng.paretovariate(0.5)) - 2)

    def category() -> str:
        return "" if rng.random() < 0.1 else f"{min(int(rng.paretovariate(0.7)), 2**32 - 1):08x}"

    return [
        "\t".join(
            [str(rng.randrange(2)), *(integer() for _ in range(13)), *(category() for _ in range(COLUMNS))]
        )
        for _ in range(count)
    ]


def write(path: Path, found: list[str]) -> Path:
    """A file of these lines, compressed if its name ends in .gz."""
    content = "".join(f"{line}\n" for line in found).encode()
    path.write_bytes(gzip.compress(content, mtime=0) if path.suffix == ".gz" else content)
    return path
