"""Serve the site on the loopback interface."""

from __future__ import annotations

import http.server
from functools import partial
from pathlib import Path
from typing import Any

from frog.core.errors import UsageError


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing, so that the reader's terminal stays quiet."""


def serve(site: Path, port: int) -> None:
    """Serve a folder until Ctrl-C; port 0 selects a free port.

    Raises:  UsageError if the port is not available.
    """
    try:
        server = http.server.ThreadingHTTPServer(("127.0.0.1", port), partial(_Quiet, directory=str(site)))
    except (OSError, OverflowError) as problem:
        raise UsageError(f"--port {port}: {problem}", "omit --port to use a free port") from None
    with server:
        print(f"http://127.0.0.1:{server.server_address[1]}/  (Ctrl-C ends it)", flush=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            print()
