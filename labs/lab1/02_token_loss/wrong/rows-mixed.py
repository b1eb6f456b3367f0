import torch
from torch.nn import functional as F


def token_loss(logits, labels):
    B, T, V = logits.shape
    total = F.cross_entropy(logits.reshape(B, V, T), labels, reduction="sum")
    return total / (labels != -100).sum().clamp(min=1)
