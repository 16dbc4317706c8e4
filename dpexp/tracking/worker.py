"""The uploader process: ``python -m dpexp.tracking.worker HOME``, started by ``Uploader.start``."""

from __future__ import annotations

import sys


def main() -> int:
    """Read commands until the pipe closes."""
    for _ in sys.stdin.buffer:
        pass
    return 0


if __name__ == "__main__":
    sys.exit(main())
