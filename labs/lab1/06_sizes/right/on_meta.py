import torch
from torch import nn


def build(config):
    D, F, V = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    C = D // config["num_attention_heads"]
    kv = C * config["num_key_value_heads"]
    with torch.device("meta"):
        parts = [nn.Embedding(V, D), nn.RMSNorm(D)]
        if not config["tie_word_embeddings"]:
            parts.append(nn.Linear(D, V, bias=False))
        for _ in range(config["num_hidden_layers"]):
            shapes = [(D, D), (D, D), (D, kv), (D, kv), (D, F), (D, F), (F, D)]
            parts += [nn.Linear(*shape, bias=False) for shape in shapes] + [nn.RMSNorm(D), nn.RMSNorm(D)]
    return nn.ModuleList(parts)


def num_parameters(config):
    return sum(p.numel() for p in build(config).parameters())


def training_bytes(config):
    return sum(4 * p.numel() * p.element_size() for p in build(config).parameters())
