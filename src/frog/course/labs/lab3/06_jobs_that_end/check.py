"""Submit the four files, bring their time limits near, and judge what the ranks note of themselves."""

from pathlib import Path

from frog.grader.grade import Grade
from frog.grader.jobs import Job, run_jobs

HERE = Path(__file__).parent
FILES = ("warning.sbatch", "passing_on.sbatch", "requeue.sbatch", "exit.sbatch")


def check(grade: Grade) -> None:
    """All four run side by side; when both ranks of a job have trained, its limit is near.

    Whoever repaired it has saved by then, if a slow machine is given more than 8 s.
    """
    end = f"now+{8 * grade.slowness:.0f}seconds"
    near_limit = {"of": FILES[:3], "when": "trained", "count": 2, "end": end, "until": "stopping"}
    jobs = run_jobs(grade, FILES, {"worker.py": (HERE / "worker.py").read_text()}, near_limit)
    for name in FILES:
        check_started(grade, jobs[name])
        if name == "exit.sbatch":
            check_exit(grade, jobs[name])
        else:
            check_saved(grade, jobs[name])
    check_resumed(grade, jobs["requeue.sbatch"])


def check_started(grade: Grade, job: Job) -> None:
    """Two ranks trained."""
    if job.state == "REFUSED":
        grade.reject("unknown", f"{job.title}: sbatch did not take it: {job.said.strip()}")
    ranks = sorted(each["rank"] for each in job.noted("started") if each["start"] == 0)
    trained = len(job.noted("trained"))
    if ranks != [0, 1] or trained < 2:
        lines = job.said.strip().splitlines() or ["nothing"]
        observed = f"{job.title}: ranks {ranks} started, there should be 0 and 1; {trained} of 2 trained."
        grade.reject("unknown", f"{observed} Its log ends with: {lines[-1][:300]}")


def check_saved(grade: Grade, job: Job) -> None:
    """Both ranks saved when the limit was near."""
    saved, stopping = job.noted("saved"), job.noted("stopping")
    if len(saved) == 2:
        steps = " and ".join(f"rank {rank} at step {step}" for rank, step in sorted(saved))
        grade.measured(job.title, f"both ranks saved, {steps}: no collective keeps these two in step")
        return
    killed = job.noted("killed")
    if killed:
        observed = (
            f"{job.title}: {len(killed)} ranks got {killed[0]}, which they do not know, and ended at once. 0 saved."
        )
        grade.reject("signal-to-my-script", observed)
    count = f"{len(stopping)} of 2 ranks began to save, {len(saved)} came to the end of it, 1.5 s later"
    if job.state == "TIMEOUT":
        grade.reject(
            "trap-behind-srun",
            f"{job.title}: the warning came and no rank heard of it. At the limit {count}: SIGKILL came after 0.5 s.",
        )
    if not stopping:
        grade.reject(
            "kill-srun",
            f"{job.title}: the warning came; no rank got a SIGTERM, and none runs any more. The job is {job.state}.",
        )
    if len(saved) < len(stopping):
        grade.reject("wait-once", f"{job.title}: {count}. The job was {job.state} before: its script had ended.")
    grade.reject("unknown", f"{job.title}: {count}; the job is {job.state}.")


def check_resumed(grade: Grade, job: Job) -> None:
    """The second start goes on where the first stopped, to step 200."""
    first = [step for _, step in job.noted("saved")]
    again = [each for each in job.noted("started") if each["start"] == 1]
    if not again:
        observed = f"{job.title}: saved at step {first[0]}, and ended for good: {job.restarts} restarts, {job.state}."
        grade.reject("requeue-is-automatic", observed)
    steps = sorted(each["step"] for each in again)
    if steps != sorted(first):
        before = job.noted("started")[0]["folder"]
        observed = (
            f"{job.title}: the ranks saved at steps {first} in {before}; started again, they began at steps {steps}"
        )
        if again[0]["folder"] != before:
            grade.reject("a-new-name-each-time", f"{observed} and looked in {again[0]['folder']}.")
        grade.reject("starts-anew", f"{observed}, with the checkpoint beside them.")
    if len(job.noted("finished")) != 2 or job.state != "COMPLETED":
        grade.reject(
            "unknown", f"{job.title}: {len(job.noted('finished'))} of 2 ranks finished; the job is {job.state}."
        )
    grade.measured(f"{job.title}, second start", f"went on at steps {steps}")


def check_exit(grade: Grade, job: Job) -> None:
    """Failed, and at once."""
    waited = job.noted("waited")
    observed = f"{job.title}: rank 1 failed with code 7; the job is {job.state}, with code {job.exit}"
    if job.state == "COMPLETED":
        grade.reject("code-lost", f"{observed}.")
    if waited:
        grade.reject("others-wait", f"{observed}. Rank {waited[0]} had waited 4 s or more for it, until it gave up.")
    if job.state != "FAILED":
        grade.reject("unknown", f"{observed}.")
    grade.measured(job.title, f"{job.state} with code {job.exit}, at once")
    if job.exit.startswith("143:"):
        grade.note("exit.sbatch: rank 1 ended with 7, srun ended rank 0 (128 + SIGTERM = 143): the highest counts.")
