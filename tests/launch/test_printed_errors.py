"""The rank that failed first, and its error, from the output of all ranks."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from frog.core.errors import LaunchError
from frog.core.runs.folder import RunFolder
from frog.core.runs.outcome import Blame, Failure, world_error
from frog.launch.printed_errors import read_printed_error, with_errors

S = 1_000_000_000


def traceback(error: str, line: int = 3) -> str:
    return f'Traceback (most recent call last):\n  File "my.py", line {line}, in <module>\n    step()\n{error}'


BAD = traceback("ValueError: bad batch")
CLOSED = traceback(
    "RuntimeError: [../gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:30090. GLHF!", 7
)
REMOTE = traceback(
    "torch.distributed.DistBackendError: NCCL error in: ../NCCL.cpp:3369, remote process exited or there was "
    "a network error, NCCL version 2.27.3\nncclRemoteError: A call failed, a network error.\nLast error:\n"
)
WATCHDOG = (
    "terminate called after throwing an instance of 'c10::DistBackendError'\n"
    "  what():  [PG ID 0 Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE)"
)
MEMORY = traceback("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has 1.00 GiB free.")
TEARDOWN = "training finished\nterminate called without an active exception"


def lines(text: str, at_s: float = 100.0) -> list[tuple[int, str]]:
    return [(round(at_s * S), line) for line in text.split("\n")]


def failed(rank: int, code: int = 1, at_s: float = 100.5) -> Failure:
    event = {"attempt": 0, "rank": rank, "pid": 1000 + rank, "code": code, "time_s": int(at_s), "error": None}
    return {**event, "traceback": None, "unix_ns": round(at_s * S)}


def explained(
    folder: RunFolder | None = None, left: tuple[int, ...] = (), **said: tuple[str, int, float]
) -> LaunchError:
    """Return the error of a world: for each rank its output, its exit code, and the time of the output."""
    kept = {(0, int(name[4:])): lines(text, at_s) for name, (text, _, at_s) in said.items()}
    failures = [
        {**failed(int(name[4:]), code, at_s + 0.1), "left": list(left)} for name, (_, code, at_s) in said.items()
    ]
    return world_error(with_errors(failures, kept, folder), {}, [1], folder)


@pytest.mark.parametrize(
    ("text", "kind", "message", "blame"),
    [
        (BAD, "ValueError", "bad batch", Blame.CAUSE),
        (MEMORY, "OutOfMemoryError", "CUDA out of memory. Tried", Blame.CAUSE),
        (CLOSED, "RuntimeError", "[../gloo", Blame.LOST_PEER),
        (REMOTE, "DistBackendError", "NCCL error in", Blame.LOST_PEER),
        (WATCHDOG, "c10::DistBackendError", "[PG ID 0 Rank 1] Watchdog", Blame.WAITED),
        (TEARDOWN, "terminate", "terminate called without", Blame.TEARDOWN),
        ("Fatal Python error: Segmentation fault\n\nThread 0x7", "Fatal Python error", "Segmentation", Blame.CAUSE),
        (traceback("KeyError"), "KeyError", "", Blame.CAUSE),
    ],
)
def test_error_is_found_in_the_output(text: str, kind: str, message: str, blame: Blame) -> None:
    error = read_printed_error(lines(f"step 1\n{text}"))
    assert error is not None
    assert (error.type, error.blame) == (kind, blame)
    assert error.message.startswith(message)
    assert error.text.splitlines()[0] in text


def test_cause_of_a_chain_is_its_first_exception() -> None:
    chain = f"{BAD}\n\nDuring handling of the above exception, another exception occurred:\n\n{CLOSED}"
    error = read_printed_error(lines(chain))
    assert error is not None
    assert (error.type, error.blame, error.text) == ("ValueError", Blame.CAUSE, chain)


def test_abort_after_an_exception_does_not_hide_it() -> None:
    error = read_printed_error(lines(f"{BAD}\nterminate called without an active exception"))
    assert error is not None
    assert (error.text, error.blame) == (BAD, Blame.CAUSE)
    error = explained(rank1=(f"{BAD}\nterminate called without an active exception", -6, 100.0))
    assert error.what == f"rank 1 (pid 1001) was killed by SIGABRT\n{BAD}"
    handled = read_printed_error([*lines(BAD, 90.0), *lines(f"retrying\n{TEARDOWN}")])
    assert handled is not None
    assert handled.blame is Blame.TEARDOWN


def test_prefix_of_torch_is_removed_and_an_ignored_exception_is_skipped() -> None:
    said = "\n".join(f"[rank3]: {line}" for line in BAD.split("\n"))
    error = read_printed_error(lines(f"{said}\nException ignored in: <function f>\n{CLOSED}"))
    assert error is not None
    assert error.text == BAD


def test_output_without_an_error_has_no_words() -> None:
    assert read_printed_error(lines("step 1\nstep 2")) is None
    assert read_printed_error([]) is None


@pytest.mark.parametrize("victim", [CLOSED, REMOTE, WATCHDOG])
def test_rank_that_lost_its_peer_is_counted_and_not_printed(victim: str) -> None:
    error = explained(rank0=(victim, 1, 99.0), rank2=(BAD, 1, 100.0), rank3=(victim, -15, 101.0))
    assert error.what == f"rank 2 (pid 1002) ended with exit code 1\n{BAD}\n2 other ranks failed because of it"


def test_earlier_of_two_causes_is_printed() -> None:
    error = explained(rank0=(BAD, 1, 100.2), rank1=(MEMORY, 1, 100.1))
    assert error.what == f"rank 1 (pid 1001) ended with exit code 1\n{MEMORY}\n1 other rank failed too"


def test_ranks_with_the_same_error_are_counted() -> None:
    error = explained(rank0=(BAD, 1, 100.2), rank1=(BAD, 1, 100.1), rank2=(MEMORY, 1, 100.3), rank3=(CLOSED, 1, 100.4))
    assert error.what.splitlines()[-3:] == [
        "1 other rank failed with the same error",
        "1 other rank failed because of it",
        "1 other rank failed too",
    ]


def test_killed_rank_is_the_cause_although_it_says_nothing() -> None:
    error = explained(rank0=(CLOSED, 1, 100.0), rank1=("step 1\nstep 2", -9, 100.2))
    first, *last, others = error.what.splitlines()
    assert (first, others) == ("rank 1 (pid 1001) was killed by SIGKILL", "1 other rank failed because of it")
    assert last == ["its last lines:", "  step 1", "  step 2"]
    assert error.exit_code == 137


def test_rank_that_ended_early_is_named_when_others_lose_it() -> None:
    error = explained(left=(1,), rank0=(CLOSED, 1, 100.0), rank2=(CLOSED, -15, 100.0))
    assert "rank 1 had ended without an error while this rank still waited for others" in error.what


@pytest.mark.parametrize(("state", "said"), [("ended", "had ended"), (None, "had probably ended"), ("running", None)])
def test_abort_after_the_program_is_explained(state: str | None, said: str | None, tmp_path: Path) -> None:
    if state is not None:
        path = tmp_path / "observed" / "attempt_0" / "rank_1" / "status.json"
        path.parent.mkdir(parents=True)
        place = {"rank": 1, "local_rank": 1, "node_rank": 0, "world_size": 4, "attempt": 0, "host": "pond", "pid": 7}
        times = {"started_unix_ns": 1, "unix_ns": 1, "mono_ns": 1, "cpu_s": 1.0, "rss_bytes": 1}
        path.write_text(json.dumps({"format": 1, **place, **times, "state": state}))
    error = explained(RunFolder(tmp_path), rank1=(TEARDOWN, -6, 100.0), rank0=("", -15, 100.0))
    assert (f"its program {said}" in error.what) if said else ("its program" not in error.what)
    assert error.exit_code == 134


def test_error_that_the_observer_wrote_is_preferred(tmp_path: Path) -> None:
    path = tmp_path / "observed" / "attempt_0" / "rank_1" / "error.json"
    path.parent.mkdir(parents=True)
    told = {"format": 1, "rank": 1, "pid": 7, "unix_ns": 99 * S, "type": "ValueError", "message": "bad batch"}
    path.write_text(json.dumps({**told, "traceback": BAD}))
    error = explained(RunFolder(tmp_path), rank0=(MEMORY, 1, 99.5), rank1=("", 1, 100.0))
    assert error.what.startswith(f"rank 1 (pid 1001) ended with exit code 1\n{BAD}")
    assert error.hint == f"frog diagnose {tmp_path}"


def test_any_output_is_read_without_an_error() -> None:
    pieces = [*BAD.split("\n"), *CLOSED.split("\n"), *WATCHDOG.split("\n"), "", " ", "\0", "Fatal Python error: x"]
    pieces += ["During handling of the above exception, another exception occurred:", "Exception ignored in: x"]
    random_ = random.Random(26)
    for _ in range(2_000):
        text = "\n".join(random_.choices(pieces, k=random_.randrange(12)))
        error = read_printed_error(lines(text))
        assert error is None or error.text


# ---- where a message ends, and which lines are shown -----------------------------------------------------------------


def at(*moments: tuple[float, str]) -> list[tuple[int, str]]:
    return [(round(moment * S), text) for moment, text in moments]


HEAD = [(1.0, "Traceback (most recent call last):"), (1.0, '  File "my.py", line 3'), (1.0, "ValueError: bad")]


@pytest.mark.parametrize(
    ("more", "shown"),
    [
        ([(1.2, "second line")], 1),  # 200 ms later is together
        ([(1.201, "another message")], 0),
        ([(1.1, "second"), (1.3, "third"), (1.6, "too late")], 2),
        ([(1.0, "second"), (1.0, "[rank1]:W0101 a warning")], 1),
        ([(1.0, "second"), (1.0, "E0101 a log line")], 1),
        ([(1.0, "terminate called after throwing")], 0),
    ],
)
def test_message_ends_with_a_pause_or_with_another_message(more: list[tuple[float, str]], shown: int) -> None:
    error = read_printed_error([*at(*HEAD, *more)])
    assert error is not None
    if more[0][1].startswith("terminate"):
        assert error.type == "terminate"
    else:
        assert error.text.splitlines() == [text for _, text in [*HEAD, *more[:shown]]]
        assert error.message == "\n".join(["bad", *(text for _, text in more[:shown])])


@pytest.mark.parametrize(("more", "shown"), [(29, 29), (30, 29), (100, 29)])
def test_message_has_at_most_thirty_lines(more: int, shown: int) -> None:
    error = read_printed_error(at(*HEAD, *((1.0, f"line {number}") for number in range(more))))
    assert error is not None
    assert len(error.message.splitlines()) == 1 + shown


@pytest.mark.parametrize(("frames", "shown"), [(58, 60), (59, 60), (100, 60)])
def test_long_traceback_is_shown_from_its_begin_and_with_its_last_line(frames: int, shown: int) -> None:
    text = "\n".join([HEAD[0][1], *(f"  frame {number}" for number in range(frames)), "ValueError: bad"])
    error = read_printed_error(lines(text))
    assert error is not None
    found = error.text.splitlines()
    assert (len(found), found[-1]) == (shown, "ValueError: bad")
    assert found[-2] == ("  frame 57" if frames == 58 else "...")
    assert found[57] == "  frame 56"


def test_kind_of_an_error_has_no_module_and_its_time_is_that_of_its_first_line() -> None:
    error = read_printed_error(at((3.0, "before"), (4.0, HEAD[0][1]), (4.1, "  x"), (4.2, "a.b.MyError: no: more")))
    assert error is not None
    assert (error.type, error.message, error.unix_ns) == ("MyError", "no: more", 4 * S)


@pytest.mark.parametrize(
    ("text", "code", "blame", "has_error"),
    [
        (BAD, 1, Blame.CAUSE, True),
        (BAD, -15, Blame.STOPPED, False),
        (BAD, -9, Blame.CAUSE, False),
        (CLOSED, 1, Blame.LOST_PEER, True),
        (CLOSED, -9, Blame.CAUSE, False),
        (CLOSED, -15, Blame.STOPPED, False),
        (WATCHDOG, -6, Blame.WAITED, True),
        (TEARDOWN, -6, Blame.TEARDOWN, True),
        (TEARDOWN, -11, Blame.TEARDOWN, True),
        (TEARDOWN, 1, Blame.CAUSE, True),
        ("", 1, Blame.CAUSE, False),
    ],
)
def test_blame_depends_on_the_error_and_on_the_signal(text: str, code: int, blame: Blame, has_error: bool) -> None:
    kept = {(0, 1): lines(text, 99.0)} if text else {}
    (found,) = with_errors([failed(1, code)], kept, None)
    assert found["blame"] is blame
    assert (found["error"] is not None) == has_error
    assert found["time_s"] == (99.0 if has_error else 100.5)
    assert (found["ended"], found["left"]) == (False, [])


def test_last_five_lines_are_shown_without_an_error() -> None:
    said = "\n".join(f"line {number}" for number in range(7))
    (found,) = with_errors([failed(1)], {(0, 1): lines(said)}, None)
    assert found["traceback"].splitlines() == ["its last lines:", *(f"  line {number}" for number in range(2, 7))]
    (silent,) = with_errors([failed(1)], {}, None)
    assert silent["traceback"] is None
    reported = {**failed(1), "error": {"type": "X"}, "traceback": "its own"}
    (kept,) = with_errors([reported], {(0, 1): lines(said)}, None)
    assert (kept["error"], kept["traceback"]) == ({"type": "X"}, "its own")


@pytest.mark.parametrize(("thread", "is_read"), [("MainThread", True), ("Thread-1", False), ("A", False)])
def test_error_of_another_thread_did_not_end_the_program(thread: str, is_read: bool, tmp_path: Path) -> None:
    path = tmp_path / "observed" / "attempt_0" / "rank_1" / "error.json"
    path.parent.mkdir(parents=True)
    told = {"format": 1, "rank": 1, "pid": 7, "unix_ns": 99 * S, "type": "a.ValueError", "message": "bad", "line": None}
    path.write_text(json.dumps({**told, "traceback": f"[rank1]: {BAD}\n", "thread": thread}))
    (found,) = with_errors([failed(1)], {}, RunFolder(tmp_path))
    if is_read:
        fields = {"type": "ValueError", "message": "bad", "hint": None, "unix_ns": 99 * S, "facts": {}}
        assert (found["error"], found["traceback"], found["time_s"]) == (fields, BAD, 99.0)
    else:
        assert found["error"] is None


CHAINS = (
    "During handling of the above exception, another exception occurred:",
    "The above exception was the direct cause of the following exception:",
)


@pytest.mark.parametrize("between", CHAINS)
@pytest.mark.parametrize("gap", ["\n", "\n\n\n"])
def test_first_of_three_exceptions_is_the_cause(between: str, gap: str) -> None:
    chain = f"{gap}{between}{gap}".join([f"{BAD}", f"{CLOSED}", f"{MEMORY}"])
    error = read_printed_error(lines(f"before\n{chain}\n{TEARDOWN.partition('finished')[0]}"))
    assert error is not None
    assert (error.type, error.message, error.blame) == ("ValueError", "bad batch", Blame.CAUSE)
    assert error.text.startswith(BAD)
    assert error.text.count("Traceback") == 3


def test_words_of_a_chain_without_an_exception_above_chain_nothing() -> None:
    for between in CHAINS:
        error = read_printed_error(lines(f"{between}\n\n{BAD}"))
        assert error is not None
        assert error.text == BAD


def test_empty_lines_between_an_exception_and_an_abort_do_not_hide_it() -> None:
    for gap in ("\n", "\n\n", "\n \n"):
        error = read_printed_error(lines(f"{BAD}{gap}terminate called without an active exception"))
        assert error is not None
        assert (error.type, error.text) == ("ValueError", BAD)
        error = read_printed_error(lines(f"{BAD}\nhandled{gap}terminate called without an active exception"))
        assert error is not None
        assert error.blame in (Blame.TEARDOWN, Blame.CAUSE)


@pytest.mark.parametrize(
    ("first", "kind", "most"),
    [
        ("terminate called after throwing an instance of 'std::bad_alloc'", "std::bad_alloc", 30),
        ("Fatal Python error: Aborted", "Fatal Python error", 60),
    ],
)
def test_text_of_a_crash_is_limited(first: str, kind: str, most: int) -> None:
    for more in (0, most - 1, most, 200):
        said = "\n".join(["step 1", first, *(f"  line {number}" for number in range(more))])
        error = read_printed_error(lines(said))
        assert error is not None
        shown = error.text.splitlines()
        assert (error.type, shown[0], len(shown)) == (kind, first, min(most, 1 + more))
    named = read_printed_error(lines(f"{first}\n  what():  no room  "))
    assert named is not None
    assert named.message == ("no room" if most == 30 else "Aborted")


def test_ignored_exception_is_skipped_and_the_one_above_it_is_found() -> None:
    said = f"{BAD}\nException ignored in: <function f>\n{MEMORY}"
    error = read_printed_error(lines(said))
    assert error is not None
    assert (error.type, error.text) == ("ValueError", BAD)
    assert read_printed_error(lines(f"Exception ignored in: <function f>\n{MEMORY}")) is None
