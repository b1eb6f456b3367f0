import torch


def inputs_and_labels(tokens_BT):
    T = tokens_BT.size(1) - 1
    return tokens_BT.narrow(1, 0, T), tokens_BT.narrow(1, 1, T).clone()
