"""Draw jobs as layouts of tasks on hosts, write Slurm's variables for them, and check what the learner reads."""

import random
from collections.abc import Callable
from typing import Any, NamedTuple

from frog.learn.grader.grade import Grade

NAMES = ("RANK", "LOCAL_RANK", "NODE_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


class Job(NamedTuple):
    """A layout of tasks on hosts, in the order of SLURM_PROCID."""

    id: int
    hosts: list[str]
    folded: str
    tasks: list[tuple[int, int]]  # (node, number on that node)
    sizes: list[int]
    login: str

    def slurm(self, rank: int) -> dict[str, str]:
        """Return the variables that Slurm sets for a task."""
        node, local = self.tasks[rank]
        return {
            "SLURM_PROCID": str(rank),
            "SLURM_LOCALID": str(local),
            "SLURM_NODEID": str(node),
            "SLURM_NTASKS": str(len(self.tasks)),
            "SLURM_NPROCS": str(len(self.tasks)),
            "SLURM_NNODES": str(len(self.hosts)),
            "SLURM_JOB_NUM_NODES": str(len(self.hosts)),
            "SLURM_STEP_TASKS_PER_NODE": fold_counts(self.sizes),
            "SLURM_JOB_NODELIST": self.folded,
            "SLURM_STEP_NODELIST": self.folded,
            "SLURMD_NODENAME": self.hosts[node],
            "SLURM_LAUNCH_NODE_IPADDR": self.login,
            "SLURM_SUBMIT_HOST": "login1",
            "SLURM_JOB_ID": str(self.id),
            "SLURM_JOBID": str(self.id),
        }

    def torch(self, rank: int) -> dict[str, str]:
        """Return the variables that torch needs, except the port, which the learner chooses."""
        node, local = self.tasks[rank]
        return {
            "RANK": str(rank),
            "LOCAL_RANK": str(local),
            "NODE_RANK": str(node),
            "WORLD_SIZE": str(len(self.tasks)),
            "LOCAL_WORLD_SIZE": str(self.sizes[node]),
            "MASTER_ADDR": self.hosts[0],
        }


def fold_counts(sizes: list[int]) -> str:
    """Write [2, 2, 1] as Slurm does: "2(x2),1"."""
    runs: list[list[int]] = []
    for size in sizes:
        if runs and runs[-1][0] == size:
            runs[-1][1] += 1
        else:
            runs.append([size, 1])
    return ",".join(f"{size}(x{times})" if times > 1 else f"{size}" for size, times in runs)


def draw_hosts(draw: random.Random, count: int) -> tuple[list[str], str]:
    """Draw host names, and return them with Slurm's abbreviated list."""
    prefix, width, first = draw.choice(["gpu", "node", "as-02-r"]), draw.choice([1, 3]), draw.randint(2, 40)
    other = f"{draw.choice(['big', 'fat'])}{draw.randint(1, 9)}"
    shape = draw.choice(["folded", "gap", "other first", "other last"]) if count > 2 else "folded"
    if count == 1:
        alone = draw.choice([f"{prefix}{first:0{width}d}", "login-a"])
        return [alone], alone
    numbers = [f"{first + n:0{width}d}" for n in range(count)]
    if shape == "gap":
        numbers[-1] = f"{first + count + 3:0{width}d}"
        return [prefix + n for n in numbers], f"{prefix}[{numbers[0]}-{numbers[-2]},{numbers[-1]}]"
    if shape.startswith("other"):
        numbers.pop()
        folded = f"{prefix}[{numbers[0]}-{numbers[-1]}]"
        hosts = [prefix + n for n in numbers]
        return (
            ([other, *hosts], f"{other},{folded}") if shape == "other first" else ([*hosts, other], f"{folded},{other}")
        )
    return [prefix + n for n in numbers], f"{prefix}[{numbers[0]}-{numbers[-1]}]"


def draw_job(draw: random.Random, sizes: list[int], *, cyclic: bool, job_id: int) -> Job:
    """Draw a job whose tasks are placed in blocks, or on the nodes in turn."""
    hosts, folded = draw_hosts(draw, len(sizes))
    tasks = [(node, local) for node, size in enumerate(sizes) for local in range(size)]
    if cyclic:
        tasks.sort(key=lambda task: (task[1], task[0]))
    return Job(job_id, hosts, folded, tasks, sizes, f"10.{draw.randint(0, 9)}.0.4")


def check(grade: Grade) -> None:
    """Check every task of every job, then the ports."""
    draw = random.Random(grade.seed)
    first = draw.randint(100_000, 900_000)
    layouts = [([2, 2], False), ([2, 2, 1], False), ([3, 3], True), ([1], False), ([4], False), ([1, 3, 2], False)]
    layouts += [([draw.randint(1, 4) for _ in range(draw.randint(2, 5))], draw.random() < 0.5) for _ in range(5)]
    jobs = [draw_job(draw, sizes, cyclic=cyclic, job_id=first + n) for n, (sizes, cyclic) in enumerate(layouts)]
    lists = [draw_hosts(draw, draw.randint(1, 6)) for _ in range(12)]
    lists.append((["gpu007"], "gpu[007,011-013,2]"))
    lists.append((["c1-7"], "c1-[7-9],c2-[1-4]"))
    lists.append((["a1"], "a1,b[1-3]"))
    case = {"lists": [text for _, text in lists], "jobs": [[j.slurm(r) for r in range(len(j.tasks))] for j in jobs]}
    found = grade.call(case).values[0]
    for answers in found["jobs"]:
        for rank, answer in enumerate(answers):
            check_shape(grade, answer, rank)
    check_tasks(grade, jobs, found["jobs"])
    check_lists(grade, lists, found["hosts"])
    check_ports(grade, jobs, found["jobs"])
    grade.measured("tasks with the right variables", f"{sum(len(j.tasks) for j in jobs)}, in {len(jobs)} jobs")


def check_shape(grade: Grade, answer: Any, rank: int) -> None:
    """Check that all variables exist and are text."""
    if not isinstance(answer, dict):
        grade.reject("unknown", f"torch_variables returned {type(answer).__name__}, expected a dict.")
    missing = [name for name in NAMES if name not in answer]
    if missing:
        grade.reject(
            "unknown",
            f"task {rank}: {', '.join(missing)} missing; torch_variables returned {', '.join(answer) or 'none'}.",
        )
    for name in NAMES:
        if not isinstance(answer[name], str):
            grade.reject("not-text", f"task {rank}: {name} is {answer[name]!r}, of type {type(answer[name]).__name__}.")


def check_tasks(grade: Grade, jobs: list[Job], found: list[list[dict[str, str]]]) -> None:
    """Compare with the layouts, and name the variable that was used instead."""
    for name in NAMES[:-1]:
        tasks = [
            (job, rank, a[name]) for job, answers in zip(jobs, found, strict=True) for rank, a in enumerate(answers)
        ]
        wrong = [(job, rank, value) for job, rank, value in tasks if value != job.torch(rank)[name]]
        if not wrong:
            continue
        job, rank, value = wrong[0]
        observed = (
            f"{name} of task {rank}, on node {job.tasks[rank][0]}, is {value}, but should be {job.torch(rank)[name]}: "
            f"{len(job.hosts)} nodes with {fold_counts(job.sizes)} tasks, {job.folded}. "
            f"{len(wrong)} of {len(tasks)} tasks differ."
        )
        shares = [
            (sum(value == belief(job, rank) for job, rank, value in wrong) / len(wrong), -n, id)
            for n, (id, belief) in enumerate(BELIEFS[name])
        ]
        share, _, id = max(shares)
        grade.reject(id if share > 0.7 else "unknown", observed)


Belief = Callable[[Job, int], object]


def slurms(variable: str) -> Belief:
    """Use one of Slurm's variables unchanged."""
    return lambda job, rank: job.slurm(rank)[variable]


def number(find: Callable[[Job, int, int, int], int]) -> Belief:
    """Compute a number from job, rank, node and number on the node, as text."""
    return lambda job, rank: str(find(job, rank, *job.tasks[rank]))


def mean(job: Job) -> int:
    return max(1, len(job.tasks) // len(job.hosts))


BELIEFS: dict[str, list[tuple[str, Belief]]] = {
    "RANK": [
        ("local-rank-is-rank", slurms("SLURM_LOCALID")),
        ("rank-by-arithmetic", number(lambda job, rank, node, local: sum(job.sizes[:node]) + local)),
        ("nodes-are-equal", number(lambda job, rank, node, local: node * job.sizes[node] + local)),
        ("nodes-are-equal", number(lambda job, rank, node, local: node * mean(job) + local)),
    ],
    "LOCAL_RANK": [
        ("local-rank-is-rank", slurms("SLURM_PROCID")),
        ("nodes-are-equal", number(lambda job, rank, node, local: rank % mean(job))),
        ("rank-by-arithmetic", number(lambda job, rank, node, local: rank % job.sizes[node])),
        ("rank-by-arithmetic", number(lambda job, rank, node, local: rank - sum(job.sizes[:node]))),
    ],
    "NODE_RANK": [
        ("node-rank-from-localid", slurms("SLURM_LOCALID")),
        ("node-rank-from-procid", slurms("SLURM_PROCID")),
        ("nodes-are-equal", number(lambda job, rank, node, local: rank // mean(job))),
        ("rank-by-arithmetic", number(lambda job, rank, node, local: rank // job.sizes[node])),
    ],
    "WORLD_SIZE": [
        ("world-is-nodes", slurms("SLURM_NNODES")),
        ("nodes-are-equal", number(lambda job, rank, node, local: len(job.hosts) * job.sizes[node])),
        ("nodes-are-equal", number(lambda job, rank, node, local: len(job.hosts) * job.sizes[0])),
    ],
    "LOCAL_WORLD_SIZE": [
        ("nodes-are-equal", number(lambda job, rank, node, local: len(job.tasks) // len(job.hosts))),
        ("nodes-are-equal", number(lambda job, rank, node, local: job.sizes[0])),
        ("nodes-are-equal", number(lambda job, rank, node, local: job.sizes[-1])),
        ("nodes-are-equal", number(lambda job, rank, node, local: max(job.sizes))),
        ("world-is-nodes", slurms("SLURM_NNODES")),
    ],
    "MASTER_ADDR": [
        ("own-host", slurms("SLURMD_NODENAME")),
        ("own-host", lambda job, rank: "localhost"),
        ("own-host", lambda job, rank: "127.0.0.1"),
        ("where-srun-is", slurms("SLURM_LAUNCH_NODE_IPADDR")),
        ("where-srun-is", slurms("SLURM_SUBMIT_HOST")),
        ("last-host", lambda job, rank: job.hosts[-1]),
        ("zeros-dropped", lambda job, rank: dropped(job.hosts[0])),
        ("folded-list", lambda job, rank: job.folded),
        ("folded-list", lambda job, rank: job.folded.split(",")[0]),
        ("folded-list", lambda job, rank: job.folded.split("[")[0]),
        ("folded-list", lambda job, rank: job.folded.split("-")[0]),
        ("folded-list", lambda job, rank: job.folded.replace("[", "").split("-")[0]),
        ("folded-list", lambda job, rank: job.folded.replace("[", "").split(",")[0].split("-")[0]),
    ],
}


def dropped(host: str) -> str:
    """Turn gpu007 into gpu7."""
    name = host.rstrip("0123456789")
    return name + str(int(host[len(name) :])) if name != host else host


def check_lists(grade: Grade, lists: list[tuple[list[str], str]], found: list[Any]) -> None:
    """Check more node lists than the jobs have."""
    for (hosts, text), host in zip(lists, found, strict=True):
        observed = f"first_host({text!r}) returned {host!r}, but the first host is {hosts[0]!r}."
        if host != hosts[0] and host == dropped(hosts[0]):
            grade.reject("zeros-dropped", observed)
        if (
            host != hosts[0]
            and isinstance(host, str)
            and (set(host) & set("[],") or host + "[" == text[: len(host) + 1])
        ):
            grade.reject("folded-list", observed)
        if host != hosts[0]:
            grade.reject("last-host" if host == hosts[-1] else "unknown", observed)


def check_ports(grade: Grade, jobs: list[Job], found: list[list[dict[str, str]]]) -> None:
    """Check that all tasks of a job use one port, and that jobs use different ports."""
    for job, answers in zip(jobs, found, strict=True):
        ports = sorted({answer["MASTER_PORT"] for answer in answers})
        if len(ports) > 1:
            grade.reject(
                "each-its-own-port",
                f"The {len(answers)} tasks of job {job.id} use {len(ports)} ports: {', '.join(ports[:4])}.",
            )
        if not ports[0].isdecimal() or not 1024 <= int(ports[0]) <= 65_535:
            grade.reject(
                "unknown", f"MASTER_PORT of job {job.id} is {ports[0]}: it should be a number from 1024 to 65535."
            )
    used = [answers[0]["MASTER_PORT"] for answers in found]
    if len(set(used)) < len(used):
        grade.reject(
            "one-port-for-all-jobs",
            f"{len(jobs)} jobs with the numbers {jobs[0].id} to {jobs[-1].id} use {len(set(used))} ports.",
        )
