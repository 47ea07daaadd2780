"""Captures kernels as CUDA graphs, beside whatever else the device is doing."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from cgq.vectors.layout import Layout


class CudaRecorder:
    """Captures on a stream of its own.

    Not by `torch.cuda.graph`, which waits for the device and empties its cache.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._stream: torch.cuda.Stream | None = None

    @property
    def is_busy(self) -> bool:
        """Whether somebody is capturing already."""
        return torch.cuda.is_current_stream_capturing()

    def captured(self, work: Callable[[], None]) -> Callable[[], None]:
        """The work as a graph. It keeps the memory that the work takes."""
        graph = torch.cuda.CUDAGraph()
        if self._stream is None:  # one for good: libraries keep memory for each that they meet
            self._stream = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
        with torch.cuda.stream(self._stream), _no_collection():
            graph.capture_begin(capture_error_mode="thread_local")
            try:
                work()
            finally:
                graph.capture_end()
        return graph.replay


@contextmanager
def _no_collection() -> Iterator[None]:
    """What the garbage collector frees may call what no capture allows."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def recorder_for(layout: Layout) -> CudaRecorder | None:
    """A recorder; None: not on CUDA, or the work would be of the host's or other ranks' too."""
    on_cuda = layout.device.type == "cuda" and torch.version.cuda is not None
    return CudaRecorder(layout.device) if on_cuda and layout.is_plain else None
