"""The ranks' notes for a story, with every key wrong in turn."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from mutations import held_to_its_schema

from frog.learn.explain.notes import read_notes

WHO = {
    "rank": 0, "world_size": 2, "local_rank": 0, "ranks_per_node": 2, "node_rank": 0, "host": "h", "pid": 4,
    "rendezvous_address": "127.0.0.1:3", "listener": "rank 0", "began_ns": 2**60, "num_products": 0,
}  # fmt: skip
NOTES = {
    "barrier": {"came_ns": 2, "left_ns": 3},
    "all-reduce": {"came_ns": 2, "left_ns": 3, "payload_bytes": 4, "bytes_sent": None, "gave": 1.0, "got": [3.0, 3.0]},
    "rendezvous": {"knocked_ns": 2, "reached_ns": 3, "arrival": 1, "complete_ns": 4, "joined_ns": 5},
}


@pytest.mark.parametrize("what", NOTES)
def test_notes_reject_every_wrong_key(tmp_path: Path, what: str) -> None:
    path = tmp_path / "rank_0.json"
    path.write_text(json.dumps({**WHO, **NOTES[what]}))
    assert read_notes(path, what) == {**WHO, **NOTES[what]}
    held_to_its_schema(path, lambda: read_notes(path, what))
