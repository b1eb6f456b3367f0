# dbbs-lab/bsb-core#509: the configuration of one process cannot be booted, and it leaves; the others create the
# storage, which is a collective.
import signal
import sys

import torch
import torch.distributed as dist

signal.signal(signal.SIGTERM, signal.SIG_DFL)


class BootError(Exception):
    pass


class Node:
    required = ("name", "radius")

    def __init__(self, **attributes):
        self.attributes = attributes

    def boot(self):
        missing = [name for name in self.required if name not in self.attributes]
        if missing:
            raise BootError(f"missing {', '.join(missing)}")


class Storage:
    def __init__(self, size):
        self.offset = torch.zeros(1)
        sizes = [torch.zeros(1) for _ in range(dist.get_world_size())]
        dist.all_gather(sizes, torch.tensor([float(size)]))
        self.offset += sum(sizes[: dist.get_rank()])


class Scaffold:
    def __init__(self, nodes):
        self.nodes = nodes

    def boot(self):
        for node in self.nodes:
            node.boot()

    def build(self):
        try:
            self.boot()
        except BootError as error:
            print(f"configuration: {error}", file=sys.stderr)
            sys.exit(4)  # here
        return Storage(len(self.nodes))


def read_nodes(rank):
    yield Node(name="granule", radius=2.5)
    yield Node(name="golgi") if rank == 2 else Node(name="golgi", radius=8.0)


def main():
    dist.init_process_group("gloo")
    scaffold = Scaffold(list(read_nodes(dist.get_rank())))
    print(scaffold.build().offset)  # here
    dist.destroy_process_group()


main()
