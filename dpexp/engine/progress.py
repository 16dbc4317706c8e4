"""ProgressBar: the stage of a run, its step time and loss, on stderr. It costs one redraw per flush."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tqdm import tqdm


class ProgressBar(AbstractContextManager["ProgressBar"]):
    """``steps: 40%|████      | 40/100 [0.29 ms/step, loss 0.41]``, where stderr is a terminal."""

    def __init__(self, *, hidden: bool = False) -> None:
        self._hidden = hidden
        self._bar: tqdm[Any] | None = None

    def begin(self, stage: str, total: int | None = None) -> None:
        """Start a stage of the run; ``total`` in steps, if it is known."""
        from tqdm import tqdm  # 40 ms, which --help need not wait

        self.close()
        tqdm.monitor_interval = 0  # its thread would wake up inside measured steps
        layout = "{desc}: {percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt} [{elapsed}<{remaining}{postfix}]"
        self._bar = tqdm(
            desc=stage,
            total=total,
            file=sys.stderr,
            disable=self._hidden or None,  # None: unless stderr is a terminal
            leave=False,
            dynamic_ncols=True,
            bar_format=layout if total is not None else "{desc}…",
        )

    def advance(self, steps: int, step_ms: float, loss: float) -> None:
        """Count ``steps`` completed steps; ``step_ms`` and ``loss`` are those of the last one."""
        if self._bar is None or self._bar.disable:
            return
        self._bar.set_postfix_str(f"{step_ms:.3g} ms/step, loss {loss:.4g}", refresh=False)
        self._bar.update(steps)

    def print_line(self, text: str) -> None:
        """Print a line above the bar, also where stderr is not a terminal."""
        if self._hidden:
            return
        if self._bar is None:
            print(text, file=sys.stderr)
        else:
            self._bar.write(text, file=sys.stderr)

    def close(self) -> None:
        """Remove the bar from the screen."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def __exit__(self, *error: object) -> None:
        self.close()


@contextmanager
def importing_torch(hidden: bool = False) -> Iterator[None]:
    """Show that torch is imported and the run prepared, which takes seconds, where stderr is a terminal."""
    with ProgressBar(hidden=hidden) as progress:
        progress.begin("prepare" if "torch" in sys.modules else "importing torch")
        yield
