import torch
from torch.nn import functional as F


def token_loss(logits, labels):
    keep = labels != -100
    if not keep.any():
        return logits.sum() * 0.0
    chosen = logits[keep].log_softmax(-1)
    return -chosen[torch.arange(len(chosen)), labels[keep]].mean()
