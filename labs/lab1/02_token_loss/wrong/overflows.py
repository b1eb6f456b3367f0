import torch
from torch.nn import functional as F


def token_loss(logits, labels):
    mask = labels != -100
    p = logits.exp() / logits.exp().sum(-1, keepdim=True)
    picked = p.gather(2, labels.clamp(min=0).unsqueeze(2)).squeeze(2)
    return -(picked.log()[mask]).sum() / mask.sum().clamp(min=1)
