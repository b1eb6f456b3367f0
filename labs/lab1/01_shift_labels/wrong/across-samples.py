import torch


def inputs_and_labels(tokens_BT):
    return tokens_BT[:-1], tokens_BT[1:]
