"""A small model that DeepSpeed trains with the ZeRO stage of the first word, in bfloat16 with torch's AdamW."""

import sys

import deepspeed
import torch
import torch.nn.functional as F
from torch import nn

WIDTH, VOCAB = 256, 512

model = nn.Sequential(nn.Embedding(VOCAB, WIDTH), *(nn.Linear(WIDTH, WIDTH) for _ in range(4)), nn.Linear(WIDTH, VOCAB))
config = {
    "train_micro_batch_size_per_gpu": 2,
    "bf16": {"enabled": True},
    "zero_optimization": {"stage": int(sys.argv[1])},
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "torch_adam": True}},
}
engine, _, _, _ = deepspeed.initialize(model=model, config=config)
for _ in range(100):
    ids = torch.randint(0, VOCAB, (2, 64)).to(engine.device)
    loss = F.cross_entropy(engine(ids).float().flatten(0, 1), ids.flatten())
    engine.backward(loss)
    engine.step()
