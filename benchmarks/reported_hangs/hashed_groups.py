# pytorch/pytorch#173608: with use_local_synchronization, the name of a new group has the number of groups that the rank
# has so far, and two ranks that have not been in the same groups before wait under different names.
import torch
import torch.distributed as dist


class ParallelState:
    def __init__(self, pipeline):
        self.pipeline = pipeline
        self.position_group = self._new_group(self.position_ranks)  # here
        self.embedding_group = self._new_group(self.embedding_ranks)  # here

    @property
    def position_ranks(self):
        return self.pipeline[:1]

    @property
    def embedding_ranks(self):
        return [self.pipeline[0], self.pipeline[-1]]

    def _new_group(self, ranks):
        return dist.new_group(ranks, use_local_synchronization=True)  # here


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    dist.barrier()
    state = ParallelState(list(range(world)))  # here
    embedding = torch.ones(12)
    for _ in range(4):
        if rank in state.embedding_ranks:
            dist.all_reduce(embedding, group=state.embedding_group)
        dist.barrier()
    dist.destroy_process_group()


main()
