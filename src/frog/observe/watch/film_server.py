"""Serves a run's film to browsers on this machine: the page over HTTP, what changes over a WebSocket.

One thread reads the run twice a second and diagnoses it when something went wrong. Each open page has a thread of the
library that sends it what changed. The address has a random token, and only this machine can connect.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import logging
import secrets
import socket
import threading
import time
import weakref
from collections.abc import Iterator
from http import HTTPStatus
from typing import Any
from urllib.parse import urlsplit

from frog.core.errors import FrogError, UsageError
from frog.core.runs.folder import RunFolder
from frog.observe.watch.film import Film
from frog.observe.watch.film_page import film_changes, film_message, live_page, policy_of
from frog.observe.watch.film_reader import FilmReader

LOOK_S = 0.5
_LONG_LOOK_S = 5.0
"""Interval after the run has ended: a resume may begin."""
_ANSWERS_S = 120.0
"""Time for a request and its answer: on a busy machine the thread that reads the run may hold them up."""
_END_S = 5.0
_HOST = "127.0.0.1"
_NOTHING = "default-src 'none'"


class Projection:
    """The newest film of a run, read by one thread for all pages."""

    def __init__(self, folder: RunFolder) -> None:
        self._reader = FilmReader(folder)
        self._changed = threading.Condition()
        self._number = 0
        self._message: dict[str, Any] = {}
        self._over = threading.Event()
        self._film: Film | None = None
        self._is_final = False
        """True once a film shows a run that has ended, with its diagnosis."""

    def run(self) -> None:
        """Read until `close`; called in a thread."""
        while not self._over.is_set():
            began = time.monotonic()
            self.look()
            is_live = self._film is None or self._film.is_live
            took_s = time.monotonic() - began
            self._over.wait(max(LOOK_S, took_s) if is_live else _LONG_LOOK_S)

    def look(self) -> None:
        """Read the run once, and diagnose it if its symptoms changed."""
        try:
            film = self._film = self._reader.read()
            self._publish(film_message(film))
            if self._reader.renew_diagnosis(film):
                self._publish(film_message(film))
            if not film.is_live:
                with self._changed:
                    self._is_final = True
                    self._changed.notify_all()
        except (FrogError, OSError):  # a folder in the middle of a change; the pages keep the last film
            return

    def _publish(self, message: dict[str, Any]) -> None:
        with self._changed:
            self._number, self._message = self._number + 1, message
            self._changed.notify_all()

    def finish(self, most_s: float) -> None:
        """Wait until the film shows that the run has ended, with its diagnosis, but not for ever."""
        until = time.monotonic() + most_s
        with self._changed:
            self._changed.wait_for(lambda: self._is_final, max(0.0, until - time.monotonic()))

    def close(self) -> None:
        """End `run` and all `messages`."""
        self._over.set()
        with self._changed:
            self._changed.notify_all()

    def messages(self) -> Iterator[dict[str, Any]]:
        """Yield the whole film, then what changed since the last one, until `close`."""
        seen = 0
        before: dict[str, Any] = {}
        while True:
            with self._changed:
                while self._number == seen and not self._over.is_set():
                    self._changed.wait()
                number, message = self._number, self._message
            if number == seen:
                return
            if not seen:
                yield {"film": message}
            elif changes := film_changes(before, message):
                yield {"changes": changes}
            seen, before = number, message


class FilmServer:
    """A page on loopback for one run.

    port: 0 for a free one.

    Raises:  UsageError if the port is taken, or the library is missing.
    """

    def __init__(self, folder: RunFolder, port: int = 0) -> None:
        from websockets.sync.server import ServerConnection, serve

        connections: weakref.WeakSet[ServerConnection] = weakref.WeakSet()

        class Connection(ServerConnection):
            def __init__(self, *args: Any, **options: Any) -> None:
                super().__init__(*args, **options)
                connections.add(self)

        self._connections = connections
        self.token = secrets.token_urlsafe(16)
        self._page = live_page(folder.path.name)
        self.projection = Projection(folder)
        try:
            self._server = serve(
                self._send_film,
                _HOST,
                port,
                process_request=self._answer,
                create_connection=Connection,
                open_timeout=_ANSWERS_S,
                ping_timeout=_ANSWERS_S,
                compression=None,
                server_header=None,
                logger=_silent(),
            )
        except OSError as error:
            raise UsageError(f"--port {port}: {error.strerror}", "--port 0 takes a free one") from None
        self._threads = [
            threading.Thread(target=self._server.serve_forever, name="frog-watch-server", daemon=True),
            threading.Thread(target=self.projection.run, name="frog-watch-reader", daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    @property
    def port(self) -> int:
        """The port in use."""
        return int(self._server.socket.getsockname()[1])

    @property
    def url(self) -> str:
        """The page's address, with its token."""
        return f"http://{_HOST}:{self.port}/{self.token}/"

    def close(self) -> None:
        """End all connections and threads."""
        self.projection.close()
        ending = threading.Thread(target=self._server.shutdown, name="frog-watch-end", daemon=True)
        ending.start()
        until = time.monotonic() + _END_S
        while ending.is_alive() and time.monotonic() < until:
            self._close_silent()
            ending.join(timeout=0.1)
        for thread in self._threads:
            thread.join(timeout=_END_S)

    def _close_silent(self) -> None:
        """Close connections that have not sent a request: browsers open some in advance, and the library waits."""
        from websockets.protocol import State

        for connection in list(self._connections):
            if connection.protocol.state is State.CONNECTING:
                with contextlib.suppress(OSError):
                    connection.socket.shutdown(socket.SHUT_RDWR)

    def __enter__(self) -> FilmServer:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # ---- one connection ----------------------------------------------------------------------------------------------

    def _answer(self, connection: Any, request: Any) -> Any:
        """Answer a request for the page; None begins a WebSocket."""
        path = urlsplit(request.path).path
        token, _, rest = path.removeprefix("/").partition("/")
        is_ours = request.headers.get("Host") in (f"{_HOST}:{self.port}", f"localhost:{self.port}")
        if not is_ours or not hmac.compare_digest(token.encode(), self.token.encode()):
            return self._response(connection, HTTPStatus.FORBIDDEN, "The address needs the token that was printed.\n")
        if rest == "film":
            origin = request.headers.get("Origin")
            allowed = (f"http://{_HOST}:{self.port}", f"http://localhost:{self.port}", None)
            if origin not in allowed:
                return self._response(connection, HTTPStatus.FORBIDDEN, "Another page may not read this run.\n")
            return None
        if rest:
            return self._response(connection, HTTPStatus.NOT_FOUND, "There is nothing here.\n")
        return self._response(connection, HTTPStatus.OK, self._page, "text/html; charset=utf-8")

    def _response(self, connection: Any, status: HTTPStatus, text: str, kind: str = "text/plain; charset=utf-8") -> Any:
        response = connection.respond(status, text)
        for name, value in (
            ("Content-Type", kind),
            ("Cache-Control", "no-store"),
            ("Referrer-Policy", "no-referrer"),
            ("X-Content-Type-Options", "nosniff"),
            ("X-Frame-Options", "DENY"),
            ("Content-Security-Policy", f"{policy_of(text) or _NOTHING}; frame-ancestors 'none'"),
        ):
            if name in response.headers:
                del response.headers[name]
            response.headers[name] = value
        return response

    def _send_film(self, connection: Any) -> None:
        from websockets.exceptions import ConnectionClosed

        try:
            for message in self.projection.messages():
                connection.send(json.dumps(message, separators=(",", ":"), allow_nan=False))
        except ConnectionClosed:  # the tab was closed
            return


def _silent() -> logging.Logger:
    """Return a logger that prints nothing: a tab that is closed in the middle of an answer is not an error."""
    logger = logging.getLogger("frog.watch")
    logger.propagate = False
    if not logger.handlers:
        logger.addHandler(logging.NullHandler())
    return logger
