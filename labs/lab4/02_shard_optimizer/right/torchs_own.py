"""Use PyTorch's ZeroRedundancyOptimizer, which divides whole parameters."""

import torch
import torch.distributed as dist
from torch import Tensor, nn


from torch.distributed.optim import ZeroRedundancyOptimizer


class ShardedAdam:
    def __init__(self, model: nn.Module, lr: float) -> None:
        trained = [p for p in model.parameters() if p.requires_grad]
        self.optimizer = ZeroRedundancyOptimizer(trained, torch.optim.Adam, lr=lr)

    def step(self) -> None:
        self.optimizer.step()
