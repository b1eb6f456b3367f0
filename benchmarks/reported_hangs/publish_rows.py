# ai-dynamo/aiconfigurator#1542: only the first rank writes the rows; if that fails, it leaves out the barrier of the
# `finally` to which the others come.
import csv
import sys
from pathlib import Path

import torch
import torch.distributed as dist


def measure(size):
    value = torch.ones(size)
    dist.all_reduce(value)
    return {"size": size, "sum": float(value.sum())}


def write_rows(path, rows):
    with open(path, "w", newline="") as file:  # here
        writer = csv.DictWriter(file, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def collect(args):
    run_failed = False
    try:
        rows = [measure(size) for size in args.sizes]
        if dist.get_rank() == 0:
            write_rows(args.output, rows)  # here
    except BaseException as error:
        run_failed = True
        print(f"collector failed: {error}", file=sys.stderr)
        raise
    finally:
        if dist.is_initialized():
            if not run_failed:
                dist.barrier()
            dist.destroy_process_group()


class Arguments:
    sizes = (8, 64, 256)
    output = Path("results") / "moe_a2a.csv"


def main():
    dist.init_process_group("gloo")
    collect(Arguments)  # here


main()
