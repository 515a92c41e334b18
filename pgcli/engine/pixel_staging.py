"""Copies the pixels of the next group to a GPU while it computes, through pinned memory.

N images of a buffer · R resolution · C channels
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from itertools import islice
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from pgcli.model.transfer import to_device

Result = TypeVar("Result")
#: Pixels (R, R, C) of images by their keys.
Images = Mapping[int, "np.ndarray[Any, Any]"]


class Streams(Protocol):
    """The stream that computes, and another one that copies; both as PyTorch's of CUDA."""

    copies: Any

    def compute(self) -> Any: ...

    def event(self) -> Any: ...

    def entered(self, stream: Any) -> AbstractContextManager[object]: ...


class CudaStreams:
    """The streams of a CUDA device."""

    def __init__(self, device: torch.device):
        self._device = device
        self.copies = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def compute(self) -> Any:
        return torch.cuda.current_stream(self._device)

    def event(self) -> Any:
        return torch.cuda.Event()  # type: ignore[no-untyped-call]

    def entered(self, stream: Any) -> AbstractContextManager[object]:
        return torch.cuda.stream(stream)


class StagedPixels(NamedTuple):
    """A buffer of pixels: `copied` once they are on the device, `read` once they were read there.

    `positions` has that of each image by its key.
    """

    host_NRRC: Tensor
    device_NRRC: Tensor
    copied: Any
    read: Any
    positions: dict[int, int]


class PixelStager:
    """Two buffers, in turns: one is copied while the other is read.

    The host waits for a buffer only if its last copy is not complete, two groups later. The device
    waits on one stream for the other: a copy until the buffer's last group was read, and a group
    until its copy is complete.
    """

    def __init__(self, device: torch.device, streams: Streams, *, images: int):
        self._device, self._streams, self._images = device, streams, images
        self._buffers: list[StagedPixels] = []

    def stage(self, images: Images) -> None:
        """Start to copy these images, as many as a buffer holds, unless they are in one already."""
        first = dict(islice(images.items(), self._images))
        if first and self._holding(first) is None:
            self._copy(first)

    def read(self, images: Images, reader: Callable[[Tensor], Result]) -> Result:
        """The result of `reader`, called with these images (N, R, R, C) on the device.

        Images that were not staged are copied now.
        """
        buffer = self._holding(images) or self._copy(images)
        index = [buffer.positions[key] for key in images]
        self._streams.compute().wait_event(buffer.copied)
        if index == [*range(index[0], index[0] + len(index))]:
            pixels_NRRC = buffer.device_NRRC[index[0] : index[0] + len(index)]
        else:
            pixels_NRRC = buffer.device_NRRC[to_device(torch.tensor(index), self._device)]
        result = reader(pixels_NRRC)
        buffer.read.record(self._streams.compute())
        return result

    def forget(self) -> None:
        """Forget which images the buffers hold, and keep the buffers."""
        for buffer in self._buffers:
            buffer.positions.clear()

    def clear(self) -> None:
        """Free the buffers."""
        for buffer in self._buffers:
            # their memory is reused in the order of the stream that computes
            self._streams.compute().wait_event(buffer.copied)
        self._buffers.clear()

    def _holding(self, images: Images) -> StagedPixels | None:
        return next((one for one in self._buffers if one.positions.keys() >= images.keys()), None)

    def _copy(self, images: Images) -> StagedPixels:
        """Copy the images to the buffer that was filled longer ago."""
        host = [torch.as_tensor(pixels) for pixels in images.values()]
        if len(host) > self._images:
            self.clear()
            self._images = len(host)
        if not self._buffers:
            self._buffers = [self._allocated(host[0].shape) for _ in range(2)]
        buffer = self._buffers.pop(0)
        self._buffers.append(buffer)
        buffer.copied.synchronize()  # the host's memory is read until then
        buffer.positions.clear()
        torch.stack(host, out=buffer.host_NRRC[: len(host)])
        copies = self._streams.copies
        with self._streams.entered(copies):
            copies.wait_event(buffer.read)
            buffer.device_NRRC[: len(host)].copy_(buffer.host_NRRC[: len(host)], non_blocking=True)
            if buffer.device_NRRC.is_cuda:  # freed memory is not reused before the copy is complete
                buffer.device_NRRC.record_stream(copies)
        buffer.copied.record(copies)
        buffer.positions.update({key: number for number, key in enumerate(images)})
        return buffer

    def _allocated(self, shape: torch.Size) -> StagedPixels:
        """An empty buffer."""
        host_NRRC = torch.empty(
            (self._images, *shape), dtype=torch.uint8, pin_memory=self._device.type == "cuda"
        )
        device_NRRC = torch.empty((self._images, *shape), dtype=torch.uint8, device=self._device)
        copied, read = self._streams.event(), self._streams.event()
        # the device's memory may be that of a tensor which kernels in flight still read
        read.record(self._streams.compute())
        return StagedPixels(host_NRRC, device_NRRC, copied, read, {})


def pixel_stager(device: torch.device, *, images: int) -> PixelStager | None:
    """A stager for groups of so many images; None where copies take no time of a device."""
    if device.type != "cuda":
        return None
    return PixelStager(device, CudaStreams(device), images=images)
