"""Submit a training run from Python: submitit writes the job file, and Slurm starts one task per rank.

    python scripts/submit_with_submitit.py config/demo.toml
    python scripts/submit_with_submitit.py --cluster slurm --nodes 2 --tasks-per-node 4 --gpus-per-node 4 RUN.toml

The first command needs no cluster: submitit starts the tasks on this machine, with the same files and signals.
It does not use torchrun. submitit's tasks are the ranks; `Training.__call__` sets the variables of each.

Shortly before its time limit, the job receives a signal (USR2). Every rank then saves, rank 0 submits the job again,
and it continues at the same step. submitit writes its files (job file, pickled call, output of each task) to --folder.
"""

import argparse
import os
import signal
import sys
import time
from pathlib import Path

from frog.core.errors import FrogError, LaunchError, UsageError

try:
    import submitit
except ImportError:
    sys.exit("error: submitit is not installed\n  try: pip install submitit")

# ---- the program of every task ---------------------------------------------------------------------------------------


class Training:
    """A run as a callable: pickled here, called in the job. `words` are the arguments of train.py."""

    def __init__(self, words):
        self.words = words

    def __call__(self):
        os.environ.update(torchrun_variables(submitit.JobEnvironment()))
        from frog.train.main import main  # loads torch, so only in the job, after setting the variables

        warned, resubmit = [], signal.getsignal(signal.SIGUSR2)  # submitit's handler

        def warn(number, frame):
            warned.append(number)
            os.kill(os.getpid(), signal.SIGTERM)  # all ranks agree to save after this step and stop

        signal.signal(signal.SIGUSR2, warn)
        code = main([*self.words, "--continue"])  # starts the run, or resumes from the previous job's checkpoint
        deadline = time.monotonic() + 2
        while code == 128 + signal.SIGTERM and not warned and time.monotonic() < deadline:
            time.sleep(0.05)  # another rank was warned first; this rank's warning will follow
        if warned and code == 128 + signal.SIGTERM:
            resubmit(signal.SIGUSR2, None)  # ends rank 0 here; the other ranks return
            sys.exit(0)
        if code != 0:
            raise RuntimeError(f"rank {os.environ['RANK']} ended with exit code {code}")

    def checkpoint(self):
        """Return the call that submitit submits again: the same one. The run folder has the progress."""
        return submitit.helpers.DelayedSubmission(self)


def torchrun_variables(task):
    """Return a task's rank in the variables that torchrun would set."""
    first_host = task.hostnames[0] if task.num_nodes > 1 else "127.0.0.1"
    words = {
        "RANK": task.global_rank,
        "WORLD_SIZE": task.num_tasks,
        "LOCAL_RANK": task.local_rank,
        "LOCAL_WORLD_SIZE": task.num_tasks // task.num_nodes,
        "NODE_RANK": task.node,
        "MASTER_ADDR": os.environ.get("MASTER_ADDR", first_host),  # the host of rank 0
        "MASTER_PORT": 20_000 + int(task.raw_job_id) % 10_000,  # equal on every rank, different for every job
        "OMP_NUM_THREADS": os.environ.get("SLURM_CPUS_PER_TASK", 1),
    }
    return {name: str(value) for name, value in words.items()}


# ---- submission ------------------------------------------------------------------------------------------------------


def submit(args):
    """Submit the job to Slurm, or start it on this machine."""
    # By default, submitit gives up when a job reaches its time limit three times. A long run reaches it often.
    executor = submitit.AutoExecutor(args.folder, cluster=args.cluster, slurm_max_num_timeout=1000)
    executor.update_parameters(
        name="frog",
        nodes=args.nodes,
        tasks_per_node=args.tasks_per_node,
        gpus_per_node=args.gpus_per_node,
        timeout_min=args.timeout_min,
    )
    if args.cluster == "slurm":
        wanted = {name: getattr(args, name) for name in ("partition", "account", "cpus_per_task")}
        executor.update_parameters(
            slurm_signal_delay_s=args.signal_delay_s,
            slurm_srun_args=["--kill-on-bad-exit=1"],  # one rank that fails ends the step
            **{f"slurm_{name}": value for name, value in wanted.items() if value is not None},
        )
    return executor.submit(Training(args.words))


def follow(job):
    """Print rank 0's output until the job has ended; raise if a rank failed. Ctrl-C and SIGTERM also end the job."""
    shown, ended = 0, False
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    try:
        while not ended:
            ended = job.done()
            text = job.task(0).stdout() or ""
            print(text[shown:], end="", flush=True)
            shown = len(text)
            time.sleep(0.2)
    except KeyboardInterrupt:  # a terminal sends it to the ranks as well: they save and exit
        end(job, patience_s=10)
        raise
    except SystemExit:
        end(job, patience_s=0)
        raise
    tasks = [job.task(rank) for rank in range(job.num_tasks)]
    failed = [task for task in tasks if not task.paths.result_pickle.exists() or task.exception()]
    if failed:
        words = "".join(f"\n  - {task.paths.stderr}" for task in failed)
        raise LaunchError(f"{len(failed)} of {len(tasks)} ranks failed; their output is in{words}")


def end(job, patience_s):
    """Wait `patience_s` for the job to end, then cancel it. submitit gives canceled ranks one second."""
    deadline = time.monotonic() + patience_s
    while not job.done() and time.monotonic() < deadline:
        time.sleep(0.1)
    if not job.done():
        job.cancel()
    while not job.done():
        time.sleep(0.1)


def read_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cluster", choices=["local", "slurm"], default="local", help="default: this machine")
    parser.add_argument("--nodes", type=int, default=1)
    parser.add_argument("--tasks-per-node", type=int, default=2, help="ranks on each node; default: 2")
    parser.add_argument("--gpus-per-node", type=int, default=0, help="one per rank, or 0 for CPUs; default: 0")
    parser.add_argument("--cpus-per-task", type=int)
    parser.add_argument("--timeout-min", type=int, default=30, help="the job's time limit; default: 30")
    parser.add_argument(
        "--signal-delay-s", type=int, default=60, help="Slurm: save this long before the limit; default: 60"
    )
    parser.add_argument("--partition")
    parser.add_argument("--account")
    parser.add_argument("--folder", type=Path, default=Path("submitit"), help="submitit's files; default: submitit")
    parser.add_argument("words", nargs=argparse.REMAINDER, metavar="RUN.toml ...", help="arguments of train.py")
    args = parser.parse_args()
    if not args.words:
        raise UsageError("no run file", "python scripts/submit_with_submitit.py config/demo.toml")
    if args.cluster == "local" and args.nodes != 1:
        raise UsageError(f"--cluster local has one node, not {args.nodes}", "--cluster slurm, or more --tasks-per-node")
    return args


def main():
    args = read_arguments()
    job = submit(args)
    print(f"job {job.job_id}: {job.num_tasks} ranks; their output: {args.folder}/{job.job_id}_RANK_log.out", flush=True)
    if args.cluster == "slurm":
        print(f"squeue --job {job.job_id} shows it, scancel {job.job_id} ends it")
    else:
        follow(job)


if __name__ == "__main__":
    try:
        main()
    except FrogError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(130)
