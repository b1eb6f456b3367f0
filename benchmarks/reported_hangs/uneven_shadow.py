# NCAR/miles-credit#416: the averaged weights are gathered as if all shards had the size of the rank's own, but the last
# one is smaller.
import torch
import torch.distributed as dist


class Shard:
    """Rows of a matrix, as an even split with a smaller rest gives them."""

    def __init__(self, rows, width):
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        per_rank = -(-rows // self.world)
        first = self.rank * per_rank
        self.local = torch.full((min(rows, first + per_rank) - first, width), float(self.rank))


class EMATracker:
    def __init__(self, shard, decay=0.9):
        self.shard, self.decay, self.shadow = shard, decay, shard.local.clone()

    def update(self):
        self.shadow.lerp_(self.shard.local, 1 - self.decay)

    def full_tensor(self):
        parts = [torch.empty_like(self.shadow) for _ in range(self.shard.world)]
        dist.all_gather(parts, self.shadow)  # here
        return torch.cat(parts)

    def state_dict(self):
        return {"shadow": self.full_tensor(), "decay": self.decay}  # here


def main():
    dist.init_process_group("gloo")
    shard = Shard(rows=10, width=4)
    tracker = EMATracker(shard)
    for step in range(1, 5):
        loss = shard.local.mean()
        dist.all_reduce(loss)
        tracker.update()
        if step == 4:
            state = tracker.state_dict()  # here
            if shard.rank == 0:
                torch.save(state, "checkpoint_ema.pt")
    dist.destroy_process_group()


main()
