"""Write data and a checkpoint for nanoGPT: random tokens with a pattern, and a small model after a few steps."""

import pickle
from pathlib import Path

import numpy as np
import torch
from model import GPT, GPTConfig  # type: ignore[import-not-found]

folder = Path("data/words")
folder.mkdir(exist_ok=True)
draws = np.random.default_rng(0)
for name in ("train", "val"):
    draws.integers(0, 64, 4000).cumsum().__mod__(64).astype(np.uint16).tofile(folder / f"{name}.bin")
(folder / "meta.pkl").write_bytes(pickle.dumps({"vocab_size": 64}))

torch.manual_seed(0)
sizes = {"n_layer": 2, "n_head": 2, "n_embd": 32, "block_size": 32, "bias": False, "vocab_size": 64, "dropout": 0.0}
model = GPT(GPTConfig(**sizes))
optimizer = model.configure_optimizers(0.1, 6e-4, (0.9, 0.95), "cpu")
for _ in range(3):
    tokens = torch.randint(0, 64, (4, 32))
    model(tokens, tokens)[1].backward()
    optimizer.step()
    optimizer.zero_grad()
Path("out").mkdir()
state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "model_args": sizes}
torch.save({**state, "iter_num": 3, "best_val_loss": 4.0, "config": {}}, "out/ckpt.pt")
