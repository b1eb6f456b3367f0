"""Let processes of several hosts meet, among strangers, with deaths and absences; then three processes over TCP."""

import random
from typing import Any

from frog.learn.grader.grade import Grade
from frog.learn.grader.words import count

Case = dict[str, Any]
HOSTS = ["fir", "oak", "ash", "elm", "yew", "box"]
TIMEOUT_S = 20.0
"""In seconds of a simulated clock."""
LATE = 1.1
STRANGERS = ["17", '"GET / HTTP/1.1"', '{"status": "?"}', "[]", "garbage", "silent", "closes"]
PREDICTED = 8


def check(grade: Grade) -> None:
    draw = random.Random(grade.seed)
    worlds = [draw_world(draw, 3, starts=[0.3, 0.0, 0.1])]
    worlds += [draw_world(draw, size) for size in (2, 5, 4, 3, 1, PREDICTED)]
    strangers = [draw_world(draw, size, strangers=kinds) for size, kinds in ((3, STRANGERS[:5]), (4, STRANGERS[5:]))]
    deaths = [draw_world(draw, size, dies=1) for size in (3, 4, 5)]
    absent = [draw_world(draw, 4, starts=starts) for starts in ([0.0, 0.5, 0.8], [0.7, 0.0, 0.3])]
    runs = [*worlds, *strangers, *deaths, *absent]
    found = grade.call({"runs": runs}, seconds=4.0).values[0]
    pairs = list(zip(runs, found, strict=True))
    for case, seen in pairs[: -len(absent)]:
        check_world(grade, case, seen)
    for case, seen in pairs[-len(absent) :]:
        check_absent(grade, case, seen)
    check_tcp(grade)
    grade.measured("worlds that met, with 1 to 8 processes", str(len(worlds) + len(strangers) + len(deaths)))
    grade.measured(
        "strangers that connected, and processes that died on the way", f"{len(STRANGERS)} and {len(deaths)}"
    )
    grade.measured("over TCP", "3 processes met")
    grade.predicted("ports-open", sum("listens" in one for one in found[len(worlds) - 1]["gave"].values()))


# ---- cases -----------------------------------------------------------------------------------------------------------


def draw_world(
    draw: random.Random, size: int, *, strangers: Any = (), dies: int = 0, starts: list[float] | None = None
) -> Case:
    """Draw processes, their hosts and when they start; the meeting is on the first one's host."""
    names = [f"{name}{draw.randrange(100, 999)}" for name in draw.sample(HOSTS, 3)]
    meeting = (names[0], draw.randrange(20_000, 30_000))
    num = size if starts is None else len(starts)
    hosts = [names[0], *(draw.choice(names) for _ in range(num - 1))]
    if starts is not None and starts[0]:  # the others, on other hosts, wait for the one that can serve
        hosts[1:] = [names[1], names[2]]
    elif num > 2:
        hosts[1:3] = [names[0], names[1]]  # two on the meeting's host, and one on another
    when = [draw.choice([0.0, 0.0, 0.1, 0.3]) for _ in hosts] if starts is None else starts
    processes = [make("joins", host, start) for host, start in zip(hosts, when, strict=True)]
    if dies or strangers:  # they come early, and the last two processes late
        processes[0]["start_s"] = 0.0
        for one in processes[-2:]:
            one["start_s"] = 0.6 * TIMEOUT_S
    processes += [make("dies", names[2], 0.05)] * dies
    processes += [make(kind, draw.choice(names), 0.0) for kind in strangers]
    busy = [(host, meeting[1] + 1 + more) for host in names for more in range(size) if draw.random() < 0.5]
    busy += [(names[0], meeting[1] + 1), (names[1], meeting[1] + 2)]
    return {
        "seed": draw.randrange(1 << 30), "size": size, "meeting": meeting, "timeout_s": TIMEOUT_S,
        "processes": processes, "busy": sorted(set(busy)),
    }  # fmt: skip


def make(kind: str, host: str, start: float) -> Case:
    return {"kind": kind, "host": host, "start_s": start * TIMEOUT_S}


def where(case: Case) -> str:
    about = [one["kind"] for one in case["processes"]]
    num = sum(kind not in ("joins", "dies") for kind in about)
    more = (
        f", and {count(num, 'stranger')} that connect" if num > 1 else ", and a stranger that connects" if num else ""
    )
    if "dies" in about:
        more = ", and one that joins and dies before the last two come"
    return f"{processes(about.count('joins'))} for a world of {case['size']}{more}"


def processes(num: int) -> str:
    return f"{num} process{'es' * (num != 1)}"


# ---- a world that is complete ----------------------------------------------------------------------------------------


def check_world(grade: Grade, case: Case, seen: Case) -> None:
    text = where(case)
    joins = [who for who, one in enumerate(case["processes"]) if one["kind"] == "joins"]
    gave = {who: seen["gave"].get(str(who), {}) for who in joins}
    check_servers(grade, case, seen, text)
    check_raised(grade, case, seen, gave, text)
    check_addresses(grade, case, seen, gave, text)
    lists = [one["addresses"] for one in gave.values() if "addresses" in one]
    if any(len(one) != case["size"] for one in lists):
        lengths = ", ".join(str(len(one)) for one in sorted(lists, key=len))
        grade.reject("half-a-list", f"{text}: the processes got lists of {lengths} addresses.")
    check_met(grade, case, seen, gave, text)
    ranks = sorted(one["rank"] for one in gave.values())
    if any(one != lists[0] for one in lists):
        grade.reject("unknown", f"{text}: the processes got lists in different orders: {lists[0]}, for example.")
    if ranks != list(range(case["size"])):
        grade.reject("unknown", f"{text}: the processes have the ranks {ranks}.")
    for who, one in gave.items():
        address, (host, port, is_open) = one["addresses"][one["rank"]], one["listens"]
        if address != [host, port] or not is_open:
            state = "is open" if is_open else "is closed"
            says = f"the list has rank {one['rank']} at {address[0]}:{address[1]}; its listener, {host}:{port}, {state}"
            grade.reject("unknown", f"{text}: {says} ({name(case, who)}).")
    check_open(grade, case, seen, f"{text}: after all had returned")


def name(case: Case, who: int) -> str:
    return f"the process on {case['processes'][who]['host']} that started at {case['processes'][who]['start_s']:.0f} s"


def check_servers(grade: Grade, case: Case, seen: Case, text: str) -> None:
    host, port = case["meeting"]
    elsewhere = [one for one in seen["meetings"] if one[1] != host and one[0] >= 0]
    if elsewhere:
        who, other, _ = elsewhere[0]
        says = f"{text}. The meeting is {host}:{port}; {name(case, who)} opened port {port} of {other}"
        grade.reject("serves-on-another-host", f"{says} and served there.")


def check_raised(grade: Grade, case: Case, seen: Case, gave: dict[int, Case], text: str) -> None:
    port, closed = case["meeting"][1], {(who, place) for who, _, place in seen["closed"]}
    for who, one in gave.items():
        if "error" not in one:
            continue
        says = f"{text}: join of {name(case, who)} raised {one['error']}."
        if one["failed"] == "refused":
            host = case["meeting"][0]
            first = min(other["start_s"] for other in case["processes"] if other["host"] == host)
            grade.reject("refused-is-final", f"{says} The first process of the meeting's host starts at {first:.0f} s.")
        if one["failed"] == f"in use {port}":
            grade.reject("all-serve", f"{says} Another process of its host serves at that port.")
        if one["failed"].startswith("in use"):
            number = int(one["failed"].split()[-1])
            if (who, number) in closed:
                grade.reject("port-let-go", f"{says} It had opened that port and closed it again.")
            grade.reject("ports-are-counted", f"{says} Another program has it.")
    for who, one in gave.items():
        if "error" in one:
            says = f"{text}: join of {name(case, who)} raised {one['error']}."
            others = [other["kind"] for other in case["processes"] if other["kind"] not in ("joins", "dies")]
            id = "anyone-is-one-of-us" if set(others) - {"silent", "closes"} else "unknown"
            grade.reject(id, f"{says} The strangers send {', '.join(kind for kind in others)}." if others else says)


def check_addresses(grade: Grade, case: Case, seen: Case, gave: dict[int, Case], text: str) -> None:
    """Find addresses in the lists at which no rank listens."""
    ends = {(host, port): who for who, host, port in seen["ends"]}
    own = {(host, port): who for who, host, port in seen["ports"]}
    for one in gave.values():
        for rank, (host, port) in enumerate(one.get("addresses", [])):
            says = f"{text}: the list has rank {rank} at {host}:{port}."
            who = ends.get((host, port), own.get((host, port)))
            if (host, port) in ends and (host, port) not in own:
                if case["processes"][who]["kind"] not in ("joins", "dies"):
                    grade.reject("anyone-is-one-of-us", f"{says} That is a stranger, which sent no address of its own.")
                grade.reject(
                    "port-of-the-caller", f"{says} From there it called the meeting, but no process listens there."
                )
            hosts = {other["host"] for other in case["processes"]}
            if host in ("127.0.0.1", "localhost") and len(hosts) > 1:
                grade.reject("localhost-is-one-host", f"{says} The world has {count(len(hosts), 'host')}.")
            if who is not None and case["processes"][who]["kind"] == "dies":
                late = sum("timeout" in other for other in gave.values())
                left = f"; {count(late, 'other')} got TimeoutError" if late else ""
                grade.reject("the-dead-count", f"{says} That process had died before the last one came{left}.")


def check_met(grade: Grade, case: Case, seen: Case, gave: dict[int, Case], text: str) -> None:
    """Find processes that did not get a world although all had come."""
    late = [who for who, one in gave.items() if "rank" not in one]
    blocked = max(seen["waited_s"].values(), default=0.0)
    if blocked > 0.4 * TIMEOUT_S:
        says = f"{text}: the serving process waited {blocked:.0f} s for a message of a stranger that sends nothing"
        left = f"; {processes(len(late))} got no world" if late else ", and the others waited as long"
        grade.reject("silence-blocks-all", f"{says}{left}.")
    if not late and not seen["stuck"]:
        return
    if seen["stuck"]:
        who, does = next(iter(seen["does"].items()))
        alone = case["size"] == 1
        text = f"{text}: {name(case, int(who))} {seen['stuck']}, in {does}"
        grade.reject("alone-is-no-world" if alone else "unknown", f"{text}.")
    if case["size"] == 1:
        grade.reject("alone-is-no-world", f"{text}: join waited {TIMEOUT_S:.0f} s and raised TimeoutError.")
    had = [one["rank"] for one in gave.values() if "rank" in one]
    grade.reject("unknown", f"{text}: {processes(len(late))} raised TimeoutError; the others have the ranks {had}.")


def check_open(grade: Grade, case: Case, seen: Case, text: str, id: str = "") -> None:
    port = case["meeting"][1]
    for who, kind, host, number in seen["open"]:
        what = f"{text}, {name(case, who)} has"
        if kind == "Port" and number == port:
            grade.reject(id or "meeting-left-open", f"{what} the meeting's port {port} open.")
        if kind == "Port":
            grade.reject(id or "unknown", f"{what} port {number} of {host} open.")
        num = sum(other[0] == who and other[1] == "End" for other in seen["open"])
        grade.reject(id or "connections-left-open", f"{what} {count(num, 'connection')} open.")


# ---- a world that is not ---------------------------------------------------------------------------------------------


def check_absent(grade: Grade, case: Case, seen: Case) -> None:
    starts = ", ".join(f"{one['start_s']:.0f}" for one in case["processes"])
    text = f"3 processes for a world of 4, at {starts} s; timeout_s is {TIMEOUT_S:.0f}"
    if seen["stuck"]:
        who, does = next(iter(seen["does"].items()))
        grade.reject("no-deadline", f"{text}: {name(case, int(who))} {seen['stuck']}, in {does}.")
    for who, one in seen["gave"].items():
        if one["took_s"] > LATE * TIMEOUT_S:
            ends = one.get("error") or ("TimeoutError" if "timeout" in one else "a world")
            says = f"{name(case, int(who))} ended with {ends} after {one['took_s']:.0f} s"
            grade.reject("deadline-for-each" if one["took_s"] < 5 * TIMEOUT_S else "no-deadline", f"{text}: {says}.")
        if "timeout" not in one:
            ends = one.get("error") or f"a world of {len(one['addresses'])}"
            grade.reject("unknown", f"{text}: {name(case, int(who))} ended with {ends}, expected TimeoutError.")
    check_open(grade, case, seen, f"{text}: after all had raised TimeoutError", "left-open-on-failure")


def check_tcp(grade: Grade) -> None:
    case = {"meeting": ("127.0.0.1", 29_500), "size": 3, "timeout_s": 60.0}
    world = grade.world(3, case, work="over_tcp", join=False)
    ranks = sorted(str(one.get("rank", one)) for one in world.values)
    lists = {str(one.get("addresses")) for one in world.values}
    if ranks != ["0", "1", "2"] or len(lists) > 1:
        grade.reject(
            "unknown", f"Over TCP: the 3 processes ended with {', '.join(ranks)}, and {count(len(lists), 'list')}."
        )
