import torch


def inputs_and_labels(tokens_BT):
    pairs = tokens_BT.unfold(1, 2, 1)
    return pairs[..., 0].contiguous(), pairs[..., 1].contiguous()
