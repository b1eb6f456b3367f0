import torch
from torch.nn import functional as F


def token_loss(logits, labels):
    mask = labels != -100
    picked = logits.softmax(-1).gather(2, labels.clamp(min=0).unsqueeze(2)).squeeze(2)
    return -picked[mask].sum() / mask.sum().clamp(min=1)
