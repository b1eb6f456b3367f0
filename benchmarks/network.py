"""Performance of a simulated network, compared with its settings and with the alpha-beta formula.

    python benchmarks/network.py [--rounds 15] [--tiny]

1. A link: the round trip of a datagram, against twice the delay; one TCP stream, against the rate; the highest
   throughput of the switch between 2 and 4 nodes that all send at the same time, without a rate limit.
2. Collectives of gloo, as torch calls them, over links of several rates and delays. A time is measured from the last
   rank's start to the last rank's result (one machine has one clock). The formula is given for gloo's ring
   (frog.plan.links: two delays per step) and for the textbook ring (one).

The constants are not fitted: alpha is the configured delay, beta is the rate minus the headers. The remaining time at
4 KiB without delay is that of the programs themselves.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import os
import platform
import statistics
import subprocess
import sys
import time

from frog.launch.network import Link, Network, parse_network
from frog.plan.links import collective_cost, payload_rate

SIZES = (4096, 65536, 1 << 20, 4 << 20, 16 << 20)
WORLDS = (([0, 1], "2 nodes"), ([0, 1, 2], "3 nodes"), ([0, 0, 1, 1], "2 nodes x 2 ranks"))
TINY = slice(1)
"""The first of the links, worlds and sizes, to check that it runs."""
LINKS = ("rate=100mbit", "rate=100mbit delay=20ms", "rate=1gbit delay=1ms", "rate=10mbit delay=5ms")


def rank_main(settings: dict[str, object]) -> None:
    """Run every collective on one rank; print the times on stdout."""
    import torch
    import torch.distributed as dist

    rank, world = int(settings["rank"]), int(settings["world"])  # type: ignore[call-overload]
    dist.init_process_group(
        "gloo", init_method="tcp://10.77.0.1:29500", rank=rank, world_size=world, timeout=dt.timedelta(seconds=300)
    )
    for op in settings["ops"]:  # type: ignore[attr-defined]
        for size in settings["sizes"]:  # type: ignore[attr-defined]
            whole = torch.ones(size // 4 // world * world)
            times = []
            for _ in range(1 + int(settings["rounds"])):  # type: ignore[call-overload]
                dist.barrier()
                time.sleep(float(settings["pause_s"]))  # type: ignore[arg-type]
                start_ns = time.monotonic_ns()
                if op == "all_reduce":
                    dist.all_reduce(whole)
                elif op == "all_gather":
                    dist.all_gather(list(whole.chunk(world)), whole[: len(whole) // world].clone())
                else:
                    dist.all_to_all_single(torch.empty_like(whole), whole)
                times.append((start_ns, time.monotonic_ns()))
            print(json.dumps({"op": op, "size": whole.nbytes, "times": times}), flush=True)
    dist.barrier()
    dist.destroy_process_group()


def measure(
    link: Link, nodes: list[int], ops: list[str], sizes: list[int], rounds: int
) -> dict[tuple[str, int], float]:
    """Return the median seconds of each collective and size."""
    settings = {"world": len(nodes), "ops": ops, "sizes": sizes, "rounds": rounds, "pause_s": 3 * link.delay_s}
    with Network(max(nodes) + 1, link) as network:
        env = {**os.environ, "GLOO_SOCKET_IFNAME": network.interface, "OMP_NUM_THREADS": "1"}
        ranks = [
            subprocess.Popen(
                network.enter(node, [sys.executable, __file__, "--rank", json.dumps({**settings, "rank": rank})]),
                stdout=subprocess.PIPE,
                text=True,
                env=env,
            )
            for rank, node in enumerate(nodes)
        ]
        told = [[json.loads(line) for line in (rank.communicate()[0]).splitlines()] for rank in ranks]
        late_s = network.describe()["mean_late_s"]
    found = {}
    for rows in zip(*told, strict=True):
        spans = zip(*(row["times"] for row in rows), strict=True)
        times = [max(end for _, end in span) - max(start for start, _ in span) for span in spans]
        found[rows[0]["op"], rows[0]["size"]] = statistics.median(times[1:]) / 1e9  # the first warms up
    print(f"  (the switch was {1e3 * late_s:.2f} ms late on average)")
    return found


def collectives(rounds: int, part: slice) -> None:
    for text in LINKS[part]:
        link = parse_network(text)
        beta = payload_rate(link.rate_bits_per_s, link.mtu)
        for nodes, name in WORLDS[part]:
            ops = ["all_reduce"] if len(nodes) != 3 else ["all_reduce", "all_gather", "all_to_all"]
            # Omit combinations that would take minutes at 10 Mbit/s.
            sizes = [size for size in SIZES[part] if size / beta < 2]
            print(f"{text}, {name}: beta {8e-6 * beta:.1f} Mbit/s of payload")
            for (op, size), measured_s in measure(link, nodes, ops, sizes, rounds).items():
                gloo, book = (collective_cost(op, size, [nodes], asks=asks) for asks in (True, False))
                assert gloo is not None, op
                assert book is not None, op
                gloo_s, book_s = (cost.seconds(link.delay_s, beta) for cost in (gloo, book))
                print(
                    f"  {op:<10} {size / 1024:>7.0f} KiB  measured {1e3 * measured_s:8.1f} ms   as gloo does it "
                    f"{1e3 * gloo_s:8.1f} ms ({gloo.num_delays:>2} delays) {measured_s / gloo_s:6.2f}   textbook "
                    f"{1e3 * book_s:8.1f} ms ({book.num_delays:>2} delays) {measured_s / book_s:6.2f}",
                    flush=True,
                )


ECHO = """
import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.bind(("", 9000))
print("up", flush=True)
while True:
    s.sendto(*s.recvfrom(64))
"""
PING = """
import socket, statistics, sys, time
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
times = []
for _ in range(20):
    start = time.monotonic()
    s.sendto(b"x", (sys.argv[1], 9000))
    s.recv(64)
    times.append(time.monotonic() - start)
print(1e3 * statistics.median(times), 1e3 * max(times[1:]))
"""
SINK = """
import socket, time
s = socket.create_server(("", 9001))
print("up", flush=True)
c, _ = s.accept()
num, start = len(c.recv(1 << 20)), time.monotonic()
while part := c.recv(1 << 20):
    num += len(part)
    end = time.monotonic()
print(8e-6 * num / (end - start))
"""
SOURCE = """
import socket, sys, time
s = socket.create_connection((sys.argv[1], 9001))
end, part = time.monotonic() + 5, bytes(1 << 18)
while time.monotonic() < end:
    s.sendall(part)
"""


def inside(network: Network, node: int, code: str, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        network.enter(node, [sys.executable, "-c", code, *words]), stdout=subprocess.PIPE, text=True
    )


def wait_for(server: subprocess.Popen[str]) -> None:
    assert server.stdout is not None
    assert server.stdout.readline() == "up\n"


def flows(network: Network, pairs: list[tuple[int, int]]) -> list[float]:
    """Measure concurrent TCP streams between nodes, in Mbit/s."""
    sinks = [inside(network, target, SINK) for _, target in pairs]
    for sink in sinks:
        wait_for(sink)
    sources = [inside(network, source, SOURCE, network.address(target)) for source, target in pairs]
    for source in sources:
        source.wait()
    return [float(sink.communicate()[0]) for sink in sinks]


def links(part: slice) -> None:
    texts = ("rate=100mbit delay=20ms", "rate=10mbit delay=50ms", "rate=1gbit", "rate=1gbit delay=5ms")
    for text in texts[part]:
        with Network(2, parse_network(text)) as network:
            echo = inside(network, 0, ECHO)
            wait_for(echo)
            median, worst = map(float, inside(network, 1, PING, network.address(0)).communicate()[0].split())
            echo.kill()
            echo.communicate()
            [one_way] = flows(network, [(1, 0)])
            both = flows(network, [(1, 0), (0, 1)])
        two = " and ".join(f"{rate:.1f}" for rate in both)
        print(
            f"{text}: round trip {median:.2f} ms (worst {worst:.2f}); one stream {one_way:.1f} Mbit/s; "
            f"two against each other {two} Mbit/s",
            flush=True,
        )
    for num_nodes in (2, 4)[part]:
        with Network(num_nodes, Link(rate_bits_per_s=1e11)) as network:
            rates = flows(network, [(node, (node + 1) % num_nodes) for node in range(num_nodes)])
        each = ", ".join(f"{rate:.0f}" for rate in rates)
        print(f"no rate, {num_nodes} nodes in a ring: {each}; {sum(rates):.0f} Mbit/s in total", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--rank", type=json.loads, help=argparse.SUPPRESS)
    parser.add_argument("--tiny", action="store_true", help="small sizes, to check that it runs")
    args = parser.parse_args()
    if args.rank:
        rank_main(args.rank)
        return
    print(f"{platform.machine()}, {os.cpu_count()} cores, {args.rounds} rounds, medians")
    part = TINY if args.tiny else slice(None)
    links(part)
    collectives(args.rounds, part)


if __name__ == "__main__":
    main()
