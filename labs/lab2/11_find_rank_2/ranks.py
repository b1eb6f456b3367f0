"""Make real runs fail: four processes, real gloo, one rank that brings them down."""

import os
import time
from datetime import datetime, timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist

SIZE = 4
CHECKED_EVERY = 4  # steps between two checks that the loss is finite


WARNINGS = {
    "read": "WARNING read again: OSError: [Errno 5] Input/output error; the second attempt succeeded",
    "nan": "WARNING step {step} skipped a sample: a field that the model does not read is nan",
}


class Gone(Exception):
    """Raised where the process would be gone."""


class Log:
    """One rank's log. Times are real, and no two lines have the same time."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def say(self, words: str) -> None:
        time.sleep(0.0015)
        self.lines.append(f"{datetime.now():%H:%M:%S.%f}"[:-3] + " " + words)


def own_error(which: int) -> None:
    """Raise an error that the rank itself causes."""
    if which == 0:
        {"text": "to be"}["label"]
    if which == 1:
        torch.ones(3, 4) @ torch.ones(5)
    if which == 2:
        [0, 1, 2][431]
    if which == 4:
        raise TimeoutError(110, "Connection timed out", "shards/train-00018.bin")
    raise FileNotFoundError(2, "No such file or directory", "shards/train-00017.bin")


class Rank:
    """One rank of a run in which `case["victim"]` fails in step `case["step"]`, as `case["what"]` says."""

    def __init__(self, case: dict[str, Any], number: int, rank: int) -> None:
        self.case, self.rank, self.log = case, rank, Log()
        self.flags = Path(f"run{number}")
        store = dist.FileStore(f"store{number}", SIZE)
        self.group: Any = dist.ProcessGroupGloo(store, rank, SIZE, timedelta(seconds=60))
        self.weight = torch.ones(3)

    def is_time(self, step: int, *what: str) -> bool:
        return self.rank == self.case["victim"] and step == self.case["step"] and self.case["what"] in what

    def step(self, step: int) -> None:
        self.log.say(f"step {step} begins")
        if (self.rank, step) == (self.case["warned"], self.case["step"] - 2):
            self.log.say(WARNINGS[self.case["warning"]].format(step=step))
        if self.is_time(step, "error", "late error"):
            own_error(self.case["which"])
        sample = torch.randn(3, generator=torch.Generator().manual_seed(self.case["seed"] + 10 * step + self.rank))
        if self.is_time(step, "nan"):
            sample[0] = float("inf")
        loss = (sample - sample.mean()) @ self.weight
        if not self.is_time(step, "killed", "hung") or self.case["which"] % 2:
            self.log.say(f"step {step} loss {loss.item():.4f}")
        if step % CHECKED_EVERY == 0 and not loss.isfinite():
            raise FloatingPointError(f"the loss is {loss.item()}")
        if self.is_time(step, "killed", "hung"):
            raise Gone
        self.reduce(step, sample * loss.sign())
        self.log.say(f"step {step} ends")

    def reduce(self, step: int, gradient: torch.Tensor) -> None:
        self.log.say(f"step {step} all-reduce begins")
        options = dist.AllreduceOptions()
        if (self.case["what"], step) == ("hung", self.case["step"]):
            options.timeout = timedelta(milliseconds=150)  # the only wait that a timeout ends
        self.group.allreduce([gradient], options).wait()
        self.log.say(f"step {step} all-reduce ends")
        self.weight -= 0.1 * gradient / SIZE

    def wait_for(self, ranks: set[int]) -> None:
        """Wait until these ranks have written their errors."""
        while not all(Path(f"{self.flags}.{rank}").exists() for rank in ranks):
            time.sleep(0.005)

    def run(self) -> str:
        witnesses = set(range(SIZE)) - {self.case["victim"], self.rank}
        is_victim = self.rank == self.case["victim"]
        try:
            for step in range(1, 20):
                self.step(step)
        except Gone:
            if self.case["what"] == "hung":
                self.wait_for(witnesses)
        except Exception as error:
            if is_victim and self.case["what"] == "late error":
                self.group = None  # its connections close
                self.wait_for(witnesses)  # it writes late: to a slow disk, or after cleaning up
            if self.rank == 0 and not is_victim:
                self.group = None  # the rank whose log comes first is not the first to write
                self.wait_for(witnesses)
            self.log.say(f"FAILED {type(error).__name__}: {' '.join(str(error).split())}")
            Path(f"{self.flags}.{self.rank}").touch()
        self.group = None
        return "\n".join(self.log.lines) + "\n"


def run(learner: ModuleType, case: dict[str, Any]) -> Any:
    torch.set_num_threads(1)
    rank = int(os.environ["RANK"])
    return [Rank(one, number, rank).run() for number, one in enumerate(case["runs"])]


def work(learner: ModuleType, case: dict[str, Any]) -> Any:
    return [learner.find_first_failure(list(logs)) for logs in case["logs"]]
