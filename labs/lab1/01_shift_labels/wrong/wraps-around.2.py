import torch


def inputs_and_labels(tokens_BT):
    inputs_BT = tokens_BT[:, :-1]
    return inputs_BT, inputs_BT.roll(-1, dims=1)
