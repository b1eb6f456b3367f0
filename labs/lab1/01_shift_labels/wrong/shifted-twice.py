import torch


def inputs_and_labels(tokens_BT):
    return tokens_BT[:, :-2], tokens_BT[:, 2:]
