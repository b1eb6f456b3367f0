"""A rank that takes its share of a batch and writes down the gradient that it holds after the reduction."""

import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from frog.comm import join_world
from frog.config import load_model_config
from frog.core.env import world_env
from frog.model import TinyTransformer
from frog.parallel import FlatParameters

folder, tied = Path(sys.argv[1]), sys.argv[2] == "tied"
env = world_env()
world = join_world(env, torch.device("cpu"), timeout_s=60)
given = load_file(folder / f"given_{sys.argv[2]}.safetensors")
tokens = given.pop("tokens")
config = load_model_config(folder / f"config_{sys.argv[2]}.json")

torch.manual_seed(1000 + env.rank)  # other weights on every rank: a missing load would show
model = TinyTransformer(config)
model.load_state_dict(given, strict=False)
model.layers[0].mlp.up_proj.weight.requires_grad_(False)
flat = FlatParameters(model, num_tail=2)
share = tokens.chunk(env.world_size)[env.rank]
loss = model(share[:, :-1].contiguous(), share[:, 1:].contiguous())
loss.backward()
local, mean = flat.reduce(world, (loss.detach(), float(env.rank)))
gradients = {name: p.grad.contiguous() for name, p in model.named_parameters() if p.grad is not None}
save_file({**gradients, "loss": torch.tensor(mean[0]), "ranks": torch.tensor(mean[1])}, folder / f"rank_{env.rank}.st")
world.leave()
