"""Let uneven nodes arrive in many orders, again, or not at all: on simulated hosts, then with a real TCPStore."""

import random
from typing import Any

from frog.learn.grader.grade import Grade

Run = dict[str, Any]
TREES = ["fir", "oak", "ash", "elm", "yew", "box", "bay", "fig", "nut", "pear", "plum", "lime"]
TIMEOUT_S = 10.0
"""Time-out in seconds of a simulated clock."""


def check(grade: Grade) -> None:
    """Check three rounds of nodes with new sizes, in random orders; then worlds with absent or late nodes."""
    draw = random.Random(grade.seed)
    sizes = [[1], [3], [2, 1], [1, 3, 2], *[[draw.randint(1, 3) for _ in range(draw.randint(2, 4))] for _ in range(6)]]
    once = [make_run(draw, each, (), numbers=(0,)) for each in ([3], [2, 3])]  # no other round has keys
    whole = [*once, *(make_run(draw, each, ()) for each in sizes)]
    absent = [make_run(draw, *each) for each in (([2, 1, 2], (1,)), ([1, 2, 1, 1], (1, 3)), ([2, 1], (0,)))]
    absent += [make_run(draw, [1, 2, 1], (2,), is_there_first=True)]
    late = [make_run(draw, each, (), len(each) - 1) for each in ([1, 2, 1], [2, 2])]
    many = [make_run(draw, [1] * 11, (), numbers=(1, 11)) for _ in range(3)]  # keys may not collide in each order
    found = grade.call({"runs": [*whole, *absent, *late, *many]}, seconds=6.0).values[0]
    pairs = list(zip([*whole, *absent, *late], found[: -len(many)], strict=True))
    for run, seen in pairs:
        check_opened(grade, run, seen)
    check_formulas(grade, pairs[: len(whole)])
    for run, seen in pairs[: len(whole)]:
        check_joined(grade, run, seen)
    for run, seen in pairs[len(whole) : -len(late)]:
        check_absent(grade, run, seen)
    for run, seen in pairs[-len(late) :]:
        check_late(grade, run, seen)
    for run, seen in zip(many, found[-len(many) :], strict=True):
        check_opened(grade, run, seen)
        check_many(grade, run, seen)
    check_real(grade, draw)
    grade.measured(
        "processes that agreed, in three rounds each", str(sum(len(run["tasks"]) for run in whole[len(once) :]))
    )
    grade.measured("worlds with missing nodes whose processes named them", str(len(absent)))
    grade.predicted("first-of-node-2", 3 + 1)


def make_run(
    draw: random.Random,
    sizes: list[int],
    absent: tuple[int, ...],
    late: int | None = None,
    numbers: tuple[int, ...] = (0, 1, 2),
    is_there_first: bool = False,
) -> Run:
    """Draw a world whose nodes have new sizes in later rounds. Each process knows only its own node.

    numbers: those of the rounds. is_there_first: absent nodes arrive in round 0, but not in round 1.
    """
    trees = draw.sample(["fir", "oak", "ash", "elm", "yew"] if len(sizes) <= 5 else TREES, len(sizes))
    hosts = [f"{name}{draw.randrange(100, 999)}" for name in trees]
    port = draw.randrange(20000, 60000)
    again, third = zip(
        *(draw.sample([other for other in range(1, 5) if other != size], 2) for size in sizes), strict=True
    )
    waits = bool(absent) or late is not None
    rounds = [sizes] if waits or len(numbers) == 1 else [sizes, list(again), list(third)]
    if is_there_first:
        rounds = [sizes, list(again)]
    numbers = numbers[: len(rounds)]
    wait_s = TIMEOUT_S if waits else 30.0
    tasks = []
    for node in (node for node in range(len(sizes)) if is_there_first or node not in absent):
        comes = [(number, counts[node]) for number, counts in zip(numbers, rounds, strict=False)]
        comes = comes[: 1 if node in absent else None]
        for local in range(max(count for _, count in comes)):
            joins = [(number, count) for number, count in comes if local < count]
            tasks.append([make_task(hosts, port, node, local, count, number, wait_s) for number, count in joins])
    last = [who for who, (task, *_) in enumerate(tasks) if task["node_rank"] == late]
    told = {"tasks": tasks, "timeout_s": wait_s, "absent": list(absent), "late": last}
    by_number = [rounds[numbers.index(number)] if number in numbers else sizes for number in range(numbers[-1] + 1)]
    return {"seed": draw.randrange(1 << 30), **told, "sizes": by_number, "hosts": hosts}


def make_task(hosts: list[str], port: int, node: int, local: int, count: int, number: int, wait_s: float) -> Run:
    place = {"node_rank": node, "num_nodes": len(hosts), "local_rank": local, "num_ranks": count, "host": hosts[node]}
    return {**place, "master_addr": hosts[0], "master_port": port, "round": number, "timeout_s": wait_s}


def who_is(run: Run, who: int) -> str:
    task = run["tasks"][who][0]
    return f"local rank {task['local_rank']} of node {task['node_rank']} ({task['host']})"


def check_opened(grade: Grade, run: Run, seen: Run) -> None:
    """Check which process listened, and where each connected."""
    for who, host, port, listen in seen["opened"]:
        task = run["tasks"][who][0]
        told = f"{task['master_addr']}:{task['master_port']}"
        did = (
            f"{who_is(run, who)} {'listened at' if listen else 'connected to'} {host}:{port}; all processes got {told}."
        )
        if port != task["master_port"]:
            grade.reject("own-port", did)
        if listen and task["node_rank"] == 0 and task["local_rank"] != 0:
            grade.reject("every-rank-listens", did)
        if host != task["master_addr"] or (listen and task["node_rank"] != 0):
            grade.reject("any-node-listens", did)


def check_joined(grade: Grade, run: Run, seen: Run) -> None:
    """Check worlds in which all nodes arrive: all processes must return the same world in every round."""
    sizes = run["sizes"][0]
    if seen["stuck"] or seen["error"]:
        waits = "; ".join(
            f"{who_is(run, int(who))} is in {does}"[:160] for who, does in list(seen["waits"].items())[:2]
        )
        grade.reject("unknown", f"Nodes of {sizes} ranks, all arrived: {seen['error'] or seen['stuck']}. {waits}")
    for who, gave in seen["gave"].items():
        for task in run["tasks"][int(who)]:
            check_world(grade, run, task, gave[str(task["round"])])


FORMULAS = {
    "including the ranks of its own node": lambda sizes, node, local: sum(sizes[: node + 1]) + local,
    "counting the nodes after it": lambda sizes, node, local: sum(sizes[node + 1 :]) + local,
    "assigning ranks to the nodes in turn": lambda sizes, node, local: (
        sum(min(size, local) for size in sizes) + sum(size > local for size in sizes[:node])
    ),
}


def check_formulas(grade: Grade, pairs: list[tuple[Run, Run]]) -> None:
    """Explain ranks that do not depend on the order of arrival, by a wrong formula."""
    found = [
        (run["sizes"][task["round"]], task["node_rank"], task["local_rank"], gave[str(task["round"])].get("rank"))
        for run, seen in pairs
        for who, gave in seen["gave"].items()
        for task in run["tasks"][int(who)]
        if str(task["round"]) in gave
    ]
    right = [sum(sizes[:node]) + local for sizes, node, local, _ in found]
    for formula, way in FORMULAS.items():
        if found and right != [rank for *_, rank in found] == [way(*place) for *place, _ in found]:
            sizes, node, local, rank = next(each for each, good in zip(found, right, strict=True) if each[3] != good)
            text = f"Nodes of {sizes} ranks: node {node}, local rank {local} got rank {rank}, but it is "
            text += f"{sum(sizes[:node]) + local}. All ranks match this mistake: {formula}."
            grade.reject("rank-formula", text)


def world_of(run: Run, task: Run, number: int) -> Run:
    """Return the right result of join."""
    sizes = run["sizes"][number]
    hosts = [host for host, count in zip(run["hosts"], sizes, strict=True) for _ in range(count)]
    rank = sum(sizes[: task["node_rank"]]) + task["local_rank"]
    return {"rank": rank, "world_size": len(hosts), "hosts": hosts}


def check_world(grade: Grade, run: Run, task: Run, found: Run) -> None:
    """Reject one process's result, with the misconception that gives it."""
    right, sizes = world_of(run, task, task["round"]), run["sizes"][task["round"]]
    if found == right:
        return
    where = f"Nodes of {sizes} ranks, round {task['round']}: node {task['node_rank']}, local rank {task['local_rank']}"
    observed = f"{where} got {said(found)}, but it is {said(right)}."
    if "world_size" not in found:
        grade.reject("unknown", f"{observed} All nodes had arrived.")
    if {*found["hosts"]} & {"localhost", "127.0.0.1"}:
        grade.reject("own-name", observed)
    own = [task["host"]] * task["num_ranks"]
    if found["world_size"] == task["num_ranks"] and found["hosts"] in (own, right["hosts"]) and len(sizes) > 1:
        grade.reject("one-node", observed)
    if of_both_rounds(run, found["hosts"]) and right["world_size"] != len(found["hosts"]) == found["world_size"]:
        others = [str(each) for number, each in enumerate(run["sizes"]) if number != task["round"]]
        grade.reject("old-keys", f"{observed} In the other rounds the nodes had {' and '.join(others)} ranks.")
    equal = task["node_rank"] * task["num_ranks"] + task["local_rank"]
    if found["world_size"] == len(sizes) * task["num_ranks"] != right["world_size"]:
        grade.reject("nodes-are-equal", observed)
    if found["hosts"] == right["hosts"] and found["rank"] == equal != right["rank"]:
        grade.reject("nodes-are-equal", observed)
    if found["world_size"] == right["world_size"] and sorted(found["hosts"]) == sorted(right["hosts"]):
        grade.reject("order-of-arrival", observed)
    grade.reject("unknown", observed)


def of_both_rounds(run: Run, hosts: list[str]) -> bool:
    """True if each host has the number of ranks that it had in some round."""
    counts = [hosts.count(host) for host in run["hosts"]]
    return len(run["sizes"]) > 1 and all(count in rest for count, *rest in zip(counts, *run["sizes"], strict=True))


def said(found: Run) -> str:
    return ", ".join(f"{name} {value}" for name, value in found.items())


def check_many(grade: Grade, run: Run, seen: Run) -> None:
    """Check rounds 1 and 11 with eleven nodes: keys that join both numbers without a separator collide."""
    for who, gave in seen["gave"].items():
        for number, node, other in (("11", 0, 10), ("1", 10, 0)):
            hosts = gave.get(number, {}).get("hosts", [])[node:]
            if hosts and hosts[0] == run["hosts"][other]:
                text = (
                    f"11 nodes, round {number}: {who_is(run, int(who))} found node {node} at {hosts[0]}: that is node "
                )
                grade.reject("old-keys", f"{text}{other}. It read a card of another round.")
    check_joined(grade, run, seen)


def check_absent(grade: Grade, run: Run, seen: Run) -> None:
    """Check worlds with missing nodes: all other processes must end in time and name them."""
    number, absent = str(len(run["sizes"]) - 1), run["absent"]
    sizes = run["sizes"][-1]
    came = "never arrived" if number == "0" else "arrived only in round 0"
    world = f"{len(sizes)} nodes, and node {' and node '.join(map(str, absent))} {came}"
    for who, gave in seen["gave"].items():
        if number == "1" and "world_size" in gave.get("0", {}):
            check_world(grade, run, run["tasks"][int(who)][0], gave["0"])
        if number == "1" and "world_size" in gave.get("1", {}):
            text = f"{world}: in round 1 {who_is(run, int(who))} got {said(gave['1'])}"
            grade.reject("old-keys", f"{text}, but should have reported node {absent[0]} as missing.")
    if seen["stuck"] and seen["waits"]:
        who, does = next(iter(seen["waits"].items()))
        observed = f"{world}: {who_is(run, int(who))} {seen['stuck']}: {does}; timeout_s was {TIMEOUT_S:.0f}."
        grade.reject("waits-for-ever", observed)
    for who, gave in seen["gave"].items():
        if run["tasks"][int(who)][0]["node_rank"] in absent or number not in gave:
            continue
        if gave[number].get("missing") is None or sorted(gave[number]["missing"], key=str) != absent:
            grade.reject("not-named", f"{world}: {who_is(run, int(who))} ended with {said(gave[number])}.")
    for who, took_s in seen["took_s"].items():
        if took_s > 1.5 * TIMEOUT_S:
            waited = f"waited {took_s:.0f} s before it gave up; timeout_s was {TIMEOUT_S:.0f}"
            grade.reject("deadline-for-each", f"{world}: {who_is(run, int(who))} {waited}.")
    if seen["error"]:
        grade.reject("not-named", f"{world}: {seen['error']}")


def check_late(grade: Grade, run: Run, seen: Run) -> None:
    """Check a node that arrives after the timeout, before the others look for it: join names it, or succeeds."""
    for who, gave in seen["gave"].items():
        if gave["0"].get("missing") == []:
            world = f"{len(run['sizes'][0])} nodes; node {len(run['sizes'][0]) - 1} arrived as timeout_s expired"
            grade.reject("came-meanwhile", f"{world}: {who_is(run, int(who))} raised NodesMissing([]).")
        if "world_size" in gave["0"]:
            check_world(grade, run, run["tasks"][int(who)][0], gave["0"])


def check_real(grade: Grade, draw: random.Random) -> None:
    """Check three processes of two nodes with a real store."""
    run = make_run(draw, [1, 2], ())
    tasks = [
        make_task(run["hosts"], 29500, node, local, [1, 2][node], 0, wait_s=60.0)
        for node, local in ((0, 0), (1, 0), (1, 1))
    ]
    world = grade.world(3, {"tasks": tasks}, work="meet", join=False)
    for task, found in zip(tasks, world.values, strict=True):
        check_world(grade, run, task, found)
    grade.measured("a real TCPStore", "3 processes of 2 nodes agreed")
