import torch
from torch.nn import functional as F


@torch.inference_mode()
def evaluate(model, batches):
    mode = model.training
    model.train(False)
    try:
        sums = torch.zeros(2, dtype=torch.float64)
        for inputs, labels in batches:
            keep = labels != -100
            logp = model(inputs)[keep].log_softmax(-1)
            sums[0] -= logp.gather(1, labels[keep][:, None]).sum()
            sums[1] += keep.sum()
    finally:
        model.train(mode)
    return (sums[0] / sums[1]).item()
