"""Submit the four files and judge what the ranks note of themselves: how many, where, and whether they met."""

from pathlib import Path

from frog.grader.grade import Grade
from frog.grader.jobs import Job, run_jobs

HERE = Path(__file__).parent
FILES = ("directives.sbatch", "launcher.sbatch", "variables.sbatch", "meeting.sbatch")
NODES = ("node1", "node2")

MEASURED = "measured.sbatch"
"""What the prediction asks about, run beside the learner's files."""


def check(grade: Grade) -> None:
    """All four run side by side."""
    files = {name: (HERE / name).read_text() for name in ("worker.py", "starter.py")}
    files[MEASURED] = (
        grade.exercise.stub()["launcher.sbatch"].decode().replace("python3 starter", "srun python3 starter")
    )
    jobs = run_jobs(grade, [*FILES, MEASURED], files)
    for name in FILES:
        job = jobs[name]
        if job.state == "REFUSED":
            grade.reject("unknown", f"{job.title}: sbatch did not take it: {job.said.strip()}")
        check_size(grade, job)
        check_ranks(grade, job)
        check_meeting(grade, job)
        if name == "directives.sbatch":
            check_limit(grade, job)
        if job.state != "COMPLETED":
            grade.reject("unknown", f"{job.title}: all ranks met, and the job is {job.state}, {job.exit}. {tail(job)}")
        grade.measured(name, f"4 ranks on 2 nodes met, on {job.slurm}")
    grade.predicted("workers", len(jobs[MEASURED].noted("started")))


def tail(job: Job) -> str:
    """The last line of its log."""
    lines = job.said.strip().splitlines()
    return f"Its log ends with: {lines[-1][:200]}" if lines else "Its log is empty."


def where(job: Job) -> str:
    """How many workers ran on each node."""
    nodes = [each["node"] for each in job.noted("started")]
    return ", ".join(f"{nodes.count(node)} on {node}" for node in NODES)


def check_size(grade: Grade, job: Job) -> None:
    """Two workers on each of two nodes."""
    started = job.noted("started")
    counts = [sum(each["node"] == node for each in started) for node in NODES]
    if counts == [2, 2]:
        return
    observed = f"{job.title}: {len(started)} workers ran, {where(job)}; there should be 2 on each."
    if job.file == "launcher.sbatch":
        if counts == [2, 0]:
            grade.reject("first-node-alone", observed)
        if min(counts) > 2:
            grade.reject("launchers-squared", observed)
    elif counts == [1, 1]:
        grade.reject("after-the-first-command", observed)
    elif counts[1] == 0 and started:
        grade.reject("a-space-makes-a-comment", observed)
    grade.reject("unknown", f"{observed} {tail(job)}")


def check_ranks(grade: Grade, job: Job) -> None:
    """Four ranks, each once, each where it belongs."""
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
        grade.reject("read-too-early" if same_everywhere else "local-rank-is-rank", observed)
    expected = ["0", "1", "2", "3"]
    places = sorted((each["node"], each["NODE_RANK"], each["LOCAL_RANK"]) for each in started)
    right = [("node1", "0", "0"), ("node1", "0", "1"), ("node2", "1", "0"), ("node2", "1", "1")]
    if ranks != expected or places != right:
        found = "; ".join(f"{node}: NODE_RANK={n} LOCAL_RANK={local}" for node, n, local in places)
        grade.reject("unknown", f"{observed} {found}")


def check_meeting(grade: Grade, job: Job) -> None:
    """All in one place."""
    if job.noted("met") == [[0, 1, 2, 3]] * 4:
        return
    started = job.noted("started")
    ports = sorted({each["MASTER_PORT"] for each in started})
    hosts = sorted({each["MASTER_ADDR"] for each in started})
    observed = f"{job.title}: {len(job.noted('met'))} of 4 ranks met. They look at {', '.join(hosts)}"
    observed += f", port {', '.join(ports)}. Rank 0 is on node1."
    if len(ports) > 1:
        grade.reject("each-its-own-port", observed)
    if hosts == ["node1", "node2"] or (not set(hosts[0]) & set("[,") and hosts[0] not in NODES):
        grade.reject("own-host", observed)
    grade.reject("last-host" if hosts == ["node2"] else "folded-list" if "[" in hosts[0] else "unknown", observed)


def check_limit(grade: Grade, job: Job) -> None:
    """A day is 1440 minutes."""
    if job.limit_min != 24 * 60:
        found = "no limit" if job.limit_min is None else f"a limit of {job.limit_min} minutes"
        observed = f"{job.title}: the job has {found}, and 24 hours are 1440 minutes."
        grade.reject("time-in-hours" if job.limit_min == 24 else "unknown", observed)
