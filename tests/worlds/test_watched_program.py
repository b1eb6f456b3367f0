"""A real program that hangs under `frog run --watch`: its page has the diagnosis while the ranks still stand."""

from __future__ import annotations

import json
import re
import signal
from typing import Any

from harness import LIMIT_S, Harness, kill_tree, run_to_end
from observe.watch.test_film_server import with_changes
from websockets.exceptions import WebSocketException
from websockets.sync.client import connect
from worlds.test_program_hang import write

from frog.core.runs.positions import read_positions
from frog.observe.watch.film_reader import film_of

BRANCH = """
import torch, torch.distributed as dist, together
dist.init_process_group("gloo")
for step in range(3):
    dist.all_reduce(torch.ones(4))
if dist.get_rank() == 0:
    dist.barrier()
dist.all_reduce(torch.ones(2))
"""


def test_page_of_a_hanging_program_has_its_diagnosis_while_it_hangs(harness: Harness) -> None:
    write(harness, "branch.py", BRANCH)
    words = ("frog", "run", "--nproc", "2", "--deadline", "300", "--watch", "--", "branch.py")
    process = harness.start(*words, warm=True)
    try:
        try:
            film = _film_with_diagnosis(process)
        except (OSError, WebSocketException, EOFError) as error:
            kill_tree(process)
            raise AssertionError(process.communicate()) from error
        process.send_signal(signal.SIGINT)
        _, err = run_to_end(process)
    finally:
        if process.poll() is None:
            kill_tree(process)
            process.communicate()
    assert film["is_live"]
    assert film["still_s"] >= 5
    assert film["waiting"] == {"0": "waits for rank 1", "1": "waits for rank 0"}
    for text in ("branch.py:7", "branch.py:8", "dist.barrier()", "waits-wide"):
        assert text in film["diagnosis"], text
    assert process.returncode == 130, err
    folder = harness.folder("branch")
    assert read_positions(folder.path, 0).events
    later = film_of(folder)
    assert (later.status, later.failure is not None) == ("interrupted", True)
    for lane in later.lanes:
        texts = [later.words[word][1] for word in lane.bars[2::4]]
        assert any(text.startswith("in a collective at branch.py:") for text in texts), texts


def _film_with_diagnosis(process: Any) -> dict[str, Any]:
    """Read the page's address, and receive its film until it has a diagnosis."""
    url = next(found[1] for line in process.stderr if (found := re.search(r"live page: (\S+)", line)))
    address = url.replace("http", "ws") + "film"
    with connect(address, max_size=None, open_timeout=LIMIT_S, ping_timeout=LIMIT_S) as connection:
        film: dict[str, Any] = json.loads(connection.recv(timeout=LIMIT_S))["film"]
        while not film["diagnosis"]:
            film = with_changes(film, json.loads(connection.recv(timeout=LIMIT_S))["changes"])
    return film
