import torch


def inputs_and_labels(tokens_BT):
    inputs = tokens_BT[:, :-1]
    labels = torch.roll(tokens_BT, -1, dims=1)[:, 1:]
    return inputs, labels
