"""Captures kernels as CUDA graphs, beside whatever else the device is doing."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache

import torch

from cgq.vectors.layout import Layout


class CudaRecorder:
    """Captures on a stream beside the current one.

    Not by `torch.cuda.graph`, which waits for the device and empties its cache.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device

    @property
    def is_busy(self) -> bool:
        """Whether somebody is capturing already."""
        return torch.cuda.is_current_stream_capturing()

    def captured(self, work: Callable[[], None]) -> Callable[[], None]:
        """The work as a graph. It keeps the memory that the work takes."""
        graph, stream = torch.cuda.CUDAGraph(), _stream(self.device)
        current = torch.cuda.current_stream(self.device)
        # A capture begins by writing to what all graphs draw by, those under way among them.
        stream.wait_stream(current)
        try:
            with torch.cuda.stream(stream), _no_collection():
                _capture(graph, work)
        except BaseException:
            let_draw_again(self.device)
            raise
        finally:
            current.wait_stream(stream)
        return graph.replay


def _capture(graph: torch.cuda.CUDAGraph, work: Callable[[], object]) -> None:
    graph.capture_begin(capture_error_mode="thread_local")
    try:
        work()
    finally:
        graph.capture_end()


def let_draw_again(device: torch.device) -> None:
    """Call it where a capture has failed: torch's generator takes itself to be captured still.

    What draws from it would raise. The next capture that succeeds ends that, so here is one.
    """
    with suppress(RuntimeError), torch.cuda.device(device):
        number = torch.zeros((), device=device)  # a capture of nothing would warn
        stream, current = _stream(device), torch.cuda.current_stream(device)
        stream.wait_stream(current)
        with torch.cuda.stream(stream), _no_collection():
            _capture(torch.cuda.CUDAGraph(), number.zero_)
        current.wait_stream(stream)


@cache
def _stream(device: torch.device) -> torch.cuda.Stream:
    """One for good: for each stream that it meets, cuBLAS keeps up to 32 MiB."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


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
