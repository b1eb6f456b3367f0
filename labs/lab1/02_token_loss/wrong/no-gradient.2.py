import torch
from torch.nn import functional as F


def token_loss(logits, labels):
    with torch.no_grad():
        total = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum")
    return total / (labels != -100).sum().clamp(min=1)
