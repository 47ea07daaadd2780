"""Things that would leave a trace if somebody ran them."""

from __future__ import annotations

import pickle
from pathlib import Path

SCRIPT = "</script><script>document.title='run'</script>"
MARKUP = "\"'><img src=x onerror=\"document.title='run'\"><svg onload=alert(1)>"


class Trap:
    """Makes a file when it is unpickled."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> object:
        return Path.touch, (self.trace,)


def pickled(trace: Path) -> bytes:
    return pickle.dumps({"data": Trap(trace), "labels": [Trap(trace)]})
