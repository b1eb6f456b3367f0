"""The site on loopback."""

from __future__ import annotations

import http.server
from functools import partial
from pathlib import Path
from typing import Any

from frog.core.errors import UsageError


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: a reader's terminal is no log."""


def serve(site: Path, port: int) -> None:
    """Serve a folder until Ctrl-C; with port 0 on a free one.

    Raises:  UsageError if the port is not to be had.
    """
    try:
        server = http.server.ThreadingHTTPServer(("127.0.0.1", port), partial(_Quiet, directory=str(site)))
    except (OSError, OverflowError) as problem:
        raise UsageError(f"--port {port}: {problem}", "leave --port away: a free one is taken") from None
    with server:
        print(f"http://127.0.0.1:{server.server_address[1]}/  (Ctrl-C ends it)", flush=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            print()
