import torch
from torch.nn import functional as F


def token_loss(logits, labels):
    total = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum").item()
    return torch.tensor(total / max(int((labels != -100).sum()), 1))
