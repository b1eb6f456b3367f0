"""What a rank waits for outside of torch.distributed, and roots that ranks compute for themselves."""

from __future__ import annotations

from pathlib import Path

import pytest
from seen import changed, evidence, rank

from frog.core.runs.observed import CodeLine
from frog.observe.diagnose.diagnosis import Diagnosis
from frog.observe.diagnose.program import code_blocks
from frog.observe.diagnose.program.evidence import RankEvidence
from frog.observe.diagnose.program.graph_cuts import graph_cuts
from frog.observe.diagnose.program.program_diagnosis import diagnose_program
from frog.observe.diagnose.program.root_rules import other_root

PROGRAM = """\
def work(store, improved):
    if improved:
        store.set(key, value)
    while not ready.exists():
        time.sleep(0.1)
    {line}
"""


@pytest.fixture(autouse=True)
def files_are_read_again() -> None:
    code_blocks.source_of.cache_clear()


def blocked(folder: Path, *frames: str, line: str = "pass", number: int = 6) -> Diagnosis:
    """Diagnose rank 1 at a line of `work`, while rank 0 waits. frames: inside of that line, innermost first."""
    script = folder / "train.py"
    script.write_text(PROGRAM.format(line=line))
    here = CodeLine(file=str(script), line=number, function="work")
    inside = [
        CodeLine(file=f"/usr/lib/python3.12/{frame.partition(':')[0]}", line=7, function=frame.partition(":")[2])
        for frame in frames
    ]
    ranks = [
        rank(0, ("all_reduce", 8, 4), ("all_reduce", 8, 6), state="running", pending=1),
        rank(1, ("all_reduce", 8, 4), state="running", cpu_busy=False, line=here, stack=[*inside, here]),
    ]
    return diagnose_program(evidence(*ranks))


@pytest.mark.parametrize(
    ("frames", "words"),
    [
        (
            ("multiprocessing/popen_fork.py:poll", "multiprocessing/process.py:join"),
            "it waits for a child process to end",
        ),
        (("selectors.py:select", "subprocess.py:communicate", "subprocess.py:run"), "for a program that it started"),
        (("threading.py:wait", "queue.py:get"), "it waits for an item of a queue"),
        (("threading.py:wait", "queue.py:put"), "it waits for room in a queue"),
        (("threading.py:wait", "concurrent/futures/_base.py:result"), "for the result of a task in a pool"),
        (("threading.py:_wait_for_tstate_lock", "threading.py:join"), "it waits for a thread to end"),
        (("threading.py:wait", "threading.py:wait"), "for an event or a condition"),
        (("socket.py:readinto", "http/client.py:_read_status"), "it waits for an answer over the network"),
    ],
    ids=lambda value: value[-1] if isinstance(value, tuple) else "",
)
def test_frames_of_pythons_library_tell_what_a_rank_waits_for(
    tmp_path: Path, frames: tuple[str, ...], words: str
) -> None:
    found = blocked(tmp_path, *frames, line="child.go()")
    assert (found.fault, found.rank, found.line, found.certain) == ("blocked", 1, "train.py:6 (work)", False)
    assert words in found.finding
    assert "(`child.go()`)" in found.finding


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("with LOCK: pass", "it waits for a lock (`with LOCK: pass`)"),
        ("fcntl.flock(file, fcntl.LOCK_EX)", "it waits for a lock"),
        ("child.join()", "it waits for a child process to end"),
        ("line = stream.readline()", "it waits for output of a program that it started, or for the end of a line"),
        ("for line in child.stdout: pass", "it waits for output of a program that it started"),
        ("self.connection.recv(16)", "it waits for an answer over the network"),
        ("open_stream(path)", ": its line is `open_stream(path)`"),
    ],
)
def test_text_of_the_line_tells_what_a_call_into_compiled_code_waits_for(tmp_path: Path, line: str, words: str) -> None:
    assert words in blocked(tmp_path, line=line).finding


def test_wait_for_a_key_names_the_lines_that_set_keys_and_their_tests(tmp_path: Path) -> None:
    found = blocked(tmp_path, line="store.get(name)")
    assert "it waits for a key of the store (`store.get(name)`)" in found.finding
    assert "keys are set in line 3, under `if improved:` in line 2" in found.finding


def test_loop_that_waits_for_a_file_is_named(tmp_path: Path) -> None:
    found = blocked(tmp_path, number=5)
    assert "it repeats the loop `while not ready.exists():` in line 4 (`time.sleep(0.1)`)" in found.finding


POLLER = """\
def count(path):
    return int(path.read_text() or 0)
def evict(path):
    while count(path) > 0:
        time.sleep(0.02)
def serve(requests):
    while True:
        train(requests)
        time.sleep(0)
"""


@pytest.mark.parametrize(
    ("lines", "often", "polls"),
    [
        ([(5, "evict")], "", True),
        ([(2, "count"), (4, "evict")], "poller.py:5", True),
        ([(2, "count"), (4, "evict")], "poller.py:2", False),
        ([(8, "serve")], "poller.py:8", False),
    ],
    ids=["asleep", "looks", "computes to look", "works in a loop that sleeps"],
)
def test_rank_that_polls_with_much_processor_time_is_no_proof_of_work(
    tmp_path: Path, lines: list[tuple[int, str]], often: str, polls: bool
) -> None:
    (tmp_path / "poller.py").write_text(POLLER)
    stack = [CodeLine(file=str(tmp_path / "poller.py"), line=line, function=name) for line, name in lines]
    busy = rank(1, ("all_reduce", 8, 4), state="running", cpu_busy=True, line=stack[0], stack=stack, often=often)
    waiting = rank(0, ("all_reduce", 8, 4), ("all_reduce", 8, 6), state="running", pending=1)
    found = diagnose_program(evidence(waiting, busy))
    assert (found.fault, found.rank, found.certain) == ("busy", 1, not polls)
    assert ("it repeats the loop `while count(path) > 0:` in line 4" in found.finding) == polls


@pytest.mark.parametrize(("other", "hung", "busy"), [(5, True, False), (6, False, False), (6, True, True)])
def test_ranks_that_all_wait_outside_of_collectives_are_named(
    tmp_path: Path, other: int, hung: bool, busy: bool
) -> None:
    """Ranks that meet through files, under names that differ."""
    script = tmp_path / "train.py"
    script.write_text(PROGRAM.format(line="lock.acquire()"))
    ranks = []
    for number, line in enumerate((5, other)):
        place = CodeLine(file=str(script), line=line, function="work")
        one = rank(number, ("all_reduce", 8, 4), state="running", cpu_busy=busy and number == 1, line=place)
        one.stack = [place]
        ranks.append(one)
    found = diagnose_program(evidence(*ranks, hung=hung))
    if busy:
        assert "none computed" not in found.finding
        return
    loop = "it repeats the loop `while not ready.exists():` in line 4 (`time.sleep(0.1)`)"
    odd = 0 if other == 5 else 1
    assert (found.fault, found.rank, found.certain, found.line) == ("blocked", odd, False, f"train.py:{other} (work)")
    assert found.outcome == ("failed" if hung else "unknown")
    first = "ranks 0 and 1 were" if other == 5 else "rank 0 was"
    assert f"no rank waits in a collective, and none computed: {first} at train.py:5 (work): {loop}" in found.finding
    assert ("it waits for a lock" in found.finding) == (other == 6)
    assert ("a name with a random number" in found.advice) == (other == 5)


def inside(folder: Path, *lines: str, host: tuple[str, str] = ("a", "a"), op: str = "broadcast") -> Diagnosis:
    """Diagnose two ranks, each at its own line of a file, that all wait in one collective."""
    script = folder / "train.py"
    script.write_text("\n".join(lines) + "\n")
    ranks: list[RankEvidence] = []
    for number in (0, 1):
        one = rank(number, ("all_reduce", 8, 1), (op, 64, 1), pending=1, host=host[number], state="running")
        place = CodeLine(file=str(script), line=min(number + 1, len(lines)), function="<module>")
        one.calls = [changed(call, line=place, callers=(place,)) for call in one.calls]
        ranks.append(one)
    return diagnose_program(evidence(*ranks))


def test_root_that_each_rank_computes_may_differ(tmp_path: Path) -> None:
    found = inside(tmp_path, "dist.broadcast(weight, src=owner(rank))")
    assert (found.fault, found.rank, found.line, found.certain) == ("root", 0, "train.py:1", False)
    assert "each rank computes its root (src or dst) as `owner(rank)`" in found.finding


def test_roots_of_two_lines_are_compared(tmp_path: Path) -> None:
    found = inside(tmp_path, "dist.broadcast(x, 1)", "dist.broadcast(x, 0)")
    assert (found.fault, found.certain) == ("root", False)
    assert "the root (src or dst) is rank 1 on rank 0 and rank 0 on rank 1" in found.finding


@pytest.mark.parametrize(
    ("lines", "fields"),
    [
        (("dist.broadcast(x, src=0)",), {}),
        (("dist.broadcast(x, 0)", "dist.broadcast(y, 0)"), {}),
        (("dist.broadcast(x, src=owner(rank))",), {"host": ("a", "b")}),
        (("dist.all_reduce(x)",), {"op": "all_reduce"}),
        (("model = DDP(model)",), {}),
    ],
    ids=["one constant", "two lines", "two hosts", "no root", "library"],
)
def test_roots_that_are_equal_or_unknown_leave_the_network_as_the_cause(
    tmp_path: Path, lines: tuple[str, ...], fields: dict[str, object]
) -> None:
    assert inside(tmp_path, *lines, **fields).fault == "network"  # type: ignore[arg-type]


def test_roots_that_the_ranks_named_are_proof(tmp_path: Path) -> None:
    found = named(tmp_path, {0: 1, 1: 1, 2: 0})
    assert (found.fault, found.rank, found.certain, found.line) == ("root", 2, True, "train.py:1")
    assert "ranks 0 and 1 name rank 1 and rank 2 names rank 0 as its root (src or dst)" in found.finding


def test_equal_roots_that_the_ranks_named_outweigh_what_the_source_may_mean(tmp_path: Path) -> None:
    assert named(tmp_path, {0: 0, 1: 0, 2: 0}).fault == "network"


@pytest.mark.parametrize(("host", "fault"), [("a", "root"), ("b", "network")])
def test_root_that_completed_the_call_and_sent_nothing_probably_named_another(
    tmp_path: Path, host: str, fault: str
) -> None:
    """Unless it has another host: a network may have lost what it sent."""
    found = named(tmp_path, {1: 2}, host=host)
    assert (found.fault, found.certain) == (fault, False)
    assert found.rank == (2 if fault == "root" else 1)


def test_roots_of_different_collectives_are_not_compared() -> None:
    ranks = [rank(number, (op, 8, 1), pending=1) for number, op in enumerate(("broadcast", "reduce"))]
    for number, one in enumerate(ranks):
        one.root = number
    assert other_root(evidence(*ranks)) is None


def named(folder: Path, roots: dict[int, int], host: str = "a") -> Diagnosis:
    """Diagnose three ranks at one line; those with a root wait in a broadcast, the others in the one after it."""
    script = folder / "train.py"
    script.write_text("dist.broadcast(x, src=owner(rank))\n")
    ranks: list[RankEvidence] = []
    for number in range(3):
        calls = [("broadcast", 64, 1)] if number in roots else [("broadcast", 64, 1), ("all_reduce", 64, 1)]
        place_of = "a" if number < 2 else host
        one = rank(number, ("all_reduce", 8, 1), *calls, pending=1, host=place_of, state="running")
        place = CodeLine(file=str(script), line=1, function="<module>")
        one.calls = [changed(call, line=place, callers=(place,)) for call in one.calls]
        one.root = roots.get(number)
        ranks.append(one)
    return diagnose_program(evidence(*ranks))


def test_source_that_nests_deeply_names_no_root_and_no_cut(tmp_path: Path) -> None:
    terms = " + ".join(["rank"] * 980)
    assert inside(tmp_path, f"dist.broadcast(x, src={terms})").fault in ("network", "root")
    script = tmp_path / "train.py"
    script.write_text(f"if {terms}:\n    x = torch.zeros({terms})\n")
    assert graph_cuts([CodeLine(file=str(script), line=2, function="<module>")]) == ""
