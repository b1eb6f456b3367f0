"""The site on loopback."""

from __future__ import annotations

import http.server
from functools import partial
from pathlib import Path
from typing import Any


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: a reader's terminal is no log."""


def serve(site: Path, port: int) -> None:
    """Serve a folder until Ctrl-C; with port 0 on a free one."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", port), partial(_Quiet, directory=str(site))) as server:
        print(f"http://127.0.0.1:{server.server_address[1]}/  (Ctrl-C ends it)", flush=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            print()
