import torch
from torch.nn import functional as F


def token_loss(logits, labels):
    mask = labels != -100
    picked = logits.gather(2, labels.clamp(min=0).unsqueeze(2)).squeeze(2)
    losses = logits.logsumexp(-1) - picked
    return (losses * mask).sum() / max(int(mask.sum()), 1)
