import torch
from torch.nn import functional as F


def token_loss(logits, labels):
    mask = labels != -100
    losses = F.cross_entropy(logits.transpose(1, 2), labels, reduction="none")
    return (losses.sum(1) / mask.sum(1).clamp(min=1)).mean()
