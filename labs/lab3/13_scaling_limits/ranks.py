"""Call the learner's functions, then run a ring of real messages over links that waiting slows down."""

import socket
import threading
import time
from types import ModuleType
from typing import Any


def work(learner: ModuleType, case: dict[str, Any]) -> dict[str, Any]:
    """Return each function's result for each case, and the time of the ring."""
    times, steps, worlds = [], [], []
    for each in case["cases"]:
        job, link = learner.Job(**each["job"]), learner.Link(**each["link"])
        times.append([learner.all_reduce_s(job.gradient_mib, n, link) for n in each["sizes"]])
        asked = [(job, n, link, overlap) for n in each["sizes"] for overlap in (False, True)]
        steps.append([[learner.step_s(*one), learner.efficiency(*one)] for one in asked])
        worlds.append([learner.largest_world(job, link, o, each["at_least"], each["most"]) for o in (False, True)])
    ring = case["ring"]
    predicted = learner.all_reduce_s(ring["gradient_mib"], ring["num_ranks"], learner.Link(**ring["link"]))
    return {"times": times, "steps": steps, "worlds": worlds, "ring": [predicted, measure(**ring)]}


def measure(gradient_mib: float, num_ranks: int, link: dict[str, float]) -> float:
    """Measure the seconds of a ring all-reduce's messages: the shortest of three, which is disturbed least.

    Each rank is a thread, each link a pair of sockets. A message waits for the delay plus its bits over the rate.
    """
    part = bytes(int(gradient_mib * 2**20) // num_ranks)
    slow_s = link["delay_us"] * 1e-6 + len(part) * 8 / (link["rate_gbit_per_s"] * 1e9)
    return min(run_ring(part, num_ranks, slow_s) for _ in range(3))


def run_ring(part: bytes, num_ranks: int, slow_s: float) -> float:
    links = [socket.socketpair() for _ in range(num_ranks)]
    start = threading.Barrier(num_ranks + 1)

    def be(rank: int) -> None:
        to_next, from_last = links[rank][0], links[rank - 1][1]
        start.wait()
        for _ in range(2 * (num_ranks - 1)):
            time.sleep(slow_s)
            to_next.sendall(part)
            left = len(part)
            while left:
                left -= len(from_last.recv(left))

    threads = [threading.Thread(target=be, args=(rank,), daemon=True) for rank in range(num_ranks)]
    for thread in threads:
        thread.start()
    start.wait()
    began = time.monotonic()
    for thread in threads:
        thread.join()
    took = time.monotonic() - began
    for pair in links:
        for end in pair:
            end.close()
    return took
