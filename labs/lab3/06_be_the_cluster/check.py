"""Run the script for worlds of several shapes, and check what the workers record about themselves."""

import json
import random
import sys
from pathlib import Path
from typing import Any, TypedDict

import msgspec

from frog.learn.grader.grade import Grade
from frog.learn.grader.words import count

WORKER = (Path(__file__).parent / "worker.py").read_text()

DRIVE = """
import json, os, select, socket, subprocess, sys, time

# The script runs in its own session. All its processes inherit a pipe, which closes when the last of them ends.
with socket.create_server(("127.0.0.1", 0)) as free:
    port = free.getsockname()[1]
reading, writing = os.pipe()
path = os.path.dirname(sys.executable) + os.pathsep + os.environ["PATH"]
script = subprocess.Popen(
    ["bash", "launch.sh", *sys.argv[1:], str(port)],
    start_new_session=True, pass_fds=[writing], stdin=subprocess.DEVNULL,
    env={**os.environ, "PATH": path, "WORKER_NOTES": os.path.abspath("notes.jsonl")})
os.close(writing)
code = script.wait()
ended = time.monotonic_ns()
left = not select.select([reading], [], [], 20)[0]
print(json.dumps({"code": code, "ended": ended, "port": port, "left": left}), file=open("ended.json", "w"))
"""

Worker = dict[str, Any]
VARIABLES = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT"}


class End(TypedDict):
    """How the script ended: its exit code and time, and True if a process of the script was still running."""

    code: int
    ended: int
    port: int
    left: bool


def check(grade: Grade) -> None:
    """Check a world with different numbers of nodes and ranks, another shape, then a worker that fails."""
    draw = random.Random(grade.seed)
    shapes = [draw.choice([(3, 2), (2, 3)]), draw.choice([(2, 2), (5, 1), (1, 3)])]
    for nodes, procs in shapes:
        ended, workers = run(grade, nodes, procs, LAST_RANK=str(draw.randrange(nodes * procs)))
        check_world(grade, nodes, procs, ended, workers)
    grade.measured("worlds that started", ", ".join(f"{nodes} nodes x {procs} ranks" for nodes, procs in shapes))
    grade.predicted("rank", 2 * 4 + 1)
    check_failure(grade, failing=draw.choice([1, 2]))  # neither the first nor the last that the script waits for


def run(grade: Grade, nodes: int, procs: int, **env: str) -> tuple[End, list[Worker]]:
    """Run the script; return how it ended, and each worker's notes in the order of their start."""
    files = {"worker.py": WORKER, "drive.py": DRIVE}
    env["SLOWNESS"] = f"{grade.slowness:g}"
    done = grade.program([sys.executable, "drive.py", str(nodes), str(procs)], files=files, env=env, seconds=10.0)
    workers = read_notes(grade, grade.written(done, "notes.jsonl") or "", done.err)
    if not workers:
        said = (done.err or done.out).strip().replace("\r", "\\r").split("\n")[-1]
        text = f"No worker started. The script printed: {said or 'nothing'}"
        ends = (grade.folder / "launch.sh").read_bytes().count(b"\r\n")  # grade.text turns them into \n
        if ends:
            seen = f"{count(ends, 'line ends', 'lines end')} with \\r\\n, and bash takes the \\r as part of a word."
            grade.reject("windows-line-ends", f"launch.sh: {seen} {text:.200}")
        grade.reject("unknown", text)
    ends = grade.records(done, "ended.json", End)
    if not ends:
        grade.reject("unknown", "The script ended the program that had started it.")
    ended = ends[0]
    if ended["left"]:
        grade.reject(
            "does-not-wait", "20 s after the script had ended, a process that it had started was still running."
        )
    return ended, list(workers.values())


def read_notes(grade: Grade, text: str, err: str) -> dict[int, Worker]:
    """Return what each worker recorded, by process."""
    workers: dict[int, Worker] = {}
    try:
        for line in text.splitlines():
            at, pid, what, value = msgspec.convert(json.loads(line), tuple[int, int, str, Any])
            workers.setdefault(pid, {"err": err})[what] = value
            workers[pid][f"{what} at"] = at
        whole = all(worker["started"].keys() == VARIABLES for worker in workers.values())
    except (ValueError, RecursionError, KeyError, AttributeError, msgspec.ValidationError):
        whole = False
    if not whole:
        grade.reject("unknown", "The workers' notes contain lines that worker.py did not write.")
    return workers


def check_world(grade: Grade, nodes: int, procs: int, ended: End, workers: list[Worker]) -> None:
    """Check the workers' variables, then whether they joined, then the script's end."""
    size = nodes * procs
    call = f"launch.sh {nodes} {procs}"
    variables = [worker["started"] for worker in workers]
    missing = sorted({name for each in variables for name, value in each.items() if value is None})
    if missing:
        grade.reject("not-exported", f"{call}: a worker has no {', '.join(missing)} in its environment.")
    ranks = sorted(each["RANK"] for each in variables)
    if len(set(ranks)) < len(ranks):
        is_local = all(each["RANK"] == each["LOCAL_RANK"] for each in variables)
        text = f"{call}: {len(workers)} workers have RANK {', '.join(ranks)}."
        grade.reject("ranks-twice" if is_local else "rank-formula", text)
    if {each["WORLD_SIZE"] for each in variables} == {str(procs)} != {str(size)}:  # some give up before the last starts
        grade.reject("world-is-a-node", f"{call}: workers got WORLD_SIZE={procs}; it should be {size}.")
    alone = [worker["alone at"] for worker in workers if "alone" in worker]
    late = [worker for worker in workers if alone and worker["started at"] > min(alone)]
    if late or (alone and len(workers) == 1 < size):
        grade.reject(
            "one-after-the-other",
            f"{call}: {len(workers) - len(late)} of {size} workers started, waited for the others and gave up. "
            f"Only then did the script start {len(late)} more.",
        )
    if len(workers) != size:
        text = f"{call}: {count(len(workers), 'worker')} started, but this world has {size}."
        grade.reject("too-few" if len(workers) in (2, 4) else "unknown", text)
    check_variables(grade, call, nodes, procs, variables)
    ports = {each["MASTER_PORT"] for each in variables}
    if len(ports) > 1 or ports != {str(ended["port"])}:
        grade.reject(
            "each-its-own-port", f"{call} {ended['port']}: the workers have MASTER_PORT {', '.join(sorted(ports))}."
        )
    last = max(worker.get("ended at", 0) for worker in workers)
    if ended["ended"] < last or (alone and ended["ended"] < min(alone)):
        grade.reject(
            "does-not-wait",
            f"{call}: the script ended with code {ended['code']}, before its last worker did.",
        )
    if any(worker.get("met") != list(range(size)) for worker in workers):
        grade.reject("unknown", f"{call}: not all ranks joined. {workers[0]['err'].strip()[-300:]}")
    if ended["code"] != 0:
        grade.reject("unknown", f"{call}: all workers ended with 0, but the script ended with {ended['code']}.")


def check_variables(grade: Grade, call: str, nodes: int, procs: int, variables: list[dict[str, str]]) -> None:
    """Check the variables rank by rank."""
    size = nodes * procs
    worlds = sorted({each["WORLD_SIZE"] for each in variables})
    if worlds != [str(size)]:
        grade.reject("world-is-a-node", f"{call}: workers got WORLD_SIZE={', '.join(worlds)}; it should be {size}.")
    ranks = sorted(each["RANK"] for each in variables)
    if sorted(map(int, ranks)) != list(range(size)):
        grade.reject("rank-formula", f"{call}: the workers have RANK {', '.join(ranks)}; ranks are 0 to {size - 1}.")
    for each in sorted(variables, key=lambda each: int(each["RANK"])):
        node, local = divmod(int(each["RANK"]), procs)
        observed = f"{call}: rank {each['RANK']} has NODE_RANK={each['NODE_RANK']} and LOCAL_RANK={each['LOCAL_RANK']}."
        if each["LOCAL_RANK"] != str(local):
            grade.reject("local-rank-goes-on" if each["LOCAL_RANK"] == each["RANK"] else "unknown", observed)
        if each["NODE_RANK"] != str(node):
            beliefs = ({"0"}, {each["RANK"] for each in variables})
            nodes_found = {each["NODE_RANK"] for each in variables}
            grade.reject("nodes-do-not-differ" if nodes_found in beliefs else "unknown", observed)


def check_failure(grade: Grade, failing: int) -> None:
    """Check a world in which one of four workers fails after all have joined."""
    ended, workers = run(grade, 2, 2, FAIL_RANK=str(failing))
    waited = sorted(worker["waited"] for worker in workers if "waited" in worker)
    observed = f"launch.sh 2 2: rank {failing} ended with code 7, the script ended with {ended['code']}"
    if ended["code"] == 0:
        grade.reject("code-lost", f"{observed}.")
    if waited:
        words = ", ".join(f"rank {rank}" for rank in waited)
        grade.reject("others-wait", f"{observed}, but {words} waited for it until they gave up.")
    grade.measured(
        f"rank {failing} failed with code 7", f"the script ended the others and returned code {ended['code']}"
    )
