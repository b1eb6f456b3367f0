"""The server of the live page: who may read, what several tabs get, and that nothing is left of it."""

from __future__ import annotations

import collections
import http.client
import itertools
import json
import shutil
import socket
import threading
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from harness import LIMIT_S, wait_until
from observe.watch.hung_program import hung_program
from synthetic_run import Synthetic, make_run
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from frog.core.errors import UsageError
from frog.core.runs.folder import RunFolder
from frog.observe.watch.film_page import film_message
from frog.observe.watch.film_reader import film_of
from frog.observe.watch.film_server import FilmServer


def get(url: str, path: str | None = None, **headers: str) -> tuple[int, str, dict[str, str]]:
    parts = urlsplit(url)
    connection = http.client.HTTPConnection("127.0.0.1", parts.port, timeout=LIMIT_S)
    connection.request("GET", parts.path if path is None else path, headers=headers)
    response = connection.getresponse()
    return response.status, response.read().decode(), dict(response.getheaders())


def film_socket(server: FilmServer, **options: Any) -> ClientConnection:
    return connect(server.url.replace("http", "ws") + "film", max_size=None, **options)


def with_changes(film: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """What the page's script does."""

    def value(before: Any, change: Any) -> Any:
        is_list = isinstance(change, dict) and change.keys() == {"from", "rows"}
        return [*(before or [])[: change["from"]], *change["rows"]] if is_list else change

    after = dict(film)
    for name, change in changes.items():
        if isinstance(change, dict) and "each" in change:
            pairs = zip(film[name], change["each"], strict=True)
            after[name] = [{**row, **{key: value(row.get(key), new) for key, new in own.items()}} for row, own in pairs]
        else:
            after[name] = value(film.get(name), change)
    return after


def receive(connection: ClientConnection) -> dict[str, Any]:
    message: dict[str, Any] = json.loads(connection.recv(timeout=LIMIT_S))
    return message


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return hung_program(tmp_path / "h")


def test_page_needs_its_token_and_this_machines_address(folder: RunFolder) -> None:
    with FilmServer(folder) as server:
        status, page, headers = get(server.url)
        assert (status, "Frog watch" in page) == (200, True)
        assert "frame-ancestors 'none'" in headers["Content-Security-Policy"]
        assert (headers["Cache-Control"], headers["Referrer-Policy"]) == ("no-store", "no-referrer")
        wrong = f"/{server.token[:-1]}x/"
        for path in ("/", "/film", wrong, f"{wrong}film", "//", f"/{server.token}%C3%A9/"):
            said = get(server.url, path)
            assert (said[0], server.token in said[1]) == (403, False), path
        assert get(server.url, f"/{server.token}/other")[0] == 404
        assert get(server.url, Host="evil.example")[0] == 403
        assert server._server.socket.getsockname()[0] == "127.0.0.1"


def test_film_is_not_given_to_another_sites_script(folder: RunFolder) -> None:
    with FilmServer(folder) as server:
        with pytest.raises(InvalidStatus, match="403"):
            film_socket(server, origin="https://evil.example")
        with film_socket(server, origin=f"http://127.0.0.1:{server.port}") as connection:
            assert receive(connection)["film"]["name"] == "h"


def test_tab_gets_the_film_and_its_diagnosis(folder: RunFolder) -> None:
    expected = json.loads(json.dumps(film_message(film_of(folder))))
    with FilmServer(folder) as server, film_socket(server) as connection:
        film = receive(connection)["film"]
        while not film["diagnosis"]:
            film = with_changes(film, receive(connection)["changes"])
    assert film == expected
    assert "only some ranks" in film["diagnosis"] or "differs" in film["diagnosis"]


def test_several_tabs_follow_a_run_that_goes_on(tmp_path: Path) -> None:
    whole = make_run(tmp_path / "whole", Synthetic(segments=[(2, 0, 40)], checkpoint_every=None))
    folder = RunFolder(tmp_path / "r")
    folder.events.mkdir(parents=True)
    shutil.copy(whole.run_json, folder.run_json)
    content = {rank: whole.rank_events(rank).read_bytes() for rank in range(2)}
    with FilmServer(folder) as server, film_socket(server) as one:
        films = [receive(one)["film"]]
        assert films[0]["lanes"] == []
        for part in (1, 2, 3):
            for rank, data in content.items():
                folder.rank_events(rank).write_bytes(data[: len(data) * part // 3])
            server.projection.look()
            films[0] = with_changes(films[0], receive(one)["changes"])
        with film_socket(server) as other:
            films.append(receive(other)["film"])
            while films[0] != films[1]:  # one may have more changes to receive
                films[0] = with_changes(films[0], receive(one)["changes"])
    assert [lane["rank"] for lane in films[0]["lanes"]] == [0, 1]
    assert films[0]["steps"][-2] == 40


def test_nothing_is_left_of_a_closed_server(folder: RunFolder) -> None:
    server = FilmServer(folder)
    port = server.port
    silent = socket.create_connection(("127.0.0.1", port))  # as browsers open some in advance
    with silent, film_socket(server) as connection:
        receive(connection)
        server.close()
        assert "frog-watch-end" not in {thread.name for thread in threading.enumerate()}
        with pytest.raises(ConnectionClosed):
            collections.deque(map(receive, itertools.repeat(connection)), maxlen=0)
    names = {"frog-watch-server", "frog-watch-reader"}
    wait_until(lambda: not names & {thread.name for thread in threading.enumerate()}, "the end of its threads")
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", port)) != 0


def test_taken_port_is_an_error(folder: RunFolder) -> None:
    with FilmServer(folder) as server, pytest.raises(UsageError, match=f"--port {server.port}"):
        FilmServer(folder, server.port)
