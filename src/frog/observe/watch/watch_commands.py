"""`frog watch`, and the page of `frog run --watch`."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from frog.core.user_input import port

if TYPE_CHECKING:
    from frog.core.runs.folder import RunFolder
    from frog.observe.watch.film_server import FilmServer

_LAST_FILM_S = 10.0
"""Longest wait, at the end of a run, for the page to get the diagnosis."""


def add_watch_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `watch`."""
    parser = commands.add_parser(
        "watch",
        help="show a run as a live page: each rank, what it waits for, the numbers, the diagnosis",
        description="Serve a page about a run on this machine only, while it runs and afterwards, until Ctrl-C. Drag "
        "through the run, step by step and event by event. `frog run --watch` does so from the start of a run.",
    )
    parser.add_argument("run", metavar="RUN", nargs="?", default="latest", help="a run folder, a name, or latest")
    parser.add_argument("--port", type=port, default=0, metavar="N", help="default: a free port")
    parser.add_argument("--open", action="store_true", help="open the page in the browser")
    parser.add_argument("--text", action="store_true", help="show the ranks in the terminal; in a pipe, once")
    parser.set_defaults(handler=_watch)


def _watch(args: argparse.Namespace) -> int:
    from frog.core.runs.folder import find_evidence
    from frog.core.terminal import printable

    folder = find_evidence(args.run)
    if args.text:
        from frog.observe.watch.film_text import show_text

        return show_text(folder)
    from frog.observe.watch.film_reader import FilmReader
    from frog.observe.watch.film_server import FilmServer

    FilmReader(folder, asks=False).read()  # a run that cannot be read is an error here, not an empty page
    with FilmServer(folder, args.port) as server:
        print(f"watching {printable(str(folder.path))}: {server.url}\n  Ctrl-C ends the page, not the run", flush=True)
        _open(server, args.open)
        _wait_for_interrupt()
    return 0


def _open(server: FilmServer, wanted: bool) -> None:
    from frog.core.browser import open_address

    if wanted and not open_address(server.url):
        print("found no browser; open the address in one on this machine", file=sys.stderr)


def _wait_for_interrupt() -> None:
    """Wait for Ctrl-C or SIGTERM."""
    import signal

    def end(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, end)
    try:
        while True:
            time.sleep(3600)
    except KeyboardInterrupt:
        return
    finally:
        signal.signal(signal.SIGTERM, before)


class RunPage:
    """The page of `frog run --watch`: it begins when the run folder exists, and stays when the run has ended.

    opens: open the page in the browser.
    """

    def __init__(self, port: int = 0, *, opens: bool = False) -> None:
        self._port, self._opens = port, opens
        self._server: FilmServer | None = None
        self._folder: Path | None = None

    def show(self, path: Path) -> None:
        """Serve a run folder; another one than before replaces it."""
        from frog.core.runs.folder import RunFolder

        if path == self._folder:
            return
        self.close()
        self._folder = path
        self._server = self._serve(RunFolder(path))
        print(f"live page: {self._server.url}", file=sys.stderr, flush=True)
        _open(self._server, self._opens)

    def _serve(self, folder: RunFolder) -> FilmServer:
        from frog.observe.watch.film_server import FilmServer

        return FilmServer(folder, self._port)

    def stay(self) -> None:
        """After the run: serve until Ctrl-C in a terminal. Elsewhere give open pages the last film, and end."""
        if self._server is None:
            return
        if sys.stdin.isatty() and sys.stderr.isatty():
            print(f"the live page stays until Ctrl-C: {self._server.url}", file=sys.stderr, flush=True)
            _wait_for_interrupt()
        else:
            self._server.projection.finish(_LAST_FILM_S)
        self.close()

    def close(self) -> None:
        """End the page."""
        if self._server is not None:
            self._server.close()
            self._server = None


def watch_run(program: Callable[[Callable[[Path], None]], int], port: int, opens: bool) -> int:
    """Run a program with a live page, and return its exit code.

    program: runs it; gets a function to call with the run folder.

    Raises:  what `program` raises.
    """
    from frog.core.errors import FrogError
    from frog.core.terminal import terminal_columns, wrapped_lines

    page = RunPage(port, opens=opens)
    try:
        code = program(page.show)
    except FrogError as error:
        print(wrapped_lines(f"error: {error}", terminal_columns(sys.stderr)), file=sys.stderr, flush=True)
        code = error.exit_code
    except BaseException:
        page.close()
        raise
    if code not in (130, 143):  # a user has stopped the run
        page.stay()
    page.close()
    return code
