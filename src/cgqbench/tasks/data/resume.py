"""A download that goes on where the last attempt stopped."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from requests import Response
    from rich.progress import Progress

_CHUNK = 1 << 13  # bytes; a connection cut within a chunk loses it
_TIMEOUT = 60.0  # seconds without a byte


def resumed(url: str, part: Path, progress: bool) -> None:
    """Bring the file `part`, absent or begun, to the full length of what is at `url`.

    A server that cannot send the rest alone sends everything, and the file is begun afresh. The
    content is for the caller to verify.

    Raises:
        requests.RequestException: No connection or a broken one; `part` keeps what has arrived.
    """
    import requests

    done = part.stat().st_size if part.exists() else 0
    # Identity: a compressed transfer would count other bytes than those of the file.
    headers = {"Accept-Encoding": "identity"}
    if done:
        headers["Range"] = f"bytes={done}-"
    with requests.get(url, headers=headers, stream=True, timeout=_TIMEOUT) as response:
        sent = response.headers.get("Content-Range", "")
        if response.status_code == 416 and sent == f"bytes */{done}":
            return
        continued = response.status_code == 206 and sent.startswith(f"bytes {done}-")
        if done and response.status_code in (206, 416) and not continued:
            part.unlink()
            resumed(url, part, progress)
            return
        response.raise_for_status()
        start = done if continued else 0
        length = response.headers.get("Content-Length")
        total = None if length is None else start + int(length)
        with _bar(progress) as bar:
            _write(response, part, start, total, bar)
    if total is not None and part.stat().st_size != total:
        raise requests.ConnectionError(f"{part.stat().st_size:,} of {total:,} bytes arrived")


def _write(response: Response, part: Path, start: int, total: int | None, bar: Progress) -> None:
    task = bar.add_task(part.stem, total=total, completed=start)
    part.parent.mkdir(parents=True, exist_ok=True)
    with part.open("ab" if start else "wb") as file:
        for chunk in response.iter_content(_CHUNK):
            file.write(chunk)
            bar.advance(task, len(chunk))


def _bar(shown: bool) -> Progress:
    from rich import progress
    from rich.console import Console

    return progress.Progress(
        progress.TextColumn("{task.description}"),
        progress.BarColumn(),
        progress.DownloadColumn(),
        progress.TransferSpeedColumn(),
        progress.TimeRemainingColumn(),
        console=Console(stderr=True),
        disable=not shown,
    )
