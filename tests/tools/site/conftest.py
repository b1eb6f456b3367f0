"""The site, built once for all workers and served on the loopback interface."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from browser import ROOT, Browser, chromium, find_browser
from harness import made_once

from frog.cli import _parser
from tools.site.build import build_site


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made_once(tmp_path_factory, "site", lambda root: build_site(ROOT, _parser(), root)) / "site"


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        pass

    def end_headers(self) -> None:
        """Let the browser keep scripts, styles and fonts from page to page."""
        if self.path.startswith("/assets/"):
            self.send_header("Cache-Control", "max-age=3600")
        super().end_headers()


@pytest.fixture(scope="session")
def address(site: Path) -> Iterator[str]:
    yield from _served(_Quiet, site)


@pytest.fixture(scope="session")
def light_address(site: Path) -> Iterator[str]:
    """The same pages with an empty search index."""
    yield from _served(_WithoutIndex, site)


def _served(handler: type[_Quiet], site: Path) -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(handler, directory=str(site))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


class _WithoutIndex(_Quiet):
    """Serve an empty index: every page loads it, which costs seconds of a core for a hundred pages."""

    def do_GET(self) -> None:
        if not self.path.startswith("/search.json"):
            super().do_GET()
            return
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'{"config": {"lang": ["en"], "separator": " "}, "items": []}')


@pytest.fixture(scope="module")  # it uses an eighth of a core while it runs
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    program = find_browser()
    if program is None:
        pytest.skip("Chromium is not installed: `make system`")
    with chromium(program, tmp_path_factory.mktemp("profile")) as started:
        yield started
