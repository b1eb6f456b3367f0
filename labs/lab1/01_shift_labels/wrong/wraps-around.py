import torch


def inputs_and_labels(tokens_BT):
    return tokens_BT, torch.roll(tokens_BT, -1, dims=1)
