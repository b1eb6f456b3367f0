"""Hand a training run in from Python: submitit writes the job file, and Slurm starts one task for each rank.

    python scripts/submit_with_submitit.py config/demo.toml
    python scripts/submit_with_submitit.py --cluster slurm --nodes 2 --tasks-per-node 4 --gpus-per-node 4 RUN.toml

The first line needs no cluster: submitit starts the tasks on this machine, with the same files and the same signals.
There is no torchrun here. submitit's tasks are the ranks; `Training.__call__` tells each of them who it is.

Shortly before its time is over, the job gets a signal (USR2). Every rank then saves, rank 0 hands the job in again, and
it goes on at the same step. What submitit writes (the job file, the pickled call, each task's output) is in --folder.
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

# ---- what every task runs --------------------------------------------------------------------------------------------


class Training:
    """A run, as something that can be pickled here, and called there. `words` are what train.py takes."""

    def __init__(self, words):
        self.words = words

    def __call__(self):
        os.environ.update(torchrun_words(submitit.JobEnvironment()))
        from frog.train.main import main  # loads torch, so only there; on it the variables must be set

        warned, hand_in_again = [], signal.getsignal(signal.SIGUSR2)  # what submitit would do at once

        def warn(number, frame):
            warned.append(number)
            os.kill(os.getpid(), signal.SIGTERM)  # "save after this step, and stop", as all ranks agree to do

        signal.signal(signal.SIGUSR2, warn)
        code = main([*self.words, "--continue"])  # begins the run, or goes on where the job before this one has saved
        deadline = time.monotonic() + 2
        while code == 128 + signal.SIGTERM and not warned and time.monotonic() < deadline:
            time.sleep(0.05)  # another rank was warned first; this one's warning is on its way
        if warned and code == 128 + signal.SIGTERM:
            hand_in_again(signal.SIGUSR2, None)  # ends rank 0 here; the others come back
            sys.exit(0)
        if code != 0:
            raise RuntimeError(f"rank {os.environ['RANK']} ended with exit code {code}")

    def checkpoint(self):
        """What submitit hands in again: the same call. The run folder knows how far it has come."""
        return submitit.helpers.DelayedSubmission(self)


def torchrun_words(task):
    """Who a task is, in the variables that torchrun would set."""
    first_host = task.hostnames[0] if task.num_nodes > 1 else "127.0.0.1"
    words = {
        "RANK": task.global_rank,
        "WORLD_SIZE": task.num_tasks,
        "LOCAL_RANK": task.local_rank,
        "LOCAL_WORLD_SIZE": task.num_tasks // task.num_nodes,
        "NODE_RANK": task.node,
        "MASTER_ADDR": os.environ.get("MASTER_ADDR", first_host),  # where rank 0 is
        "MASTER_PORT": 20_000 + int(task.raw_job_id) % 10_000,  # the same on every rank, another for every job
        "OMP_NUM_THREADS": os.environ.get("SLURM_CPUS_PER_TASK", 1),
    }
    return {name: str(value) for name, value in words.items()}


# ---- handing it in ---------------------------------------------------------------------------------------------------


def hand_in(args):
    """Give the job to Slurm, or to this machine."""
    # Of a job that was at its limit three times, submitit says that it can have no more. A long run has many limits.
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
    """Show what rank 0 writes until the job has ended; raise if a rank failed. Ctrl-C and SIGTERM end the job too."""
    shown, ended = 0, False
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    try:
        while not ended:
            ended = job.done()
            text = job.task(0).stdout() or ""
            print(text[shown:], end="", flush=True)
            shown = len(text)
            time.sleep(0.2)
    except KeyboardInterrupt:  # pressed in a terminal, it has come to the ranks as well: they save and leave
        end(job, patience_s=10)
        raise
    except SystemExit:
        end(job, patience_s=0)
        raise
    tasks = [job.task(rank) for rank in range(job.num_tasks)]
    failed = [task for task in tasks if not task.paths.result_pickle.exists() or task.exception()]
    if failed:
        words = "".join(f"\n  - {task.paths.stderr}" for task in failed)
        raise LaunchError(f"{len(failed)} of {len(tasks)} ranks failed; what they said is in{words}")


def end(job, patience_s):
    """See the job end: by itself within so long, or asked to. submitit gives ranks that it asks one second."""
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
    parser.add_argument("--gpus-per-node", type=int, default=0, help="as many as ranks, or 0 for CPUs; default: 0")
    parser.add_argument("--cpus-per-task", type=int)
    parser.add_argument("--timeout-min", type=int, default=30, help="the job's time limit; default: 30")
    parser.add_argument(
        "--signal-delay-s", type=int, default=60, help="of Slurm: so long before that the ranks save; default: 60"
    )
    parser.add_argument("--partition")
    parser.add_argument("--account")
    parser.add_argument("--folder", type=Path, default=Path("submitit"), help="submitit's own files; default: submitit")
    parser.add_argument("words", nargs=argparse.REMAINDER, metavar="RUN.toml ...", help="what train.py takes")
    args = parser.parse_args()
    if not args.words:
        raise UsageError("no run file", "python scripts/submit_with_submitit.py config/demo.toml")
    if args.cluster == "local" and args.nodes != 1:
        raise UsageError(f"--cluster local has one node, not {args.nodes}", "--cluster slurm, or more --tasks-per-node")
    return args


def main():
    args = read_arguments()
    job = hand_in(args)
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
