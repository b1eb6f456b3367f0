"""Submit the four files and check what the ranks record: how many ran, where, and whether they joined."""

import re
import socket
from pathlib import Path

from frog.learn.grader.grade import Grade
from frog.learn.grader.jobs import Job, run_jobs
from frog.learn.grader.words import count

HERE = Path(__file__).parent
FILES = ("directives.sbatch", "launcher.sbatch", "variables.sbatch", "meeting.sbatch")
NODES = ("node1", "node2")
NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT")

OWN = ("localhost", "127.0.0.1", "127.0.1.1", "0.0.0.0", "::1", socket.gethostname())
"""Names that refer to the local node, as in worker.py."""
MEASURED = "measured.sbatch"
"""The job that the prediction asks about; it runs together with the learner's files."""


def check(grade: Grade) -> None:
    """Run all four jobs at the same time, and check each."""
    files = {name: (HERE / name).read_text() for name in ("worker.py", "starter.py")}
    files[MEASURED] = (
        grade.exercise.stub()["launcher.sbatch"].decode().replace("python3 starter", "srun python3 starter")
    )
    jobs = run_jobs(grade, [*FILES, MEASURED], files)
    for name in FILES:
        job = jobs[name]
        if job.state == "REFUSED":
            grade.reject("unknown", f"{job.title}: sbatch rejected it: {job.said.strip()}")
        check_notes(grade, job)
        check_size(grade, job)
        check_ranks(grade, job)
        check_meeting(grade, job)
        if name == "directives.sbatch":
            check_limit(grade, job)
        if job.state != "COMPLETED":
            grade.reject("unknown", f"{job.title}: all ranks joined; the job is {job.state}, {job.exit}. {tail(job)}")
        grade.measured(name, f"4 ranks on 2 nodes joined, on {job.slurm}")
    grade.predicted("workers", len(jobs[MEASURED].noted("started")))


def tail(job: Job) -> str:
    """Return the last line of the job's log."""
    lines = job.said.strip().splitlines()
    return f"Its log ends with: {lines[-1][:200]}" if lines else "Its log is empty."


def where(job: Job) -> str:
    """Describe the number of workers on each node."""
    nodes = [each["node"] for each in job.noted("started")]
    return ", ".join(f"{nodes.count(node)} on {node}" for node in NODES)


def check_notes(grade: Grade, job: Job) -> None:
    """Check that only worker.py wrote the notes."""
    started = [{"node", *NAMES} == set(each) if isinstance(each, dict) else False for each in job.noted("started")]
    if not all(started):
        grade.reject("unknown", f"{job.title}: its notes contain lines that worker.py did not write.")


def why_one_a_node(grade: Grade, job: Job) -> str:
    """Return the misconception behind one task per node: a directive after the first command, or a missing one."""
    lines = grade.text(job.file).splitlines()
    first = next((n for n, line in enumerate(lines) if line.strip() and not line.lstrip().startswith("#")), len(lines))
    late = any(re.match(r"#SBATCH.*ntasks", line) for line in lines[first:])
    return "after-the-first-command" if late else "one-task-by-itself"


def is_written_otherwise(grade: Grade, job: Job) -> bool:
    """True if the file has a line that looks like a directive but is not one to Slurm."""
    return any(
        re.match(r"\s*#+\s*SBATCH", line) and not line.startswith("#SBATCH")
        for line in grade.text(job.file).splitlines()
    )


def check_size(grade: Grade, job: Job) -> None:
    """Check that two workers ran on each of two nodes."""
    started = job.noted("started")
    counts = [sum(each["node"] == node for each in started) for node in NODES]
    if counts == [2, 2]:
        return
    observed = f"{job.title}: {count(len(started), 'worker')} ran, {where(job)}; there should be 2 on each."
    meant_four = {each["WORLD_SIZE"] for each in started} == {"4"}
    if job.file == "launcher.sbatch":
        if counts == [2, 0] and meant_four:
            grade.reject("first-node-alone", f"{observed} Each has WORLD_SIZE 4.")
        if counts == [4, 4] and meant_four:
            grade.reject("launchers-squared", f"{observed} Each has WORLD_SIZE 4.")
    elif counts == [1, 1]:
        grade.reject(why_one_a_node(grade, job), observed)
    elif counts[1] == 0 and started and is_written_otherwise(grade, job):
        grade.reject("a-space-makes-a-comment", observed)
    elif counts[1] == 0 and meant_four and job.file != "directives.sbatch":
        grade.reject("first-node-alone", f"{observed} Each has WORLD_SIZE 4.")
    grade.reject("unknown", f"{observed} {tail(job)}")


def check_ranks(grade: Grade, job: Job) -> None:
    """Check that each of the four ranks ran once, on the right node."""
    started = job.noted("started")
    missing = sorted({name for each in started for name, value in each.items() if value is None})
    if missing:
        grade.reject("unknown", f"{job.title}: a worker has no {', '.join(missing)} in its environment.")
    ranks = sorted(each["RANK"] for each in started)
    observed = f"{job.title}: the four workers have RANK {', '.join(ranks)}, on node1, node1, node2 and node2."
    if {each["WORLD_SIZE"] for each in started} != {"4"}:
        worlds = ", ".join(each["WORLD_SIZE"] for each in started)
        grade.reject("unknown", f"{job.title}: the four workers have WORLD_SIZE {worlds}.")
    if ranks in (["0", "0", "0", "0"], ["0", "0", "1", "1"]):
        same_everywhere = {each["NODE_RANK"] for each in started} == {"0"}
        if all(each["RANK"] == each["LOCAL_RANK"] for each in started) and not same_everywhere:
            grade.reject("local-rank-is-rank", observed)
        if same_everywhere and re.search(r"SLURM_(PROCID|NODEID)", grade.text(job.file)):
            grade.reject("read-too-early", f"{observed} All have the first node's NODE_RANK, 0.")
        grade.reject("unknown", f"{observed} They have NODE_RANK {', '.join(each['NODE_RANK'] for each in started)}.")
    expected = ["0", "1", "2", "3"]
    places = sorted((each["node"], each["NODE_RANK"], each["LOCAL_RANK"]) for each in started)
    right = [("node1", "0", "0"), ("node1", "0", "1"), ("node2", "1", "0"), ("node2", "1", "1")]
    if ranks != expected or places != right:
        found = "; ".join(f"{node}: NODE_RANK={n} LOCAL_RANK={local}" for node, n, local in places)
        grade.reject("unknown", f"{observed} {found}")


def check_meeting(grade: Grade, job: Job) -> None:
    """Check that all ranks use the same address and port."""
    if job.noted("met") == [[0, 1, 2, 3]] * 4:
        return
    started = job.noted("started")
    ports = sorted({each["MASTER_PORT"] for each in started})
    hosts = sorted({each["MASTER_ADDR"] for each in started})
    observed = f"{job.title}: {len(job.noted('met'))} of 4 ranks joined. They use {', '.join(hosts)}"
    observed += f", port {', '.join(ports)}. Rank 0 is on node1."
    if len(ports) > 1:
        grade.reject("each-its-own-port", observed)
    if all(each["MASTER_ADDR"] in (each["node"], *OWN) for each in started):
        grade.reject("own-host", observed)
    grade.reject("last-host" if hosts == ["node2"] else "folded-list" if "[" in hosts[0] else "unknown", observed)


def check_limit(grade: Grade, job: Job) -> None:
    """Check the time limit; a day has 1440 minutes."""
    if job.limit_min != 24 * 60:
        found = "no limit" if job.limit_min is None else f"a limit of {job.limit_min} minutes"
        observed = f"{job.title}: the job has {found}, but 24 hours are 1440 minutes."
        grade.reject("time-in-hours" if job.limit_min == 24 else "unknown", observed)
