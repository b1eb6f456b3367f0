# The controller of skip_step.py.
import torch


class SkipController:
    def __init__(self, limit):
        self.limit, self.average = limit, None

    def update(self, model):
        """Tell whether the norm of the gradients is far above its average."""
        norm = torch.stack([parameter.grad.norm() for parameter in model.parameters()]).norm().item()
        if self.average is not None and norm > self.limit * self.average:  # here
            return True  # here
        self.average = norm if self.average is None else 0.9 * self.average + 0.1 * norm
        return False
