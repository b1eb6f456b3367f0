"""Simulates a training program that saves when it receives a request to stop. Do not change it.

python3 worker.py --checkpoint FOLDER [--continue] [--steps N] [--fail RANK]

Trains step by step. On SIGTERM it finishes the step, saves (which takes 1.5 s) and ends with 143. It does not handle
SIGUSR1, which ends it immediately, as it ends any program. --continue resumes at the step saved in FOLDER. --fail: that
rank fails after all have trained, and the others wait for it, as in a collective. Events are written to
notes/JOB.jsonl.
"""

import argparse
import json
import os
import signal
import sys
import time
from pathlib import Path

SAVE_S = 1.5
WAIT_S = 4.0 * float(os.environ.get("SLOWNESS", "1"))  # more on a slow machine
RANK, RANKS = int(os.environ.get("SLURM_PROCID", "0")), int(os.environ.get("SLURM_NTASKS", "1"))
NOTES = Path("notes") / f"{os.environ['SLURM_JOB_ID']}.jsonl"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--checkpoint", type=Path, required=True)
    parser.add_argument("--continue", dest="goes_on", action="store_true")
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--fail", type=int)
    args = parser.parse_args()
    asked: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: asked.append(number))
    signal.signal(signal.SIGUSR1, ended_at_once)
    path = args.checkpoint / f"rank_{RANK}.json"
    step = json.loads(path.read_text())["step"] if args.goes_on and path.is_file() else 0
    start = int(os.environ.get("SLURM_RESTART_COUNT", "0"))
    note("started", {"rank": RANK, "step": step, "start": start, "folder": str(args.checkpoint)})
    step_s = 0.05 if start == 0 else 0.002  # fast after a restart, so that the check does not take long
    for done in range(1, args.steps - step + 1):
        time.sleep(step_s)
        if done == 3:
            note("trained", RANK)
            if args.fail is not None:
                fail(args.fail, asked)
        if asked:
            note("stopping", RANK)
            save(path, step + done)
            sys.exit(143)
    note("finished", RANK)


def ended_at_once(number: int, _: object) -> None:
    note("killed", signal.Signals(number).name)
    os._exit(128 + number)


def save(path: Path, step: int) -> None:
    """Save slowly, so that a rank with less time left saves nothing."""
    time.sleep(SAVE_S)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"step": step}))
    note("saved", [RANK, step])


def fail(failing: int, asked: list[int]) -> None:
    deadline = time.monotonic() + WAIT_S
    if failing == RANK:
        while NOTES.read_text().count('"trained"') < RANKS and time.monotonic() < deadline:
            time.sleep(0.02)
        note("failed", RANK)
        sys.exit(7)
    while time.monotonic() < deadline:
        if asked:
            sys.exit(128 + asked[0])
        time.sleep(0.02)
    note("waited", RANK)
    sys.exit(1)


def note(what: str, value: object) -> None:
    NOTES.parent.mkdir(exist_ok=True)
    with open(NOTES, "a") as file:
        file.write(json.dumps([time.monotonic_ns(), os.getpid(), what, value]) + "\n")


if __name__ == "__main__":
    main()
