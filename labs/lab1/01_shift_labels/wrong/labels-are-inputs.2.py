import torch


def inputs_and_labels(tokens_BT):
    return tokens_BT, tokens_BT
