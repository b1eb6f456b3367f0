"""The launcher's output: it continues if the terminal is closed or the disk is full."""

from __future__ import annotations

import io
import json
import sys
import types
from pathlib import Path
from typing import cast

import pytest

from frog.core.runs.folder import RunFolder
from frog.launch.launch_record import Journal
from frog.launch.node_agents import Agent, NodeOutput

AGENT = cast("Agent", types.SimpleNamespace(node=1, host="node1"))
FULL = Path("/dev/full")


class Closed(io.StringIO):
    """A closed stdout, as under `| head`."""

    def write(self, text: str) -> int:
        raise BrokenPipeError


def test_agent_output_is_read_and_logged_although_stdout_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output, lines = NodeOutput(), io.BytesIO(b"one\ntwo\n")
    monkeypatch.setattr(sys, "stdout", Closed())
    output.copy(lines, AGENT)
    assert lines.read() == b""
    output.open_log(1, tmp_path / "node_1" / "agent.log")
    output.copy(io.BytesIO(b"three\n"), AGENT)
    output.close()
    lines = (tmp_path / "node_1" / "agent.log").read_text().splitlines()
    assert [line.split(" ", 2)[-1] for line in lines] == ["one", "two", "three"]


def test_number_of_lines_kept_before_the_log_opens_is_limited(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("frog.launch.node_agents._MOST_EARLY", 2)
    output = NodeOutput()
    output.copy(io.BytesIO(b"one\ntwo\nthree\n"), AGENT)
    output.open_log(1, tmp_path / "agent.log")
    output.close()
    assert len((tmp_path / "agent.log").read_text().splitlines()) == 2


@pytest.mark.skipif(not FULL.exists(), reason="this system has no /dev/full")
def test_full_disk_does_not_end_the_launcher(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    folder.events.mkdir(parents=True)
    folder.launcher_events.symlink_to(FULL)
    (tmp_path / "run_folder").write_text(str(folder.path))
    journal = Journal(tmp_path)
    journal.record("end", code=1, network=None)
    folder.launcher_events.unlink()
    folder.launcher_events.write_text('{"event": "lau')  # a line cut off by the full disk
    journal.record("return", node=1, host="node1")
    first, *lines = folder.launcher_events.read_text().splitlines()
    assert first == '{"event": "lau'
    assert [json.loads(line)["event"] for line in lines] == ["end", "return"]
