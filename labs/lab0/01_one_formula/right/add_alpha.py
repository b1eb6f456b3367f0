import torch


def descend(weights, gradients, learning_rate):
    return [w if g is None else torch.add(w, g, alpha=-learning_rate) for w, g in zip(weights, gradients)]
