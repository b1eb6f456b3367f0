# one-covenant/templar#607: the first rank scans the folder of a checkpoint until the shards of all ranks are there, and
# the upload of one rank failed, which it only reports.
import logging
import os
import time

import torch
import torch.distributed as dist

log = logging.getLogger("dcp")


class Bucket:
    def __init__(self, folder, broken):
        self.folder, self.broken = folder, broken
        os.makedirs(folder, exist_ok=True)

    def put(self, name, tensor):
        if self.broken:
            raise ConnectionError(f"upload of {name} was reset")  # here
        torch.save(tensor, os.path.join(self.folder, name))

    def names(self):
        return {name for name in os.listdir(self.folder) if name.endswith(".distcp")}


class DCPCheckpointer:
    def __init__(self, bucket):
        self.bucket, self.rank, self.world = bucket, dist.get_rank(), dist.get_world_size()

    def upload(self, window, shard):
        try:
            self.bucket.put(f"w{window}_{self.rank}.distcp", shard)  # here
        except ConnectionError as error:  # here
            log.error("window %d: %s", window, error)

    def commit(self, window):
        expected = {f"w{window}_{rank}.distcp" for rank in range(self.world)}
        while not expected <= self.bucket.names():  # here
            time.sleep(0.002)  # here
        with open(os.path.join(self.bucket.folder, "latest"), "w") as file:
            file.write(str(window))

    def save(self, window, shard):
        self.upload(window, shard)
        if self.rank == 0:
            self.commit(window)  # here
        dist.barrier()  # here


def main():
    dist.init_process_group("gloo")
    rank, shard = dist.get_rank(), torch.zeros(7)
    for window in range(4):
        gradient = torch.randn(7)
        dist.all_reduce(gradient)
        shard += gradient
        checkpointer = DCPCheckpointer(Bucket("bucket", broken=(rank, window) == (2, 2)))
        checkpointer.save(window, shard)  # here
    dist.destroy_process_group()


main()
