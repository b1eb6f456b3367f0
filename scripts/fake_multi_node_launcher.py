"""Simulate a cluster: start several "nodes" on this machine, each with its own agent and its own ranks.

    python scripts/fake_multi_node_launcher.py                                    2 nodes x 2 ranks, a small demo
    python scripts/fake_multi_node_launcher.py -- train.py config/demo.toml       train in the same world
    python scripts/fake_multi_node_launcher.py --explain --nnodes 4 --nproc-per-node 8 --node-rank 3
    NODE_RANK=1 NNODES=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=29500 python scripts/fake_multi_node_launcher.py

The last command starts one of two nodes by hand: run it in one terminal, and with NODE_RANK=0 in another, and you play
the cluster. This SIMULATES what Slurm does. The processes, the network protocol and the ranks are real, but the nodes
are not different machines: they share this machine's loopback network, its cores and its disk.
"""

import argparse
import dataclasses
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

# This module is in the same folder: with it, the nodes find each other.
from node_rendezvous import rendezvous

from frog.core.env import bind_loopback, child_env
from frog.core.errors import FrogError, UsageError
from frog.core.machine import free_port
from frog.core.runs.outcome import first_failure, last_failures

SLURM = """\
On a cluster, Slurm replaces this script.
  here                                    on the cluster
  this program, started without NODE_RANK sbatch allocates the nodes; srun starts one task on each
  NODE_RANK, set for each node            SLURM_NODEID, set by srun for each task
  NNODES                                  SLURM_JOB_NUM_NODES
  MASTER_ADDR=127.0.0.1                   the first of SLURM_JOB_NODELIST: scontrol show hostnames "$SLURM_JOB_NODELIST"
  MASTER_PORT, a free port                computed from SLURM_JOB_ID: the same on all nodes, different for each job
  torchrun, one on each node              the same: srun starts it
  ending all nodes when one fails         srun --kill-on-bad-exit=1"""

# ---- the arithmetic of ranks -----------------------------------------------------------------------------------------


@dataclasses.dataclass
class Node:
    """The settings of a node. All except `node_rank` are equal on every node."""

    node_rank: int
    nnodes: int
    nproc_per_node: int
    master_addr: str
    master_port: int

    @property
    def name(self):
        return f"node{self.node_rank}"

    @property
    def address(self):
        """Loopback address: 127.0.0.1 for node 0, 127.0.0.2 for node 1. Linux has all of them, macOS only the first."""
        return f"127.0.0.{self.node_rank % 250 + 1}"

    @property
    def rendezvous_point(self):
        return f"{self.master_addr}:{self.master_port}"

    @property
    def ranks(self):
        """Global ranks of this node. Nodes count from 0, and each has the same number of ranks."""
        first = self.node_rank * self.nproc_per_node
        return range(first, first + self.nproc_per_node)


def span(ranks):
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {ranks[0]} to {ranks[-1]}"


def table(nodes):
    return "\n".join(f"  NODE_RANK={node.node_rank}  {node.name:7}  global {span(node.ranks)}" for node in nodes)


def explain(node, all_nodes):
    """Print the arithmetic without starting processes."""
    world_size = node.nnodes * node.nproc_per_node
    print(f"WORLD_SIZE = nnodes x nproc_per_node = {node.nnodes} x {node.nproc_per_node} = {world_size}")
    if all_nodes:
        print(table(dataclasses.replace(node, node_rank=number) for number in range(node.nnodes)))
    else:
        first, last, per_node = node.ranks[0], node.ranks[-1], node.nproc_per_node
        print(f"NODE_RANK {node.node_rank} of {node.nnodes} nodes, which count from 0 to {node.nnodes - 1}")
        print(f"  first global rank = NODE_RANK x nproc_per_node = {node.node_rank} x {per_node} = {first}")
        print(f"  last global rank  = first + nproc_per_node - 1 = {first} + {per_node} - 1 = {last}")
        print(f"  so this node has global {span(node.ranks)}, and RANK = {first} + LOCAL_RANK")
    print(SLURM)


# ---- one node: find the others, then start torchrun ------------------------------------------------------------------


def run_node(node, program, timeout_s, outcome):
    """Start this node's ranks and wait until they have ended; return the exit code of the first failure."""

    def say(line):
        print(f"{node.name} | {line}\n", end="", flush=True)  # in one write: other nodes use this terminal too

    rendezvous(node, timeout_s, say)
    say(f"starting global {span(node.ranks)}")
    command = [
        *(sys.executable, "-m", "frog.launch.torchrun.agent", str(outcome)),  # torchrun, which reports to this file
        *("--nnodes", str(node.nnodes), "--node-rank", str(node.node_rank)),
        *("--nproc-per-node", str(node.nproc_per_node)),
        *("--rdzv-backend", "static", "--rdzv-endpoint", node.rendezvous_point, "--rdzv-conf", f"timeout={timeout_s}"),
        *program,
    ]
    bind_loopback(node.master_addr)
    threads = os.environ.get("OMP_NUM_THREADS", "1")  # one per rank: the nodes share this machine's cores
    env = child_env(FROG_NODE_NAME=node.name, FROG_LAUNCHER_PID=str(os.getpid()), OMP_NUM_THREADS=threads)
    stop = Stop()
    # A separate process group: only this process receives Ctrl-C from the terminal, and signals the agent once.
    code = stop.wait_for([subprocess.Popen(command, env=env, process_group=0)], grace_s=40)
    if stop.signal:
        return 128 + stop.signal
    if failure := first_to_fail([outcome]):
        say(f"rank {failure['rank']} ended with {describe(failure)}")
        return exit_code(failure)
    return code


class Stop:
    """Forwards Ctrl-C and SIGTERM: a launcher that just died would leave its ranks running."""

    def __init__(self):
        self.signal, self.presses, self.parent = None, 0, os.getppid()
        signal.signal(signal.SIGINT, self.note)
        signal.signal(signal.SIGTERM, self.note)

    def note(self, number, frame):
        self.signal, self.presses = number, self.presses + 1

    def wait_for(self, processes, grace_s, patience_s=5):
        """Wait until all have ended; return the first exit code that is not 0.

        After a failure, the others have some seconds to detect and report it. Then this method sends SIGTERM, and
        finally SIGKILL.
        """
        first, since, asked = 0, None, False
        while running := [process for process in processes if process.poll() is None]:
            first = first or next((process.returncode for process in processes if process.returncode), 0)
            wanted = self.signal or os.getppid() != self.parent  # a parent killed by SIGKILL cannot send a signal
            since = since or ((first or wanted) and time.monotonic())
            waited_s = time.monotonic() - since if since else 0
            if not asked and (wanted or waited_s > patience_s):
                asked, since = True, time.monotonic()
                for process in running:
                    process.terminate()
            elif (asked and waited_s > grace_s) or self.presses > 1:
                for process in running:
                    process.kill()
            time.sleep(0.1)
        return first or next((process.returncode for process in processes if process.returncode), 0)


def first_to_fail(outcomes):
    """Return the first failure of all nodes; ranks that only lost their peers come last."""
    failures = [failure for path in outcomes for failure in last_failures(path)]
    return first_failure(failures) if failures else None


def exit_code(failure):
    return failure["code"] if failure["code"] > 0 else 128 - failure["code"]


def describe(failure):
    code = failure["code"]
    return f"exit code {code}" if code > 0 else f"signal {signal.Signals(-code).name}"


# ---- the cluster: like srun, one task on each node -------------------------------------------------------------------


def run_cluster(node, program, timeout_s):
    """Start every node as a separate process, like the last command of this file's docstring."""
    nodes = [dataclasses.replace(node, node_rank=number) for number in range(node.nnodes)]
    world_size = node.nnodes * node.nproc_per_node
    print(f"{node.nnodes} simulated nodes x {node.nproc_per_node} ranks = world size {world_size}, all on this machine")
    print(table(nodes), "On a cluster, Slurm does this; --explain shows how.", sep="\n", flush=True)
    stop, processes, outcomes = Stop(), [], []
    with tempfile.TemporaryDirectory(prefix="frog-nodes-") as scratch:
        for each in nodes:
            outcomes.append(Path(scratch, each.name))
            options = ["--timeout-s", str(timeout_s), "--outcome", str(outcomes[-1]), "--", *program]
            variables = {name: str(getattr(each, field)) for field, name in VARIABLES.items()}
            command = [sys.executable, __file__, *options]
            processes.append(start_labelled(each.name, command, child_env(**variables)))
        code = stop.wait_for([process for process, _ in processes], grace_s=50)
        for _, printer in processes:
            printer.join(timeout=5)
        failure = first_to_fail(outcomes)
    if stop.signal:
        return 128 + stop.signal
    if failure:
        print(f"first failure: rank {failure['rank']}, {describe(failure)}; the other nodes were stopped", flush=True)
        return exit_code(failure)
    return code if code >= 0 else 128 - code


def start_labelled(name, command, env):
    """Start a node; a thread prefixes each line of output with the node's name, like `srun --label`."""
    pipe = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "errors": "replace"}
    process = subprocess.Popen(command, env=env, process_group=0, **pipe)

    def copy_lines():
        for line in process.stdout:
            print(line if line.startswith(f"{name} |") else f"{name} | {line}", end="", flush=True)

    printer = threading.Thread(target=copy_lines, daemon=True)
    printer.start()
    return process, printer


# ---- the command -----------------------------------------------------------------------------------------------------

VARIABLES = {
    "node_rank": "NODE_RANK",
    "nnodes": "NNODES",
    "nproc_per_node": "NPROC_PER_NODE",
    "master_addr": "MASTER_ADDR",
    "master_port": "MASTER_PORT",
}


def read_node(args):
    """Return the node that options and environment describe; True if they describe one node, False for the cluster."""
    values, problems = {}, []
    for field, variable in VARIABLES.items():
        flag, text = getattr(args, field), os.environ.get(variable) or None
        if flag is not None and text is not None and flag != text:
            problems.append(f"{variable}={text} in the environment contradicts --{field.replace('_', '-')} {flag}")
        values[field] = flag if flag is not None else text
        if field != "master_addr" and values[field] is not None:
            if values[field].isdecimal():
                values[field] = int(values[field])
            else:
                problems.append(f"{variable}={values[field]!r}: must be a number, 0 or more")
    by_hand = values["node_rank"] is not None
    needed = ("nnodes", "master_addr", "master_port") if by_hand and not args.explain else ()
    problems += [f"{VARIABLES[name]} is not set, but NODE_RANK is" for name in needed if values[name] is None]
    if problems:
        raise UsageError(listing(problems), "for example NODE_RANK=1 NNODES=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=29500")
    defaults = {"node_rank": 0, "nnodes": 2, "nproc_per_node": 2, "master_addr": "127.0.0.1", "master_port": None}
    node = Node(**{name: defaults[name] if value is None else value for name, value in values.items()})
    if node.master_port is None:
        node.master_port = free_port()
    check(node, args.explain)
    return node, by_hand


def check(node, only_explain):
    problems = [
        f"{VARIABLES[name]}={getattr(node, name)}: must be at least 1"
        for name in ("nnodes", "nproc_per_node", "master_port")
        if getattr(node, name) < 1
    ]
    world_size = node.nnodes * node.nproc_per_node
    if node.nnodes > 0 and node.node_rank >= node.nnodes:
        problems.append(f"NODE_RANK={node.node_rank} of NNODES={node.nnodes}: nodes count from 0 to {node.nnodes - 1}")
    if node.master_port > 65535:
        problems.append(f"MASTER_PORT={node.master_port}: ports end at 65535")
    if (given := os.environ.get("WORLD_SIZE", str(world_size))) != str(world_size):
        problems.append(
            f"WORLD_SIZE={given}, but NNODES={node.nnodes} x NPROC_PER_NODE={node.nproc_per_node} is {world_size}"
        )
    if "RANK" in os.environ:
        problems.append(f"RANK={os.environ['RANK']}: this program assigns ranks; start it with python, not torchrun")
    if world_size > 16 and not only_explain:
        problems.append(f"{world_size} processes are too many for one machine; --explain works without starting them")
    if problems:
        raise UsageError(listing(problems), "correct these numbers")


def listing(problems):
    return "nothing was started\n" + "\n".join(f"  - {problem}" for problem in problems)


def read_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for field, variable in VARIABLES.items():
        parser.add_argument(f"--{field.replace('_', '-')}", metavar="N", help=f"overrides the variable {variable}")
    parser.add_argument("--explain", action="store_true", help="only print the arithmetic of ranks")
    parser.add_argument("--timeout-s", type=int, default=60, help="seconds to wait for other nodes; default: 60")
    parser.add_argument("--outcome", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("program", nargs="*", help="after --: the program of each rank; default: scripts/say_hello.py")
    return parser.parse_args()


def main():
    args = read_arguments()
    node, by_hand = read_node(args)
    program = args.program or [str(Path(__file__).with_name("say_hello.py"))]
    if args.explain:
        explain(node, all_nodes=not by_hand)
        return 0
    if not Path(program[0]).is_file():
        raise UsageError(f"{program[0]}: no such script", "python scripts/fake_multi_node_launcher.py -- train.py")
    if not by_hand:
        return run_cluster(node, program, args.timeout_s)
    if args.outcome is None:  # started by a user, not by `run_cluster`
        print(table(dataclasses.replace(node, node_rank=number) for number in range(node.nnodes)), flush=True)
    with tempfile.TemporaryDirectory(prefix="frog-node-") as scratch:
        return run_node(node, program, args.timeout_s, args.outcome or Path(scratch, "outcome"))


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a script's `... &` starts with Ctrl-C ignored
    try:
        sys.exit(main())
    except FrogError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(130)
