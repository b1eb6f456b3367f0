"""Lose a rank at each moment of an all-reduce, on a simulated clock; then kill a real process."""

import random
import sys
from typing import Any, NoReturn

import torch
from ranks import BASE, inputs_of

from frog.learn.grader.grade import Grade
from frog.learn.grader.words import count

Case = dict[str, Any]
TIMEOUT_S = 8.0
"""In seconds of a simulated clock."""
MOST = 1.5
DRIVER = '''
import json, os, pickle, select, signal, socket, struct, sys, time

import torch
from lost import Alive, Data, Lost, PeerLost, all_reduce

size, lost, at, numel, timeout_s = json.loads(sys.argv[1])
HEAD = struct.Struct("!Q")


class Peers:
    """Connections to all other ranks over TCP. Frames carry their length."""

    def __init__(self, rank, socks):
        self.rank, self.size, self.socks, self.calls = rank, size, socks, 0
        self.data = {peer: bytearray() for peer in socks}
        self.closed = set()

    def call(self):
        self.calls += 1
        if self.rank == lost and self.calls > at:
            os.kill(os.getpid(), signal.SIGKILL)

    def send(self, to, frame):
        self.call()
        body = pickle.dumps(frame)
        try:
            self.socks[to].sendall(HEAD.pack(len(body)) + body)
        except OSError as error:
            raise ConnectionError(str(error)) from None

    def receive(self, source, timeout_s):
        self.call()
        end_s, data = time.monotonic() + timeout_s, self.data[source]
        while True:
            if len(data) >= HEAD.size and len(data) >= HEAD.size + HEAD.unpack_from(data)[0]:
                end = HEAD.size + HEAD.unpack_from(data)[0]
                body = bytes(data[HEAD.size : end])
                del data[:end]
                return pickle.loads(body)
            if source in self.closed:
                raise ConnectionError("closed")
            if not select.select([self.socks[source]], [], [], max(0.0, end_s - time.monotonic()))[0]:
                raise TimeoutError
            try:
                part = self.socks[source].recv(65536)
            except OSError:
                part = b""
            data += part
            if not part:
                self.closed.add(source)


def be(rank, socks):
    values = torch.full((numel,), 8**rank, dtype=torch.int64)
    try:
        all_reduce(values, Peers(rank, socks), timeout_s)
        how = ["returned", None]
    except PeerLost as error:
        how = ["lost", error.rank]
    except Exception as error:
        how = [type(error).__name__, None]
    with open(f"result.{rank}", "w") as file:
        file.write(json.dumps([*how, sorted(set(values.tolist()))]))


socks = [{} for _ in range(size)]
for a in range(size):
    for b in range(a + 1, size):
        listener = socket.create_server(("127.0.0.1", 0))
        socks[a][b] = socket.create_connection(listener.getsockname())
        socks[b][a], _ = listener.accept()
        listener.close()
children = []
for rank in range(size):
    if not (child := os.fork()):
        for other in range(size):
            for sock in socks[other].values() if other != rank else ():
                sock.close()
        try:
            be(rank, socks[rank])
        finally:
            os._exit(0)
    children.append(child)
for ends in socks:
    for sock in ends.values():
        sock.close()
for child in children:
    os.waitpid(child, 0)
'''


def check(grade: Grade) -> None:
    draw = random.Random(grade.seed)
    runs = draw_runs(draw)
    found = grade.call({"runs": runs}, seconds=6.0).values[0]
    pairs = list(zip(runs, found, strict=True))
    for case, seen in pairs:
        check_run(grade, case, seen)
    kill_one(grade, draw)
    frozen = [seen["ranks"].values() for case, seen in pairs if case["kind"] == "freezes"]
    times = [one["at_s"] for ranks in frozen for one in ranks if "lost" in one]
    lost = sum(case["kind"] in ("ends", "freezes") for case in runs)
    grade.measured("ranks lost, by their end or frozen", f"{lost}, each named by every remaining rank without a sum")
    grade.measured("a frozen rank is reported after", f"{max(times) / TIMEOUT_S:.2f} timeout_s at most")
    grade.measured("over TCP, a process of 4 killed", "the others named it")
    named = [one for one in found[0]["ranks"].values() if "lost" in one]
    grade.predicted("named", len(named))


def draw_runs(draw: random.Random) -> list[Case]:
    """Draw worlds and the call before which a rank is lost. A rank makes 4 (n - 1) calls: sends and receives."""
    runs = [make(draw, 5, "ends", 3, at=0)]
    runs += [make(draw, size, "none", 0) for size in (3, 1)]
    for size in (3, 4, 2, 5):
        late = draw.randrange(size)
        runs += [make(draw, size, "late", late)]
        calls = 4 * (size - 1)
        for kind in ("ends", "freezes"):
            for at in (draw.randrange(2), draw.randrange(calls // 2), draw.randrange(calls)):
                runs.append(make(draw, size, kind, draw.randrange(size), at=at))
    for size, at in ((4, 2), (5, 2), (5, 4)):  # the left neighbor of the lost rank runs first, the right one last
        lost = draw.randrange(size)
        about = {"quick": (lost - 1) % size, "slow": (lost + 1) % size}
        runs += [make(draw, size, "ends", lost, at=at) | about for _ in range(3)]
    return runs


def make(draw: random.Random, size: int, kind: str, lost: int, at: int = 0) -> Case:
    numel, seed = draw.choice([1, 4, 7, 11, 13]), draw.randrange(1 << 30)
    about = {"timeout_s": TIMEOUT_S, "late_s": 0.8 * TIMEOUT_S, "quick": None, "slow": None}
    return {"size": size, "kind": kind, "lost": lost, "at": at, "numel": numel, "seed": seed, **about}


def told(case: Case) -> str:
    world, rank = f"World of {case['size']}", f"rank {case['lost']}"
    if case["kind"] == "none":
        return f"{world}, no rank is lost"
    if case["kind"] == "late":
        return f"{world}, {rank} calls all_reduce {case['late_s']:.1f} s after the others; timeout_s is {TIMEOUT_S:.0f}"
    does = "ends" if case["kind"] == "ends" else "freezes"
    return f"{world}, {rank} {does} after {count(case['at'], 'call')} of send and receive"


# ---- one run ---------------------------------------------------------------------------------------------------------


def check_run(grade: Grade, case: Case, seen: Case) -> None:
    says, size = told(case), case["size"]
    if seen["stuck"]:
        rank, does = next(iter(seen["does"].items()))
        text = f"{says}: rank {rank} {seen['stuck']}, in {does}; timeout_s is {TIMEOUT_S:.0f}."
        grade.reject("no-deadline" if case["kind"] == "freezes" else "unknown", text)
    for rank, one in sorted(seen["ranks"].items()):
        if "gave up" in one:
            text = f"{says}: {one['at_s']:.0f} s later rank {rank} still waits; timeout_s is {TIMEOUT_S:.0f}."
            grade.reject("no-deadline" if case["kind"] == "freezes" else "unknown", text)
    inputs = inputs_of(size, case["numel"])
    expected = torch.stack(inputs).sum(0)
    rest = [(int(rank), one) for rank, one in sorted(seen["ranks"].items()) if "ended" not in one]
    for rank, one in sorted(rest, key=lambda each: each[1].get("lost") != case["lost"]):  # first those that name it
        if "lost" in one and case["kind"] in ("late", "none"):
            id = "late-is-lost" if one["lost"] == case["lost"] and case["kind"] == "late" else "unknown"
            waits = case["kind"] == "late" and id == "unknown"
            text = f"{says}: rank {rank} reports rank {one['lost']} as lost."
            grade.reject("waiting-is-not-silence" if waits else id, text)
    for rank, one in rest:
        if "error" in one:
            grade.reject("loss-without-a-name", f"{says}: rank {rank} raised {one['error']}.")
    for rank, one in rest:
        if "returned" in one and not torch.equal(seen["values"][rank], expected):
            explain_sum(grade, says, case, seen["values"][rank], rank)
    for rank, one in rest:
        if "lost" in one and one["lost"] != case["lost"]:
            explain_name(grade, says, case, seen, rank, one["lost"])
    for rank, one in rest:
        if "lost" in one and not torch.equal(seen["values"][rank], inputs[rank]):
            changed = int((seen["values"][rank] != inputs[rank]).sum())
            text = f"{says}: rank {rank} raised PeerLost({one['lost']}), and {changed} of its {case['numel']} elements"
            grade.reject("half-a-result", f"{text} {'has' if changed == 1 else 'have'} changed.")
    for rank, one in rest:
        if "lost" in one and one["at_s"] > MOST * TIMEOUT_S + 0.01:
            text = f"{says}: rank {rank} raised PeerLost({one['lost']}) {one['at_s']:.0f} s later"
            grade.reject("deadline-grows", f"{text}; timeout_s is {TIMEOUT_S:.0f}.")


def counted(total: int, size: int) -> str:
    """Say how often each rank counts in a sum."""
    parts = [total // BASE**rank % BASE for rank in range(size)]
    return ", ".join(f"rank {rank} {times} times" for rank, times in enumerate(parts) if times != 1)


def explain_sum(grade: Grade, says: str, case: Case, value: torch.Tensor, rank: int) -> NoReturn:
    right = sum(BASE**other for other in range(case["size"]))
    wrong = next(int(one) for one in value if int(one) != right)
    text = f"{says}: all_reduce returned on rank {rank}; an element contains {counted(wrong, case['size'])}"
    grade.reject("sum-of-the-rest" if case["kind"] in ("ends", "freezes") else "unknown", f"{text}.")


def clue_of(seen: Case, rank: int | str, named: int) -> str:
    """Return how a rank learned that another one is lost; a failed send only if nothing else says so."""
    ways = [how for how, end in seen["clues"].get(str(rank), []) if end == named]
    return next((how for how in ways if how != "send"), "send" if ways else "")


def explain_name(grade: Grade, says: str, case: Case, seen: Case, rank: int, named: int) -> NoReturn:
    """Reject a report of a rank that was not lost."""
    how, text = clue_of(seen, rank, named), f"{says}: rank {rank} reports rank {named}"
    other = seen["ranks"].get(str(named), {})
    ended = f"rank {named} had raised PeerLost({other['lost']}) and ended" if "lost" in other else ""
    if how == "send" and ended:
        grade.reject("send-error-is-proof", f"{text}: its send to that rank failed, since {ended}.")
    if how == "receive" and ended:
        grade.reject("blames-the-messenger", f"{text}: its connection to that rank was closed, since {ended}.")
    if how == "time-out":
        text = f"{text}, which sent nothing for {TIMEOUT_S:.0f} s: it waited for another rank."
        grade.reject("waiting-is-not-silence", text)
    if how == "frame":
        explain_source(grade, text, seen, named)
    if clue_of(seen, rank, case["lost"]) == "frame":
        grade.reject("blames-the-messenger", f"{text}, although the frame that it received says Lost({case['lost']}).")
    grade.reject("unknown", f"{text}.")


def explain_source(grade: Grade, text: str, seen: Case, named: int) -> NoReturn:
    """Reject a wrong report that came from another rank: find the one that began it."""
    for rank, one in seen["ranks"].items():
        how = clue_of(seen, rank, named)
        if one.get("lost") != named or how in ("frame", ""):
            continue
        says = f"{text}, as it heard from rank {rank}"
        if how == "time-out":
            grade.reject("waiting-is-not-silence", f"{says}: there rank {named} had sent nothing, since it waited.")
        id = "send-error-is-proof" if how == "send" else "blames-the-messenger"
        grade.reject(id, f"{says}: there a {how} failed, since rank {named} had raised PeerLost and ended.")
    grade.reject("unknown", f"{text}.")


# ---- real processes --------------------------------------------------------------------------------------------------


def kill_one(grade: Grade, draw: random.Random) -> None:
    """Kill one of four processes with SIGKILL in the middle, over TCP."""
    size, lost, at, numel = 4, draw.randrange(4), draw.randint(1, 4), draw.choice([7, 1001])
    task = f"[{size}, {lost}, {at}, {numel}, {30 * grade.slowness}]"
    done = grade.program([sys.executable, "driver.py", task], files={"driver.py": DRIVER}, seconds=10.0, fork=True)
    for rank in range(size):
        if rank == lost:
            continue
        lines = grade.records(done, f"result.{rank}", tuple[str, int | None, list[int]])
        text = f"Over TCP, rank {lost} of {size} was killed after {count(at, 'call')}: rank {rank}"
        if not lines:
            grade.reject("unknown", f"{text} left no result. {done.err[-300:]}")
        how, named, values = lines[0]
        if [how, named, values] != ["lost", lost, [BASE**rank]]:
            what = f"raised PeerLost({named})" if how == "lost" else how
            grade.reject("unknown", f"{text} {what}, and its tensor has {count(len(values), 'different number')}.")
