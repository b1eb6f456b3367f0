"""What a run's door.json says is held against a schema before anything is connected to."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from frog.comm.membership import join_membership
from frog.core.env import world_env
from frog.core.errors import RunError

GOOD = {"format": 1, "identity": 0, "host": "127.0.0.1", "port": 9, "secret": "ab"}


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("port", 70000, r"\$\.port: found 70000, expected int <= 65535"),
        ("host", "a\0b", r'\$\.host: found the text "a\\u0000b", expected the name or address of a host'),
        ("host", "x" * 300, "…, expected the name or address of a host"),
    ],
)
def test_a_door_that_leads_nowhere_is_refused(field: str, value: Any, said: str, tmp_path: Path) -> None:
    door = tmp_path / "door.json"
    door.write_text(json.dumps({**GOOD, field: value}))
    with pytest.raises(RunError, match=said):
        join_membership(world_env(), torch.device("cpu"), 1.0, door)
