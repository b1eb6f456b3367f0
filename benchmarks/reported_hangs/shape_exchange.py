# NVIDIA/Megatron-LM#5100: stages with sequences of variable length exchange shapes first, and this exchange does not
# follow the order that the exchange of the tensors has, in which even and odd stages take turns.
import torch
import torch.distributed as dist

HIDDEN = 6


class P2PCommunicator:
    def __init__(self):
        self.rank, self.world = dist.get_rank(), dist.get_world_size()

    @property
    def next(self):
        return self.rank + 1 if self.rank + 1 < self.world else None

    @property
    def previous(self):
        return self.rank - 1 if self.rank > 0 else None

    def _exchange_shapes(self, peer, shape):
        theirs = torch.zeros(2, dtype=torch.int64)
        dist.send(torch.tensor(shape), peer)  # here
        dist.recv(theirs, peer)  # here
        return theirs.tolist()

    def _exchange(self, peer, tensor, shape):
        received = torch.zeros(shape)
        steps = [lambda: dist.send(tensor, peer), lambda: dist.recv(received, peer)]
        for step in steps if self.rank % 2 == 0 else reversed(steps):
            step()
        return received

    def swap(self, peer, tensor):
        shape = self._exchange_shapes(peer, list(tensor.shape))  # here
        return self._exchange(peer, tensor, shape)


class Stage:
    def __init__(self):
        self.peers = P2PCommunicator()

    def receive_first(self, length):
        if self.peers.previous is not None:
            x = torch.zeros(length, HIDDEN)
            dist.recv(x, self.peers.previous)
            return x
        return torch.randn(length, HIDDEN)

    def warm_up(self, length):
        x = self.receive_first(length)
        if self.peers.next is not None:
            dist.send(x + 1, self.peers.next)
        return x

    def steady(self, x):
        """Forward to the next stage, while its gradient comes back."""
        if self.peers.next is not None:
            self.peers.swap(self.peers.next, x * 2)  # here
        if self.peers.previous is not None:
            self.peers.swap(self.peers.previous, x.sign())  # here


def main():
    dist.init_process_group("gloo")
    dist.barrier()
    stage = Stage()
    x = stage.warm_up(length=3)
    for _ in range(2):
        stage.steady(x)  # here
    dist.barrier()
    dist.destroy_process_group()


main()
