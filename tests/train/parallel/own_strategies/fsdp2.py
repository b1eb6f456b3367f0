"""torch's own FSDP2 behind the interface: each rank owns its rows of every parameter."""

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard


def build(model, group):
    return FSDP2(model, group)


class FSDP2:
    def __init__(self, model, group):
        frozen = {p for p in model.parameters() if not p.requires_grad}
        mesh = DeviceMesh.from_group(group, "cpu")
        for module in (*model.layers, model):
            fully_shard(module, mesh=mesh, ignored_params=frozen)
        self.owns = []
        for name, p in model.named_parameters():
            if p.requires_grad:
                first_row = min(group.rank() * -(-p.shape[0] // group.size()), p.shape[0])
                own = nn.Parameter(p.to_local().detach())
                self.owns.append((name, first_row * (p.numel() // p.shape[0]), p, own))

    def owned(self):
        return [(name, start, own) for name, start, _, own in self.owns]

    def reduce(self):
        for _, _, p, own in self.owns:
            own.grad = p.grad.to_local()

    def gather(self):
        pass

    def zero(self):
        for _, _, p, own in self.owns:
            p.grad = own.grad = None
