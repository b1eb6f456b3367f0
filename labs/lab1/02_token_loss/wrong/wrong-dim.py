import torch
from torch.nn import functional as F


def token_loss(logits, labels):
    mask = labels != -100
    logp = logits.log_softmax(1)
    picked = logp.gather(2, labels.clamp(min=0).unsqueeze(2)).squeeze(2)
    return -(picked[mask]).sum() / mask.sum().clamp(min=1)
