"""Runs a script under torchrun, and kills the last rank in the middle of the first attempt."""

import os
import runpy
import signal
import sys
from typing import Any

from cgq import CGQ

FATAL = 35
step = CGQ.step


def step_or_die(self: CGQ, closure: Any = None) -> Any:
    group = self.param_groups[0]
    last = int(os.environ["RANK"]) == int(os.environ["WORLD_SIZE"]) - 1
    if last and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and group["steps"] == FATAL:
        os.kill(os.getpid(), signal.SIGKILL)
    return step(self, closure)


if __name__ == "__main__":
    CGQ.step = step_or_die  # type: ignore[method-assign]
    sys.argv = sys.argv[1:]
    runpy.run_path(sys.argv[0], run_name="__main__")
