# TensorAuto/OpenTau#396: the name of the output folder has the time at which each rank read its configuration, and the
# first rank waits there for the shards of all.
import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import torch.distributed as dist


@dataclass
class PipelineConfig:
    job_name: str = "pi05"
    steps: int = 4
    output_dir: str = ""

    def validate(self, now):
        if not self.output_dir:
            stamp = time.strftime("%Y-%m-%d/%H-%M-%S", time.gmtime(now))  # here
            self.output_dir = f"outputs/train/{stamp}_{self.job_name}"  # here
        return self


def read_config(rank):
    started = 1_780_000_000 + (1 if rank == 2 else 0)  # the start of the job straddles a second
    return PipelineConfig().validate(started)


class Checkpoint:
    def __init__(self, config, rank, world):
        self.folder, self.rank, self.world = Path(config.output_dir), rank, world
        self.folder.mkdir(parents=True, exist_ok=True)

    def shard(self, rank):
        return self.folder / f"optimizer_{rank}.pt"

    def save(self, state):
        torch.save(state, self.shard(self.rank))
        if self.rank == 0:
            self.consolidate()  # here
        dist.barrier()  # here

    def consolidate(self):
        waiting = set(range(self.world))
        while waiting:  # here
            waiting = {rank for rank in waiting if not self.shard(rank).exists()}  # here
            time.sleep(0.05)  # here
        (self.folder / "index.json").write_text(json.dumps({"shards": self.world}))


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    config = read_config(rank)
    checkpoint, state = Checkpoint(config, rank, world), torch.zeros(13)
    for _ in range(config.steps):
        gradient = torch.ones(13)
        dist.all_reduce(gradient)
        state += gradient
    checkpoint.save({"state": state, "config": asdict(config)})  # here
    dist.destroy_process_group()


main()
