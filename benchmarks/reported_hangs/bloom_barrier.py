# huggingface/transformers-bloom-inference#40: one process writes a description of the checkpoint and comes to a barrier
# to which the others do not come.
import json
import os

import torch
import torch.distributed as dist

SHARDS = [f"pytorch_model_{number:05}.bin" for number in range(4)]


def print_rank0(*messages):
    if dist.get_rank() == 0:
        print(*messages, flush=True)


def write_checkpoints_json(path):
    if dist.get_rank() == 0:
        with open(path, "w") as file:
            json.dump({"type": "BLOOM", "checkpoints": SHARDS, "version": 1.0}, file)
        dist.barrier()  # here


def load_shard(name):
    torch.manual_seed(SHARDS.index(name))
    return torch.randn(9)


def init_inference(path):
    print_rank0("*** Starting to load")
    weights = []
    for name in SHARDS:
        shard = load_shard(name)
        dist.broadcast(shard, src=0)  # here
        weights.append(shard)
    if os.path.exists(path):
        print_rank0("read", path)
    return torch.cat(weights)


def main():
    dist.init_process_group("gloo")
    path = f"checkpoints_{os.environ.get('MASTER_PORT')}.json"
    write_checkpoints_json(path)  # here
    weights = init_inference(path)  # here
    total = weights.sum()
    dist.all_reduce(total)
    dist.destroy_process_group()


main()
