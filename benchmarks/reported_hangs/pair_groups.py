# cmriat/Etha#111: each rank creates the groups of its own sends before those of what it receives, so that the two sides
# of a pair create the same groups in another order.
import torch
import torch.distributed as dist


class TensorBus:
    """Copies tensors from one rank to several, with a group for each route."""

    def __init__(self):
        self.rank, self.groups = dist.get_rank(), {}

    def register(self, routes):
        sends = [route for route in routes if route[0] == self.rank]
        receives = [route for route in routes if route[0] != self.rank]
        for source, targets in sends + receives:  # here
            self._group_of(source, targets)  # here

    def _group_of(self, source, targets):
        key = (source, *sorted(targets))
        if key not in self.groups:
            self.groups[key] = dist.new_group([source, *targets])  # here
        return self.groups[key]

    def transfer(self, tensor, source, targets):
        dist.broadcast(tensor, src=source, group=self._group_of(source, targets))  # here
        return tensor


def main():
    dist.init_process_group("gloo")
    routes = [(0, (1, 2)), (1, (0, 2))]
    bus = TensorBus()
    dist.barrier()
    bus.register(routes)  # here
    weights, rollouts = torch.full((11,), float(dist.get_rank())), torch.zeros(5)
    for _ in range(3):
        bus.transfer(weights, *routes[0])  # here
        bus.transfer(rollouts, *routes[1])  # here
    dist.destroy_process_group()


main()
