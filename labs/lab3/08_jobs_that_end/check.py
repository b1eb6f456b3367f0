"""Submit the four files, bring their time limits near, and check what the ranks record about themselves."""

import re
from pathlib import Path

from frog.learn.grader.grade import Grade
from frog.learn.grader.jobs import Job, run_jobs
from frog.learn.grader.words import count

HERE = Path(__file__).parent
LEAST_LEAD_S = 10
FILES = ("warning.sbatch", "passing_on.sbatch", "requeue.sbatch", "exit.sbatch")


def check(grade: Grade) -> None:
    """Run all four jobs at the same time; once both ranks of a job have trained, move its limit close.

    A slow machine gets more than 8 s, so that the ranks of a repaired job can save in time.
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
    """Check that two ranks trained."""
    if job.state == "REFUSED":
        grade.reject("unknown", f"{job.title}: sbatch rejected it: {job.said.strip()}")
    ranks = sorted(each["rank"] for each in job.noted("started") if each["start"] == 0)
    trained = len(job.noted("trained"))
    if ranks != [0, 1] or trained < 2:
        lines = job.said.strip().splitlines() or ["nothing"]
        observed = f"{job.title}: ranks {ranks} started, but ranks 0 and 1 should have; {trained} of 2 trained."
        grade.reject("unknown", f"{observed} Its log ends with: {lines[-1][:300]}")


def check_saved(grade: Grade, job: Job) -> None:
    """Check that both ranks saved when the limit was near."""
    saved, stopping = job.noted("saved"), job.noted("stopping")
    lead = re.search(r"^#SBATCH\s+--signal[= ]\S*@(\d+)", grade.text(job.file), re.M)
    if lead and int(lead[1]) < LEAST_LEAD_S:
        text = f"{job.title}: Slurm sends the signal {count(int(lead[1]), 'second')} before the limit."
        grade.reject("warned-too-late", f"{text} A save takes 1.5 s here, and minutes for a large model.")
    if len(saved) == 2:
        in_time = saved_before_requeue(job)
        if in_time < 2:
            text = f"{job.title}: the script called scontrol requeue when {in_time} of 2 ranks had saved."
            grade.reject("requeue-waits", f"{text} Requeueing ends them; they could save because it started slowly.")
        steps = " and ".join(f"rank {rank} at step {step}" for rank, step in sorted(saved))
        grade.measured(job.title, f"both ranks saved, {steps}: no collective keeps these two in step")
        return
    killed = job.noted("killed")
    if killed:
        text = f"{job.title}: {count(len(killed), 'rank')} got {killed[0]}, which worker.py does not handle, and ended"
        to_script = re.search(r"^#SBATCH\s+--signal[= ]\S*B", grade.text(job.file), re.M)
        id = "another-signal" if to_script else "signal-to-my-script"
        grade.reject(id, f"{text} immediately. No rank saved.")
    began = f"{len(stopping)} of 2 ranks began to save, which takes 1.5 s, and {len(saved)} finished"
    if job.state == "TIMEOUT":
        grade.reject(
            "trap-behind-srun" if waits_in_front(grade, job) else "unknown",
            f"{job.title}: the warning reached no rank. At the limit {began}: SIGKILL followed after 0.5 s.",
        )
    if not stopping:
        lines = [line for line in job.said.strip().splitlines() if line.strip()] or ["nothing"]
        other = re.search(r"KeyboardInterrupt|User defined signal|SIGUSR|SIGINT|Interrupt", job.said)
        text = f"{job.title}: after the warning, no rank received SIGTERM, and all ended without saving."
        text = f"{text} The job is {job.state}, {job.exit}; its log ends with: {lines[-1][:200]}"
        ended_by_srun = "forcing job termination" in job.said
        grade.reject("another-signal" if other else "kill-srun" if ended_by_srun else "unknown", text)
    if job.state == "CANCELLED":
        text = f"{job.title}: {began}. The job was cancelled: SIGTERM, and SIGKILL 0.5 s later."
        grade.reject("scancel-is-a-signal", text)
    if len(saved) < len(stopping) and job.restarts:
        text = f"{job.title}: {began}. The job was requeued meanwhile, which ended them."
        grade.reject("requeue-waits", text)
    if len(saved) < len(stopping):
        text = f"{job.title}: {began}. The script exited first ({job.exit}), which ended the job: {job.state}."
        grade.reject(
            "script-gets-it-too" if job.exit.endswith(":15") or job.exit.startswith("143:") else "wait-once", text
        )
    grade.reject("unknown", f"{job.title}: {began}; the job is {job.state}.")


def saved_before_requeue(job: Job) -> int:
    """Count the ranks that had saved when the script requeued its job, or at the end if it never did."""
    kinds = [note[-2] for note in job.notes]
    return kinds[: kinds.index("requeue")].count("saved") if "requeue" in kinds else kinds.count("saved")


def waits_in_front(grade: Grade, job: Job) -> bool:
    """True if the script has a trap for the warning but srun runs in the foreground."""
    text = re.sub(r"\\\n", " ", grade.text(job.file))
    warned = re.search(r"^#SBATCH\s+--signal[= ]B:(?:SIG)?(\w+)", text, re.M)
    trapped = warned and re.search(rf"^\s*trap\s.*\b(?:SIG)?{warned[1]}\b", text, re.M)
    steps = re.findall(r"^\s*srun\b.*$", text, re.M)
    return bool(trapped and steps and not any(re.search(r"&\s*(#.*)?$", step) for step in steps))


def check_resumed(grade: Grade, job: Job) -> None:
    """Check that the second start continues where the first stopped, up to step 200."""
    first = [step for _, step in job.noted("saved")]
    again = [each for each in job.noted("started") if each["start"] == 1]
    if not again:
        observed = f"{job.title}: saved at step {first[0]} and did not start again"
        observed = f"{observed}: {count(job.restarts, 'restart')}, {job.state}."
        grade.reject("requeue-is-automatic", observed)
    steps = sorted(each["step"] for each in again)
    if steps != sorted(first):
        before = job.noted("started")[0]["folder"]
        observed = (
            f"{job.title}: the ranks saved at steps {first} in {before}; after the restart, they began at steps {steps}"
        )
        if again[0]["folder"] != before:
            grade.reject("a-new-name-each-time", f"{observed} and looked in {again[0]['folder']}.")
        grade.reject("starts-anew" if steps == [0, 0] else "unknown", f"{observed}, although a checkpoint existed.")
    finished, ends = len(job.noted("finished")), f"the job is {job.state}, {job.exit}"
    if job.restarts > 1 and finished >= 2:
        text = f"{job.title}: both ranks finished their 200 steps after the first restart; then the job started again"
        grade.reject("requeued-when-done", f"{text}: {job.restarts} restarts in total, and {ends}.")
    if finished < 2:
        grade.reject("unknown", f"{job.title}: {finished} of 2 ranks finished; {ends}.")
    if job.state != "COMPLETED":
        text = f"{job.title}: both ranks finished, but {ends}: the code is that of the script's last command."
        grade.reject("last-command-counts", text)
    grade.measured(f"{job.title}, second start", f"resumed at steps {steps}")


def check_exit(grade: Grade, job: Job) -> None:
    """Check that the job failed, and failed immediately."""
    waited = job.noted("waited")
    observed = f"{job.title}: rank 1 failed with code 7; the job is {job.state}, with code {job.exit}"
    if job.state == "COMPLETED":
        grade.reject("code-lost", f"{observed}.")
    if waited:
        grade.reject("others-wait", f"{observed}. Rank {waited[0]} waited 4 s or more for it, and gave up.")
    if job.state != "FAILED":
        grade.reject("unknown", f"{observed}.")
    grade.measured(job.title, f"{job.state} with code {job.exit}, immediately")
    if job.exit.startswith("143:"):
        grade.note(
            "exit.sbatch: rank 1 ended with 7, srun ended rank 0 (128 + SIGTERM = 143): the highest code counts."
        )
