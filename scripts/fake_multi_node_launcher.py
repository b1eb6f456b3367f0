"""Pretend to be a cluster: start several "nodes" on this machine, each with its own agent and its own ranks.

    python scripts/fake_multi_node_launcher.py                                    2 nodes x 2 ranks, a small demo
    python scripts/fake_multi_node_launcher.py -- train.py config/demo.toml       the same world trains
    python scripts/fake_multi_node_launcher.py --explain --nnodes 4 --nproc-per-node 8 --node-rank 3
    NODE_RANK=1 NNODES=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=29500 python scripts/fake_multi_node_launcher.py

The last line is one node of two, by hand: start it in one terminal, and with NODE_RANK=0 in another, and you are the
cluster. This is a SIMULATION of what Slurm does. The processes, the network protocol and the ranks are real; that the
nodes are different machines is not: they share this machine's loopback network, its cores and its disk.
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

# Beside this file: how the nodes find each other.
from node_rendezvous import rendezvous

from frog.core.env import bind_loopback, child_env
from frog.core.errors import FrogError, UsageError
from frog.core.ports import free_port
from frog.runs.outcome import first_failure, last_failures

SLURM = """\
On a cluster you would not run this file: Slurm takes its place.
  here                                    there
  this program, started without NODE_RANK sbatch reserves the nodes; srun starts one task on each
  NODE_RANK, given to each node           SLURM_NODEID, set by srun for each task
  NNODES                                  SLURM_JOB_NUM_NODES
  MASTER_ADDR=127.0.0.1                   the first of SLURM_JOB_NODELIST: scontrol show hostnames "$SLURM_JOB_NODELIST"
  MASTER_PORT, a free port                made from SLURM_JOB_ID, so that all nodes know it and no two jobs share it
  torchrun, one on each node              the same: it is what srun starts
  ending all nodes when one fails         srun --kill-on-bad-exit=1"""

# ---- who am I? The arithmetic of ranks -------------------------------------------------------------------------------


@dataclasses.dataclass
class Node:
    """What a node must know to take its part. All of it but `node_rank` is the same on every node."""

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
        """Its own loopback address: 127.0.0.1 for node 0, 127.0.0.2 for node 1. Linux has them all, macOS the first."""
        return f"127.0.0.{self.node_rank % 250 + 1}"

    @property
    def rendezvous_point(self):
        return f"{self.master_addr}:{self.master_port}"

    @property
    def ranks(self):
        """The global ranks that live here. Nodes are counted from 0, and each has the same number of ranks."""
        first = self.node_rank * self.nproc_per_node
        return range(first, first + self.nproc_per_node)


def span(ranks):
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {ranks[0]} to {ranks[-1]}"


def table(nodes):
    return "\n".join(f"  NODE_RANK={node.node_rank}  {node.name:7}  global {span(node.ranks)}" for node in nodes)


def explain(node, all_nodes):
    """Print the arithmetic, launch nothing."""
    world_size = node.nnodes * node.nproc_per_node
    print(f"WORLD_SIZE = nnodes x nproc_per_node = {node.nnodes} x {node.nproc_per_node} = {world_size}")
    if all_nodes:
        print(table(dataclasses.replace(node, node_rank=number) for number in range(node.nnodes)))
    else:
        first, last, per_node = node.ranks[0], node.ranks[-1], node.nproc_per_node
        print(f"NODE_RANK {node.node_rank} of {node.nnodes} nodes, which count from 0 to {node.nnodes - 1}")
        print(f"  first global rank = NODE_RANK x nproc_per_node = {node.node_rank} x {per_node} = {first}")
        print(f"  last global rank  = first + nproc_per_node - 1 = {first} + {per_node} - 1 = {last}")
        print(f"  so this node holds global {span(node.ranks)}, and RANK = {first} + LOCAL_RANK")
    print(SLURM)


# ---- one node: meet the others, then hand over to torchrun -----------------------------------------------------------


def be_node(node, program, timeout_s, outcome):
    """Start this node's ranks and stay until they have ended; returns the exit code of the first that failed."""

    def say(line):
        print(f"{node.name} | {line}\n", end="", flush=True)  # in one piece: other nodes write here too

    rendezvous(node, timeout_s, say)
    say(f"starting global {span(node.ranks)}")
    command = [
        *(sys.executable, "-m", "frog.launch.torchrun.agent", str(outcome)),  # torchrun; what happens goes to that file
        *("--nnodes", str(node.nnodes), "--node-rank", str(node.node_rank)),
        *("--nproc-per-node", str(node.nproc_per_node)),
        *("--rdzv-backend", "static", "--rdzv-endpoint", node.rendezvous_point, "--rdzv-conf", f"timeout={timeout_s}"),
        *program,
    ]
    bind_loopback(node.master_addr)
    threads = os.environ.get("OMP_NUM_THREADS", "1")  # one each: the nodes share this machine's cores
    env = child_env(FROG_NODE_NAME=node.name, FROG_LAUNCHER_PID=str(os.getpid()), OMP_NUM_THREADS=threads)
    stop = Stop()
    # A process group of its own: Ctrl-C in a terminal then comes to this process alone, which asks the agent once.
    code = stop.wait_for([subprocess.Popen(command, env=env, process_group=0)], grace_s=40)
    if stop.signal:
        return 128 + stop.signal
    if failure := first_to_fail([outcome]):
        say(f"rank {failure['rank']} ended with {in_words(failure)}")
        return exit_code(failure)
    return code


class Stop:
    """Takes Ctrl-C and SIGTERM and passes them on: a launcher that just died would leave its ranks behind."""

    def __init__(self):
        self.signal, self.presses, self.parent = None, 0, os.getppid()
        signal.signal(signal.SIGINT, self.note)
        signal.signal(signal.SIGTERM, self.note)

    def note(self, number, frame):
        self.signal, self.presses = number, self.presses + 1

    def wait_for(self, processes, grace_s, patience_s=5):
        """Wait until all have ended; return the first exit code that is not 0.

        After a failure the others have some seconds to find out by themselves, and to say so. Then they are asked to
        end (SIGTERM), and at last made to (SIGKILL).
        """
        first, since, asked = 0, None, False
        while running := [process for process in processes if process.poll() is None]:
            first = first or next((process.returncode for process in processes if process.returncode), 0)
            wanted = self.signal or os.getppid() != self.parent  # a parent killed with SIGKILL could not ask
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
    """The rank that failed first, of all nodes; one that only lost its peers comes after one that did not."""
    failures = [failure for path in outcomes for failure in last_failures(path)]
    return first_failure(failures) if failures else None


def exit_code(failure):
    return failure["code"] if failure["code"] > 0 else 128 - failure["code"]


def in_words(failure):
    code = failure["code"]
    return f"exit code {code}" if code > 0 else f"signal {signal.Signals(-code).name}"


# ---- the cluster: what srun does, one task on each node --------------------------------------------------------------


def be_slurm(node, program, timeout_s):
    """Start every node as a process of its own, as the last line of this file's first text does it by hand."""
    nodes = [dataclasses.replace(node, node_rank=number) for number in range(node.nnodes)]
    world_size = node.nnodes * node.nproc_per_node
    print(f"{node.nnodes} pretended nodes x {node.nproc_per_node} ranks = a world of {world_size}, all on this machine")
    print(table(nodes), "On a cluster Slurm does this: --explain says how.", sep="\n", flush=True)
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
        print(
            f"first to fail: rank {failure['rank']}, with {in_words(failure)}; the other nodes were ended", flush=True
        )
        return exit_code(failure)
    return code if code >= 0 else 128 - code


def start_labelled(name, command, env):
    """Start a node; a thread writes the node's name before each of its lines, as `srun --label` does."""
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
    """The node that options and environment describe, and whether they name one node (True) or the whole cluster."""
    values, problems = {}, []
    for field, variable in VARIABLES.items():
        flag, text = getattr(args, field), os.environ.get(variable) or None
        if flag is not None and text is not None and flag != text:
            problems.append(f"{variable}={text} in the environment, but --{field.replace('_', '-')} {flag}")
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
        raise UsageError(listing(problems), "NODE_RANK=1 NNODES=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=29500 is one node")
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
        problems.append(f"RANK={os.environ['RANK']}: this program gives the ranks; start it with python, not torchrun")
    if world_size > 16 and not only_explain:
        problems.append(f"a world of {world_size} processes is too much for one machine: --explain starts nothing")
    if problems:
        raise UsageError(listing(problems), "correct these numbers")


def listing(problems):
    return "nothing was started\n" + "\n".join(f"  - {problem}" for problem in problems)


def read_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for field, variable in VARIABLES.items():
        parser.add_argument(f"--{field.replace('_', '-')}", metavar="N", help=f"as the variable {variable}")
    parser.add_argument("--explain", action="store_true", help="print the arithmetic of ranks; start nothing")
    parser.add_argument("--timeout-s", type=int, default=60, help="how long a node waits for the others; default: 60")
    parser.add_argument("--outcome", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("program", nargs="*", help="after --: what each rank runs; default: scripts/say_hello.py")
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
        return be_slurm(node, program, args.timeout_s)
    if args.outcome is None:  # started by a person, not by `be_slurm`
        print(table(dataclasses.replace(node, node_rank=number) for number in range(node.nnodes)), flush=True)
    with tempfile.TemporaryDirectory(prefix="frog-node-") as scratch:
        return be_node(node, program, args.timeout_s, args.outcome or Path(scratch, "outcome"))


if __name__ == "__main__":
    try:
        sys.exit(main())
    except FrogError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(130)
