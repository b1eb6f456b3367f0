import torch
from torch.nn import functional as F


def token_loss(logits, labels):
    if (labels == -100).all():
        return torch.zeros((), requires_grad=True)
    return F.cross_entropy(logits.transpose(1, 2), labels)
