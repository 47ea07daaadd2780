"""How a network's passes are computed: in which precision, in which memory layout, compiled or not.

On a GPU, TF32 with cuDNN's deterministic kernels, in channels-last memory where the task allows it;
`fast` means bf16 and compiled blocks instead. On a CPU, as torch does,
but without denormal numbers.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from cgq import join
from cgqbench.records.record import Line
from cgqbench.tasks.networks import repeated_blocks

# Whether cuDNN chooses its kernels by its second rule. On one GPU both always choose the same for
# the same shapes, which a race (cudnn.benchmark) does not.
RULE_B = "TORCH_CUDNN_USE_HEURISTIC_MODE_B"
# The shapes of blocks a network may have, and so how often one block's code is compiled.
SHAPES = 64


@dataclass(frozen=True)
class Arithmetic:
    """The arithmetic of a run on a device."""

    device: torch.device
    fast: bool = False

    def __post_init__(self) -> None:
        if self.fast and self.device.type != "cuda":
            raise ValueError("--fast is for CUDA devices. Leave it out here.")

    @property
    def name(self) -> str:
        """What a record says of it."""
        if self.device.type != "cuda":
            return "float32"
        return "bf16" if self.fast else "tf32"

    @property
    def kernels(self) -> Line:
        """What a record says of the choice of kernels, which decides the last bits on a GPU.

        Rule B is for TF32, where it is the quicker one (`benchmarks/kernel_choice.py`).
        """
        if self.device.type != "cuda":
            return {}
        return {"kernels": "cuDNN's rule A" if self.fast else "cuDNN's rule B"}

    def set_up(self, threads: int) -> None:
        """Ask torch for the same arithmetic on every run: call before anything is computed."""
        # The momentum of a unit that has gone dark shrinks with every step until it is denormal.
        # Some processors take many times as long over such a number. Threads begun later heed this.
        torch.set_flush_denormal(True)
        torch.set_num_threads(threads)
        if self.device.type != "cuda":
            return
        if self.device.index is not None:
            torch.cuda.set_device(self.device)  # streams and graphs are made on the current one
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        os.environ[RULE_B] = "0" if self.fast else "1"  # torch reads it at its first convolution
        torch.backends.cudnn.deterministic = True
        torch.backends.cudnn.benchmark = False
        torch.backends.cudnn.allow_tf32 = True
        torch.backends.cuda.matmul.allow_tf32 = True
        # `placed` puts all weights side by side, where cuDNN would have those of a recurrent layer
        # alone: it copies them in each pass, which takes little, and says so.
        warnings.filterwarnings("ignore", "RNN module weights are not part of single")

    def placed(self, model: nn.Module, channels_last: bool) -> nn.Module:
        """The model on the device, ready for passes; on a GPU maybe with channels-last weights."""
        model = model.to(self.device)
        if self.device.type != "cuda":
            return model
        if channels_last:
            for parameter in model.parameters():
                parameter.data = self._laid_out(parameter.data)
        join(list(model.parameters()))
        if self.fast:
            _compile(repeated_blocks(model))
        return model

    def inputs(self, inputs: Tensor, channels_last: bool) -> Tensor:
        """The inputs of a pass, laid out as the weights are."""
        on_gpu = self.device.type == "cuda"
        return self._laid_out(inputs) if channels_last and on_gpu else inputs

    @staticmethod
    def _laid_out(tensor: Tensor) -> Tensor:
        if tensor.dim() != 4:
            return tensor
        return tensor.contiguous(memory_format=torch.channels_last)

    def passes(self) -> AbstractContextManager[None]:
        """The context of a training pass, loss included."""
        return self._cast() if self.fast else nullcontext()

    @contextmanager
    def other_passes(self) -> Iterator[None]:
        """The context of passes in other shapes or modes, for which compiling would not pay."""
        with self.passes(), torch.compiler.set_stance("force_eager"):
            yield

    @contextmanager
    def _cast(self) -> Iterator[None]:
        # Without a cache: it would hold weights of the point before.
        with torch.autocast(self.device.type, torch.bfloat16, cache_enabled=False):
            yield


def _compile(blocks: list[nn.Module]) -> None:
    """Compile each block in place; blocks alike share their code."""
    import torch._dynamo
    import torch._inductor.config

    torch._dynamo.config.recompile_limit = SHAPES
    if hasattr(torch._inductor.config, "deterministic"):  # choose kernels by rule, not by a race
        torch._inductor.config.deterministic = True
    for block in blocks:
        block.compile(dynamic=False)
