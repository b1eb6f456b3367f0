"""Peers as processes: the examples pass, and each wrong peer is rejected for its own reason."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from harness import LIMIT_S
from wrong_peers import EXAMPLES, WRONG

from frog.core.errors import UsageError
from frog.core.terminal import printable_lines
from frog.launch import resource_limits
from frog.measure.peers import session
from frog.measure.peers.calls import OPERATIONS
from frog.measure.peers.check import remembered
from frog.measure.peers.checks import CHECKS, Outcome, Scope, examine
from frog.measure.peers.observed import Breach, Fault, Plan

PAGE = Path(__file__).parents[3] / "docs" / "measure" / "collectives.md"
SEED = 4
ENDED_BY = {
    "deadlock": (resource_limits, "IDLE_S", 1.5),
    "never-ends": (session, "_COMPUTING_S", 0.5),
    "hangs-after-loss": (session, "AFTER_FAULT_S", 1.0),
}
"""The limit that ends such a peer, shortened. On a slow machine any other peer could exceed it first."""


def outcomes_of(command: list[str], folder: Path, worlds: tuple[int, ...], *only: str) -> dict[str, Outcome]:
    observe = remembered(command, folder, SEED)
    found = examine(observe, Scope(worlds, ("all_reduce",)), only, lambda _: None)
    return {outcome.check: outcome for outcome in found}


@pytest.mark.slow
def test_python_example_passes_every_check(tmp_path: Path) -> None:
    assert len((EXAMPLES / "ring.py").read_text().splitlines()) <= 60, "as the page says"
    found = outcomes_of([sys.executable, str(EXAMPLES / "ring.py")], tmp_path, (2, 3, 4))
    assert {name: outcome.finding for name, outcome in found.items() if outcome.finding} == {}
    assert [name for name, outcome in found.items() if outcome.status == "skipped"] == ["operations"]
    assert found["ring"].measured[0] == "a ring, 0 → 1 → 2 → 3 → 0"
    assert all("nothing happened" not in text for outcome in found.values() for text in outcome.measured)


@pytest.mark.parametrize("name", WRONG)
def test_wrong_peer_is_rejected_for_its_own_reason(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = WRONG[name]
    if wrong.finding in ENDED_BY:
        monkeypatch.setattr(*ENDED_BY[wrong.finding])
    peer = tmp_path / "peer.py"
    peer.write_text(wrong.source())
    outcome = outcomes_of([sys.executable, str(peer)], tmp_path, (3,), wrong.check)[wrong.check]
    assert outcome.finding is not None, outcome
    assert (outcome.finding.id, wrong.says in outcome.finding.observed) == (wrong.finding, True), (
        outcome.finding.observed
    )
    assert outcome.finding.belief
    assert outcome.finding.question.endswith(("?", "."))


@pytest.mark.parametrize("check", [check.name for check in CHECKS if check.name not in ("operations", "slow-link")])
def test_every_check_rejects_some_peer(check: str) -> None:
    assert check in {wrong.check for wrong in WRONG.values()}


def test_peer_may_close_its_output(tmp_path: Path) -> None:
    peer = tmp_path / "peer.py"
    peer.write_text((EXAMPLES / "ring.py").read_text().replace("for line in Path", "os.close(1)\nfor line in Path"))
    assert outcomes_of([sys.executable, str(peer)], tmp_path, (2,), "results")["results"].finding is None


def test_operations_that_a_peer_lacks_are_not_graded(tmp_path: Path) -> None:
    observe = remembered([sys.executable, str(_with_operations(tmp_path))], tmp_path, SEED)
    (outcome,) = examine(observe, Scope((2, 3), OPERATIONS), ("operations",), lambda _: None)
    assert outcome.finding is None
    assert outcome.measured == (
        "broadcast: correct at world 2 and 3",
        "all_gather: correct at world 2 and 3",
        "reduce_scatter: the peer reports that it does not support it",
    )


def test_part_copied_to_the_wrong_place_is_found(tmp_path: Path) -> None:
    peer = _with_operations(tmp_path)
    peer.write_text(peer.read_text().replace("parts[(RANK - step) % WORLD]", "parts[(RANK + step) % WORLD]"))
    observe = remembered([sys.executable, str(peer)], tmp_path, SEED)
    (outcome,) = examine(observe, Scope((3,), ("all_gather",)), ("operations",), lambda _: None)
    assert outcome.finding is not None
    assert outcome.finding.id == "wrong-copy"


def _with_operations(folder: Path) -> Path:
    """Return the example with an all-gather, and a broadcast built from it."""
    text = (EXAMPLES / "ring.py").read_text()
    text = text.replace('operation != "all_reduce"', 'operation == "reduce_scatter"').replace(
        "    all_reduce(right, left, values)\n",
        "    if operation == 'all_reduce':\n"
        "        all_reduce(right, left, values)\n"
        "    else:\n"
        "        come, parts = data[24:], [b''] * WORLD\n"
        "        parts[RANK] = come\n"
        "        for step in range(1, WORLD):\n"
        "            parts[(RANK - step) % WORLD] = come = exchange(right, left, come, len(come))\n"
        "        whole = parts[int(_root)] if operation == 'broadcast' else b''.join(parts)\n"
        "        values = array(values.typecode, whole)\n"
        "        data = data[:16] + len(values).to_bytes(8, 'little') + data[24:]\n",
    )
    peer = folder / "peer.py"
    peer.write_text(text)
    return peer


def test_command_that_cannot_start_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no-such-program cannot be started"):
        outcomes_of(["no-such-program"], tmp_path, (2,), "results")


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("cargo") is None, reason="cargo is not on this machine")
def test_rust_example_builds_as_documented_and_passes(tmp_path: Path) -> None:
    block = re.search(r"```sh\n(cargo new .*?)```", PAGE.read_text(), re.DOTALL)
    assert block is not None
    build = [line for line in block[1].splitlines() if "frog collectives check" not in line]
    path = f"{Path(sys.executable).parent}:{Path(shutil.which('cargo') or '').parent}:/usr/bin:/bin"
    env = {"PATH": path, "HOME": str(Path.home()), "CARGO_NET_OFFLINE": "true", "CARGO_INCREMENTAL": "0"}
    subprocess.run(
        ["sh", "-ec", "\n".join(build)], cwd=tmp_path, env=env, check=True, timeout=LIMIT_S, capture_output=True
    )
    (tmp_path / "sessions").mkdir()
    found = outcomes_of([str(tmp_path / "ring/target/release/ring")], tmp_path / "sessions", (2, 3, 4))
    assert {name: outcome.finding for name, outcome in found.items() if outcome.finding} == {}


# ---- parts of a session, without processes ---------------------------------------------------------------------------


def session_of(folder: Path, *outputs: str, codes: tuple[int | None, ...] = ()) -> Any:
    """Return a session whose copies have printed something, and ended with codes (None: still running)."""
    plan = Plan("one", len(outputs), (), fault=Fault("kill", (1, 1), 4))
    found = session._Session.__new__(session._Session)
    found._plan, found._folder, found._ended, found._start = plan, folder, {}, time.monotonic()
    for rank, output in enumerate(outputs):
        (folder / f"rank_{rank}").mkdir()
        (folder / f"rank_{rank}" / "output.txt").write_text(output)
    found._programs = [
        SimpleNamespace(
            output=output, process=SimpleNamespace(poll=lambda code=code: code), all_gone=lambda _, code=code: code != 5
        )
        for output, code in zip(outputs, codes or (None,) * len(outputs), strict=True)
    ]
    return found


@pytest.mark.parametrize(
    ("output", "lost"),
    [
        ("lost 2\n", 2),
        ("step 1\nlost 0  \nlost 1\n", 0),
        ("lost 123456", 123456),
        ("lost 1234567", None),
        ("I lost 2", None),
        ("lost 2 of them", None),
        ("lost 2" + "\n" * 1994, 2),  # in the last 2,000 characters
        ("lost 2" + "\n" * 1995, None),
    ],
)
def test_lost_rank_is_read_from_a_line_of_its_own(output: str, lost: int | None, tmp_path: Path) -> None:
    end = session_of(tmp_path, output).end(0)
    assert (end.code, end.lost, end.output) == (None, lost, printable_lines(output[-2000:]))
    assert 0 <= end.at_s < 60


def test_ends_are_noted_once_with_their_time(tmp_path: Path) -> None:
    found = session_of(tmp_path, "", "", "", codes=(0, None, 5))
    assert found._note_ends() == 2
    first = dict(found._ended)
    assert {rank: code for rank, (code, _) in first.items()} == {0: 0, 2: 5}
    assert (found._note_ends(), found._ended) == (2, first)
    assert [found._is_alive(rank) for rank in range(4)] == [False, True, False, False]
    assert found.left() == [2]
    assert (found.end(2).code, found.end(2).at_s) == first[2]


def test_output_and_resources_of_a_copy_are_limited(tmp_path: Path) -> None:
    found = session_of(tmp_path, "", "x" * 10)
    checked: list[set[int]] = []
    monitor: Any = SimpleNamespace(check=lambda ended: checked.append(ended))
    os.truncate(tmp_path / "rank_1/output.txt", 4 << 20)
    found._ended = {0: (0, 1.0)}
    assert (found._exceeded_limit(monitor), checked) == (None, [{0}])
    monitor.check = lambda ended: resource_limits.Breach("too-much-memory", "much", 1)
    assert found._exceeded_limit(monitor) == Breach("too-much-memory", "much")
    os.truncate(tmp_path / "rank_1/output.txt", (4 << 20) + 1)
    assert found._exceeded_limit(monitor) == Breach("too-much-output", "rank 1 printed more than 4 MiB.")


@pytest.mark.parametrize("kind", ["kill", "cut"])
def test_only_a_kill_ends_a_copy(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    killed: list[object] = []
    monkeypatch.setattr(session, "kill_tree", killed.append)
    found = session_of(tmp_path, "", "")
    found._plan = Plan("one", 2, (), fault=Fault(kind, (1, 1) if kind == "kill" else (1, 0), 4))  # type: ignore[arg-type]
    found._on_fault()
    assert killed == ([found._programs[1].process] if kind == "kill" else [])
    assert 0 <= found.fault_at_s < 60
