"""A small web server for tests of downloads: with or without ranges, and able to hang up."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class FileServer:
    files: dict[str, bytes]
    ranges: bool = True
    hang_up_after: int | None = None
    """Bytes of a body after which the connection is cut."""
    shift: int = 0
    """How far behind the place asked for a partial answer begins: a wrong server."""
    sent: list[tuple[str, int, int]] = field(default_factory=list)
    """Path, status and bytes of each answer."""
    address: str = ""


@contextmanager
def serving(site: FileServer) -> Iterator[FileServer]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            content = site.files.get(self.path)
            if content is None:
                self.answer(404, b"", {})
                return
            asked = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
            if not asked or not site.ranges:
                self.answer(200, content, {})
                return
            start = int(asked[1]) + site.shift
            if start >= len(content):
                self.answer(416, b"", {"Content-Range": f"bytes */{len(content)}"})
            else:
                span = f"bytes {start}-{len(content) - 1}/{len(content)}"
                self.answer(206, content[start:], {"Content-Range": span})

        def answer(self, status: int, body: bytes, headers: dict[str, str]) -> None:
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            body = body[: site.hang_up_after]
            # Before the headers, which tell a client that it may ask again.
            site.sent.append((self.path, status, len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        site.address = f"http://127.0.0.1:{server.server_address[1]}"
        try:
            yield site
        finally:
            server.shutdown()
            thread.join()
