# unslothai/unsloth-zoo#967: a rank that looks for a file after another rank has written it leaves out the broadcast.
import pathlib
import time

import torch
import torch.distributed as dist

IMPORT_S = {2: 2.5}


def load_compiled(rank, path, source):
    if not path.exists():  # here
        if rank == 0:
            time.sleep(1.0)  # compiles
            path.write_text(source)
        done = [rank == 0]
        dist.broadcast_object_list(done, src=0)  # here
    return path.read_text()


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    dist.barrier()
    time.sleep(IMPORT_S.get(rank, 0.0))
    source = load_compiled(rank, pathlib.Path("compiled_layer.py"), "def layer(x):\n    return 2 * x\n")
    total = torch.tensor([float(len(source))])
    for _ in range(5):
        dist.all_reduce(total)  # here
    dist.destroy_process_group()


main()
