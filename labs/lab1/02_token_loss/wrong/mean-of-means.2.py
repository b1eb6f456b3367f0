import torch
from torch.nn import functional as F


def token_loss(logits, labels):
    rows = [F.cross_entropy(x, y) for x, y in zip(logits, labels) if (y != -100).any()]
    return torch.stack(rows).mean() if rows else logits.sum() * 0
