# pytorch/pytorch#83289: a monitored barrier names the rank that did not come, which still writes its part of a report.
import datetime
import functools
import pathlib
import time

import torch
import torch.distributed as dist


def timed(function):
    @functools.wraps(function)
    def wrapped(*arguments):
        began = time.perf_counter()
        try:
            return function(*arguments)
        finally:
            wrapped.seconds = time.perf_counter() - began

    wrapped.seconds = 0.0
    return wrapped


class Report:
    def __init__(self, rank):
        self.rank, self.rows = rank, []

    def add(self, step, value):
        self.rows += [(step, value)] * (4 if self.rank != 2 else 4000)

    @timed
    def write(self, folder):
        with open(folder / f"{self.rank}.csv", "w") as file:
            for step, value in self.rows:
                file.write(f"{step},{value}\n")
                file.flush()
                time.sleep(0.01)  # here


def step(number):
    loss = torch.tensor(1 / (number + 1))
    dist.all_reduce(loss)
    return float(loss)


def main():
    dist.init_process_group("gloo")
    folder = pathlib.Path("report")
    folder.mkdir(exist_ok=True)
    report = Report(dist.get_rank())
    for number in range(3):
        report.add(number, step(number))
    report.write(folder)  # here
    dist.monitored_barrier(timeout=datetime.timedelta(seconds=6))  # here
    print(f"{report.write.seconds:.1f} s")
    dist.destroy_process_group()


main()
