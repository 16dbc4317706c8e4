"""Copy streams: copies between the host and a device, which do not wait for what the device computes."""

from collections.abc import Sequence

import torch

from dpexp.devices import HOST, has_link, move


class CopyStreams:
    """Copies between the host and a device, each way in a stream of its own, which do not wait for computing.

        default stream   | dense 1             | dense 2  (waits for up 2)
        up               |  vectors 2 |
        down             |             gradients 1 |

    Host memory is pinned, or a copy would wait. Only CUDA and XPU devices have such streams; copies to others
    are plain, and a virtual device, whose bytes are the host's, needs none.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._up, self._down = (torch.Stream(device) if has_link(device) else None for _ in range(2))

    def to_device(self, on_host: Sequence[torch.Tensor]) -> tuple[Sequence[torch.Tensor], torch.Event | None]:
        """Begin to copy tensors of the host; their end is for ``wait``, which comes before their use."""
        if self._up is None:
            return move(on_host, self._device), None
        with self._up:
            moved = [tensor.pin_memory().to(self._device, non_blocking=True) for tensor in on_host]
            return moved, self._up.record_event()

    def wait(self, moved: Sequence[torch.Tensor], end: torch.Event | None) -> None:
        """What this thread queues on the device from now on begins after the copies."""
        if end is not None:
            stream = torch.accelerator.current_stream(self._device)
            stream.wait_event(end)
            for tensor in moved:
                tensor.record_stream(stream)

    def to_host(self, computed: Sequence[torch.Tensor | None]) -> Sequence[torch.Tensor | None]:
        """Complete copies on the host of tensors that the current stream computes."""
        if self._down is None:
            return move(computed, HOST)  # type: ignore[no-any-return]
        self._down.wait_event(torch.accelerator.current_stream(self._device).record_event())
        with self._down:
            copied = [None if each is None else self._to_pinned(each) for each in computed]
            end = self._down.record_event()
        end.synchronize()
        return copied

    def _to_pinned(self, tensor: torch.Tensor) -> torch.Tensor:
        copied = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        copied.copy_(tensor, non_blocking=True)
        assert self._down is not None
        tensor.record_stream(self._down)
        return copied
