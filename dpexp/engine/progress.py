"""A progress bar on stderr: the stage of the run, step time and loss. Costs one redraw a flush."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tqdm import tqdm


class Bar:
    """``steps: 40%|████      | 40/100 [0.29 ms/step, loss 0.41]``; a Progress of the loop.

    tqdm hides it where stderr is no terminal.
    """

    def __init__(self) -> None:
        self._bar: tqdm[Any] | None = None

    def begin(self, stage: str, total: int | None = None) -> None:
        """A new stage of the run; ``total`` in steps where it is known."""
        from tqdm import tqdm

        self.close()
        tqdm.monitor_interval = 0  # its thread would wake up inside measured steps
        layout = "{desc}: {percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt} [{elapsed}<{remaining}{postfix}]"
        self._bar = tqdm(
            desc=stage,
            total=total,
            file=sys.stderr,
            disable=None,
            leave=False,
            dynamic_ncols=True,
            bar_format=layout if total is not None else "{desc}…",
        )

    def advance(self, steps: int, step_ms: float, loss: float | None) -> None:
        """``steps`` more are done, the last of them in ``step_ms``."""
        if self._bar is None or self._bar.disable:
            return
        told = f"{step_ms:.3g} ms/step" + ("" if loss is None else f", loss {loss:.4g}")
        self._bar.set_postfix_str(told, refresh=False)
        self._bar.update(steps)

    def close(self) -> None:
        """Take the bar off the screen."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def __enter__(self) -> Bar:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.close()
