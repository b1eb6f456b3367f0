"""Values of the evidence: names and sizes of calls, first lines of errors, progress in a log, who ended first."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from seen import SECOND, at, evidence, failed, rank

from frog.observe.diagnose.known_errors.progress import Progress
from frog.observe.diagnose.program import flight_recorder
from frog.observe.diagnose.program.end_rules import exited
from frog.observe.diagnose.program.evidence import Call, Evidence, Group, RankEvidence, SeenError
from frog.observe.diagnose.program.flight_recorder import add_dump, op_name

WORLD = Group((0, 1), "0")


@pytest.mark.parametrize(
    ("text", "name"),
    [
        *[("nccl:all_reduce", "all_reduce"), ("gloo:barrier", "barrier"), ("nccl:send 0->1", "send")],
        *[("ALLREDUCE", "all_reduce"), ("ALLREDUCE_COALESCED", "allreduce_coalesced"), ("ALLGATHER", "all_gather")],
        *[("_ALLGATHER_BASE", "_all_gather_base"), ("REDUCE_SCATTER", "reduce_scatter"), ("BROADCAST", "broadcast")],
        *[("_REDUCE_SCATTER_BASE", "_reduce_scatter_base"), ("ALLTOALL", "all_to_all")],
        *[("ALLTOALL_BASE", "all_to_all"), ("nccl:_Mixed", "_Mixed")],
    ],
)
def test_operation_has_torchs_name(text: str, name: str) -> None:
    assert op_name(text) == name


@pytest.mark.parametrize(
    ("sizes", "dtypes", "numel", "elements", "text"),
    [
        ((), (), None, None, "send"),
        ((), (), 7, 7, "send of 7 elements"),
        (((2, 3),), ("Float",), None, 6, "send of 2x3 float"),
        (((2, 3), (4,)), ("Half", "Half"), 99, 10, "send of 2x3, … half"),
        (((),), ("Long",), None, 1, "send of 1 long"),
        (((0, 5),), (), None, 0, "send of 0x5"),
    ],
)
def test_call_says_its_size(sizes: Any, dtypes: Any, numel: int | None, elements: int | None, text: str) -> None:
    call = Call(WORLD, 1, "send", False, sizes, dtypes, numel=numel)
    assert (call.elements, str(call)) == (elements, text)


def test_long_first_line_of_an_error_loses_its_middle() -> None:
    for length in (1, 100, 1000):
        line = SeenError("E", f"{'a' * length}{'b' * length}\nmore").first_line
        assert (line == "a" * length + "b" * length) == ("…" not in line)
        assert line[0] + line[-1] == "ab"
    cut = SeenError("E", "a" * 5000).first_line
    before, _, after = cut.partition(" … ")
    assert len(before) == len(after) == len(cut) // 2 - 1


def test_only_two_lines_that_name_parameters_are_kept() -> None:
    lines = [f"  Parameters which did not receive grad for rank {number}: w" for number in range(3)]
    error = SeenError("torch.nn.E", "\n".join(["did not receive grad", "other", *lines]))
    assert error.parameters == "; ".join(line.strip() for line in lines[:2])
    assert (error.short_type, SeenError("E", "x").short_type, SeenError("E", "x").parameters) == ("E", "E", "")


def test_calls_of_a_rank_are_grouped_in_order_without_messages() -> None:
    def call(
        seq: int, group: Group = WORLD, done: bool = True, p2p: bool = False, created_ns: int | None = None
    ) -> Call:
        return Call(group, seq, "all_reduce", done, p2p=p2p, created_ns=created_ns)

    other = Group((0,), "1")
    calls = [call(2, done=False, created_ns=9), call(1), call(5, other, done=False, created_ns=4), call(3, p2p=True)]
    own = RankEvidence(0, calls=calls)
    assert {group: [each.seq for each in found] for group, found in own.by_group().items()} == {
        WORLD: [1, 2],
        other: [5],
    }
    assert [each.seq for each in own.pending] == [5, 2]
    own.add_source("a")
    own.add_source("a")
    assert own.sources == ["a"]


# ---- who ended first -------------------------------------------------------------------------------------------------


def ended(number: int, code: int | None, second: int | None = None, **fields: Any) -> RankEvidence:
    exited_ns = None if second is None else second * SECOND
    return rank(number, world=3, exit_code=code, exited_ns=exited_ns, **{"state": "ended", **fields})


@pytest.mark.parametrize(
    ("ranks", "found"),
    [
        ([ended(0, 0), ended(1, 0), ended(2, 0)], None),
        ([ended(0, 3, 9), ended(1, 3, 5), ended(2, 0)], ("exit", 1)),
        ([ended(0, 3), ended(1, 3, 5), ended(2, 0)], ("exit", 1)),  # when rank 0 ended is unknown
        ([ended(0, 3), ended(1, 4), ended(2, 0)], ("exit", 0)),
        ([ended(0, -9), ended(1, None), ended(2, 0)], None),
        ([ended(0, 2), ended(1, 2), ended(2, 2)], ("usage", 0)),
        ([ended(0, 2), ended(1, 2), ended(2, 0)], ("exit", 0)),
        ([ended(0, 3), ended(1, 3), ended(2, 3)], ("exit", 0)),
        ([ended(0, 1, state=None), ended(1, 0), ended(2, 0)], None),
        ([ended(0, 1), ended(1, 0), ended(2, 0)], ("exit", 0)),
        ([ended(0, 3, error=failed("ValueError", "x")), ended(1, 0), ended(2, 0)], None),
        ([ended(0, 3, error=failed("SystemExit", "3")), ended(1, 0), ended(2, 0)], ("exit", 0)),
    ],
)
def test_first_rank_with_an_exit_code_of_its_own_is_named(
    ranks: list[RankEvidence], found: tuple[str, int] | None
) -> None:
    diagnosis = exited(evidence(*ranks, hung=False))
    assert (diagnosis and (diagnosis.fault, diagnosis.rank)) == found
    assert exited(evidence(*ranks, hung=True)) is None
    if ranks[0].state is None:
        assert exited(evidence(*ranks, hung=False), at_all=True) is not None


# ---- dumps -----------------------------------------------------------------------------------------------------------


def entry(seq: int, **changes: Any) -> dict[str, Any]:
    usual = {"process_group": ["0", "default_pg"], "profiling_name": "nccl:all_reduce", "collective_seq_id": seq}
    return {**usual, "state": "completed", "input_sizes": [[2, 3]], "input_dtypes": ["Float"], **changes}


def read(*entries: Any, **fields: Any) -> RankEvidence:
    found = Evidence("here", {})
    config = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}}
    assert add_dump(found, {"pg_config": config, "entries": list(entries), **fields}, "dump_rank_1", 1)
    return found.ranks[1]


@pytest.mark.parametrize(
    ("changes", "seq", "done", "p2p"),
    [
        ({}, 4, True, False),
        ({"state": "started"}, 4, False, False),
        ({"state": "scheduled", "retired": True}, 4, True, False),
        ({"is_p2p": True, "p2p_seq_id": 7, "profiling_name": "nccl:send 1->0"}, 7, True, True),
        ({"is_p2p": False, "p2p_seq_id": 7}, 4, True, False),
    ],
)
def test_entry_of_a_dump_is_a_call(changes: dict[str, Any], seq: int, done: bool, p2p: bool) -> None:
    (call,) = read(entry(4, **changes)).calls
    assert (call.seq, call.done, call.p2p, call.sizes, call.group.members) == (seq, done, p2p, ((2, 3),), (0, 1))


def test_entries_that_are_none_are_left_out() -> None:
    own = read(entry(1, profiling_name=None), entry(2, collective_seq_id="x"), "no entry", entry(3))
    assert ([call.seq for call in own.calls], own.has_calls, own.sources) == ([3], True, ["dump_rank_1"])


def test_counts_of_a_dump_are_not_negative() -> None:
    status = {"0": {"last_enqueued_collective": 9, "last_completed_collective": -1}, "x": 3}
    own = read(pg_status=status)
    assert (list(own.enqueued.values()), list(own.completed.values())) == ([9], [0])


def test_dump_without_a_rank_is_a_problem() -> None:
    found = Evidence("here", {})
    assert not add_dump(found, {"entries": []}, "dump", None)
    assert found.problems == ["dump: a flight-recorder dump, but its name has no rank: rename it to …_rank_N"]


@pytest.mark.parametrize(
    ("config", "members"),
    [
        ({"0": {"ranks": "[0, 1]"}}, {"0": (0, 1)}),
        ({"0": {"ranks": [0, 1]}}, {"0": (0, 1)}),
        ({"0": {"ranks": []}}, {}),
        ({"0": {"ranks": 3}, "1": 4}, {}),
        ({"0": {"ranks": [0, -1, "x", 2]}}, {"0": (0, 2)}),
        (None, {}),
    ],
)
def test_members_of_groups_are_read(config: Any, members: dict[str, tuple[int, ...]]) -> None:
    assert flight_recorder._members(config) == members


# ---- progress in a log -----------------------------------------------------------------------------------------------


def line(text: str, moment: str | None = None, file: str = "log") -> Any:
    return SimpleNamespace(text=text, moment=moment, file=file)


@pytest.mark.parametrize(
    ("texts", "last_step"),
    [
        (["step 500/500"], "500 of 500"),
        (["Iteration: 3 / 8"], ""),
        (["epoch [2/2]"], "2 of 2"),
        (["step 1/1"], ""),
        (["step 2/2", "step 1/2"], ""),
        (["step 2/2", "no step"], "2 of 2"),
        (["100%|###| 20/20 [01:40<00:00, 5.0s/it]"], "20 of 20"),
        (["files 20/20"], ""),
    ],
)
def test_last_step_of_a_log_is_one_that_reached_its_number(texts: list[str], last_step: str) -> None:
    progress = Progress()
    for text in texts:
        progress.read(line(text), None)
    assert progress.last_step == last_step


@pytest.mark.parametrize(
    ("ended", "silence_s"),
    [("03-01 00:09:49", 0.0), ("03-01 00:09:50", 590.0), ("03-01 00:20:00", 1200.0), ("03-02 00:00:00", 86400.0)],
)
def test_silence_of_ten_minutes_before_an_abort_counts(ended: str, silence_s: float) -> None:
    progress = Progress()
    progress.read(line("step 3/9", "03-01 00:00:00"), None)
    progress.abort("log", ended)
    progress.abort("other", ended)
    assert progress.silence_s == silence_s
    progress.abort("log", "03-09 00:00:00")
    assert progress.silence_s == (silence_s or 8 * 86400.0)  # the first abort counts


def test_bar_tells_the_time_of_its_last_line() -> None:
    progress = Progress()
    progress.read(line("| 1/9 [00:10<01:00, 1s/it]"), "03-01 00:00:10")
    progress.read(line("| 2/9 [1:00:20<01:00, 1s/it]"), "03-01 00:00:10")
    progress.abort("log", "03-01 01:30:20")
    assert progress.silence_s == 1800.0
    unknown = Progress()
    unknown.read(line("| 2/9 [00:20<01:00, 1s/it]"), None)
    unknown.abort("log", "03-01 01:30:20")
    unknown.read(line("step 1/9", "13-41 00:00:00"), None)
    unknown.abort("log", "03-01 01:30:20")
    assert unknown.silence_s == 0.0


def test_rank_that_was_seen_at_a_line_says_so() -> None:
    diagnosis = exited(evidence(ended(0, 3, line=at(14)), ended(1, 0), ended(2, 0), hung=False))
    assert diagnosis is not None
    assert "train.py:14 (main)" in diagnosis.finding
