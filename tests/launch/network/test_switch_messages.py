"""Messages between launcher and switch, and requests of ranks to the launcher, with every key wrong."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest
from mutations import held_to_its_schema, table_held_to_its_schema

from frog.core.errors import LaunchError
from frog.core.runs.launch_request import LaunchRequest
from frog.core.schema import Typed, decode, read_typed, write_typed
from frog.launch.network.link import Link
from frog.launch.network.network import SwitchReady, SwitchRequest, SwitchSettings


@pytest.mark.parametrize(
    ("kind", "good"),
    [
        (SwitchSettings, {"num_nodes": 2, "link": asdict(Link(1e6, 0.1))}),
        (SwitchRequest, {"act": "cut", "node_rank": 1}),
        (SwitchReady, {"descriptors": "/proc/4/fd", "nodes": [[3, 4], [5, 6]]}),
    ],
)
def test_switch_messages_with_wrong_values_are_rejected(kind: type[Typed], good: dict[str, object]) -> None:
    table_held_to_its_schema(good, lambda line: decode(json.dumps(line), kind, "a line", error=LaunchError), "a line")


def test_launch_requests_with_wrong_values_are_rejected(tmp_path: Path) -> None:
    path = tmp_path / "cut_1_2.json"
    write_typed(path, LaunchRequest(act="cut", node=1))
    held_to_its_schema(path, lambda: read_typed(path, LaunchRequest, error=LaunchError))
