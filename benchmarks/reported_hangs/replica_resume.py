# mosaicml/composer#3313: checkpoint files are broadcast within the groups of equal shards, but only by the processes
# that are the first of their node.
import contextlib
import io
from functools import cached_property

import torch
import torch.distributed as dist

NODE_SIZE = 4
SHARDS = 2


class Mesh:
    """Two shards, each of which two ranks hold: 0 and 2, 1 and 3."""

    def __init__(self):
        self.rank, self.world = dist.get_rank(), dist.get_world_size()

    @cached_property
    def replicas(self):
        groups = [dist.new_group(list(range(shard, self.world, SHARDS))) for shard in range(SHARDS)]
        return groups[self.rank % SHARDS]

    @property
    def local_rank(self):
        return self.rank % NODE_SIZE

    @property
    def shard_rank(self):
        return self.rank % SHARDS


class Reader:
    def __init__(self, mesh):
        self.mesh, self.files = mesh, {}

    def download(self, name):
        buffer = io.BytesIO()
        torch.save({"name": name, "shard": torch.ones(6)}, buffer)
        return torch.frombuffer(bytearray(buffer.getvalue().ljust(4096, b"\0")), dtype=torch.uint8)

    def read(self, name):
        if self.mesh.local_rank == 0:  # here
            data = self.download(name)
            dist.broadcast(data, src=0, group=self.mesh.replicas)  # here
            self.files[name] = data
        dist.barrier()  # here


@contextlib.contextmanager
def resumed(mesh, name):
    reader = Reader(mesh)
    reader.read(name)  # here
    yield reader.files


def main():
    dist.init_process_group("gloo")
    mesh = Mesh()
    _ = mesh.replicas
    with resumed(mesh, "ep3.pt"):
        for _ in range(3):
            gradient = torch.ones(9)
            dist.all_reduce(gradient)
    dist.destroy_process_group()


main()
