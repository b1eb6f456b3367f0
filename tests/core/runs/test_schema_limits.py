"""The limits of the numbers in a run's files: the largest accepted and the smallest refused one of each type."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
import pytest
from run_files import beat, event, record_json, run_json, segment

from frog.core.errors import FrogError
from frog.core.runs import event_schema, launcher_schema, observed, record
from frog.core.runs.launch_request import LaunchRequest
from frog.core.schema import Amount, Digest, FileName, Host, Name, Natural, Port, Positive, decode

COUNT, RANK, SIZE = (0, 2**62), (0, 2**20 - 1), (1, 2**20 - 1)


def accepts(kind: Any, value: Any) -> bool:
    try:
        msgspec.convert(value, kind)
    except msgspec.ValidationError:
        return False
    return True


@pytest.mark.parametrize(
    ("kind", "least", "most"),
    [
        (event_schema.Count, *COUNT),
        (record.Count, *COUNT),
        (event_schema.Rank, *RANK),
        (event_schema.Size, *SIZE),
        (event_schema.SampleId, -1, 2**62),
        (event_schema.StepNumber, 0, 2**40 - 1),
        (event_schema.ExitCode, -(2**31), 2**31 - 1),
        (Natural, 0, 2**63 - 1),
        (Positive, 1, 2**63 - 1),
        (Port, 1, 65535),
    ],
)
def test_whole_number_lies_within_its_limits(kind: Any, least: int, most: int) -> None:
    assert [accepts(kind, value) for value in (least - 1, least, most, most + 1)] == [False, True, True, False]


def test_world_of_a_start_has_1_to_2_20_ranks() -> None:
    sizes = (0, 1, 2**20 - 1, 2**20)
    assert [accepts(record.RunStart, segment(world_size=size)) for size in sizes] == [False, True, True, False]


def test_amount_is_finite_and_not_negative() -> None:
    values = (-1e-9, 0, 1e300, 1.1e300, float("inf"), float("nan"))
    assert [accepts(Amount, value) for value in values] == [False, True, True, False, False, False]


@pytest.mark.parametrize(
    ("kind", "accepted", "refused"),
    [
        (Name, ["", "x" * 1000], ["x" * 1001]),
        (Digest, ["0" * 64, "af" * 32], ["0" * 63, "0" * 65, "g" * 64, "A" * 64]),
        (FileName, ["a", ".a", "...", "x" * 255], ["", ".", "..", "a/b", "a\\b", "a\0", "x" * 256]),
        (
            Host,
            ["a", "a.b.", "fe80::1%eth0", "n_1-2", "x" * 63, ".".join(["x" * 63] * 3)],
            ["", "a b", ".a", "a..b", "x" * 64, ".".join(["x" * 63] * 4) + ".x", "a/b"],
        ),
    ],
)
def test_text_has_its_form(kind: Any, accepted: list[str], refused: list[str]) -> None:
    assert [text for text in accepted if not accepts(kind, text)] == []
    assert [text for text in refused if accepts(kind, text)] == []


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        (Digest, "0" * 63, "a SHA-256 in hex"),
        (FileName, "a/b", "the name of a file in the same folder"),
        (Host, "a b", "the name or address of a host"),
        (Port, 0, "int >= 1"),
        (Annotated[str, msgspec.Meta(pattern="^x$")], "y", "str matching regex '^x$'"),
    ],
)
def test_form_of_a_text_is_said_in_words(kind: Any, value: Any, expected: str) -> None:
    with pytest.raises(FrogError) as refused:
        decode(msgspec.json.encode([value]), list[kind], "a.json")
    assert expected in str(refused.value)
    assert "matching regex" not in str(refused.value).replace(expected, "")


EXIT = {"attempt": 0, "rank": 0, "node": 0, "node_rank": 0, "pid": 1, "code": 1, "error": None, "traceback": None}
STALL = {"attempt": 0, "kind": "hang", "still_s": 1.0, "roles": {}, "text": "", "ends": False}
STATUS = {
    "format": 1,
    "rank": 0,
    "local_rank": 0,
    "node_rank": 0,
    "world_size": 1,
    "attempt": 0,
    "host": "a",
    "pid": 1,
    "started_unix_ns": 1,
    "unix_ns": 1,
    "mono_ns": 1,
    "state": "running",
    "cpu_s": 0.0,
    "rss_bytes": 1,
}
ENTRY = {"group": "0", "seq": 1, "op": "all_reduce", "done": False}


@pytest.mark.parametrize(
    ("kind", "least", "defaults"),
    [
        (record.RunFile, run_json(), {"finetune": None, "program": None, "simulated": False}),
        (record.Record, record_json(), {"starts": None, "loss": None, "tokens": None, "classification": None}),
        (event_schema.Beat, beat(), {"machine": "", "epoch": 0}),
        (event_schema.EndEvent, {"event": "end", "step": 1, "status": "failed"}, {"weights_sha256": None}),
        (launcher_schema.ExitEvent, {"event": "exit", "unix_ns": 0, **EXIT}, {"left": []}),
        (launcher_schema.StallEvent, {"event": "stall", "unix_ns": 0, **STALL}, {"stopped": False}),
        (launcher_schema.LinkSettings, {"rate_bits_per_s": 1.0, "delay_s": 0.0, "mtu": 1}, {"loss": 0.0}),
        (
            observed.Status,
            STATUS,
            {
                "start": "", "groups": [], "line": None, "inside": None, "in_message": False, "no_sync": None,
                "memory": [], "thread": "", "answered": 0, "torch": None, "backend": None,
            },
        ),
        (LaunchRequest, {"act": "cut"}, {"node": 0, "pid": None}),
        (observed.Samples, {}, {"taken": 0, "in_collective": 0, "waiting": 0, "lines": [], "causes": {}}),
        (observed.NoSync, {"entered": 1}, {"without_effect": 0, "line": None}),
        (
            observed.CollectiveEntry,
            ENTRY,
            {
                "backend": "", "p2p": False, "sizes": [], "dtypes": [], "created_unix_ns": 0,
                "started_unix_ns": None, "completed_unix_ns": None, "line": None, "stack": [],
            },
        ),
        (observed.Transfer, {"op": "send"}, {"peer": None, "tag": 0, "size": [], "dtype": "", "is_send": True}),
        (observed.Transfer, {"op": "irecv"}, {"is_send": False}),
        (observed.Message, {"op": "isend", "group": "0", "number": 1}, {"done": False, "is_send": True}),
        (observed.Messages, {}, {"whole": False, "counts": [], "last": []}),
        (observed.ThreadStack, {"name": "a"}, {"is_main": False, "frames": []}),
        (observed.ProgramError, {"format": 1, "rank": 0, "pid": 1, "unix_ns": 1, "type": "KeyError"}, {
            "message": "", "traceback": "", "thread": "MainThread", "transfer": None, "earlier": [],
        }),
    ],
)  # fmt: skip
def test_file_of_an_older_frog_gets_the_defaults_of_new_fields(
    kind: Any, least: dict[str, Any], defaults: dict[str, Any]
) -> None:
    value = msgspec.convert(least, kind)
    assert {name: getattr(value, name) for name in defaults} == defaults


def test_formats_have_their_numbers() -> None:
    kinds = (observed.Status, observed.Collectives, observed.Stacks, observed.WorkerStack, observed.ProgramError)
    assert {kind.FORMAT for kind in kinds} == {1}
    assert (record.RunFile.FORMAT, record.Record.FORMAT) == (2, 2)


def test_optional_fields_of_events_are_named_by_their_class() -> None:
    assert event_schema.FIELDS["commit"] == {"step", "payload_bytes", "write_ns"}
    assert set(event("commit")) == {"event", *event_schema.FIELDS["commit"]}
    assert launcher_schema.LAUNCHER_FIELDS["node"] == {"node", "host", "code"}
