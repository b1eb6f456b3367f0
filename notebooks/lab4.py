# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Lab 4 in a notebook: memory
#
# The first steps of [lab 4](../docs/labs/lab4.md), by hand: what each rank of a training holds, and what it holds
# once the optimizer's state is divided. The cells below `%%ranks` run on four real processes, which keep their
# variables from cell to cell ([how](../docs/launch/world.md)). Where a cell says `predicted`, write your own number
# before you run it.

# %%
# %load_ext frog

# %%
# %%ranks --world 4
import warnings

import torch
import torch.distributed as dist
from torch.nn import functional as F

rank, world = dist.get_rank(), dist.get_world_size()
warnings.simplefilter("ignore", FutureWarning)  # torch renames reduce_scatter_tensor and all_gather_into_tensor


def build():
    torch.manual_seed(0)  # the same weights on every rank
    return torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.GELU(), torch.nn.Linear(512, 256))


def batch_of(number):
    torch.manual_seed(100 + number)
    return torch.randn(16, 256)


sum(parameter.numel() for parameter in build().parameters())

# %% [markdown]
# ## Four copies
#
# In data parallelism every rank holds the whole model. **Predict** the bytes that one rank holds for each parameter
# after a step of AdamW in float32: weight, gradient, optimizer.

# %%
# %%ranks
predicted_bytes = 16

whole = build()
whole_optimizer = torch.optim.AdamW(whole.parameters(), lr=0.01)


def average_step(number):
    """One data-parallel step: each rank has its own batch, and all step with the mean gradient."""
    batch = batch_of(number * world + rank)
    loss = F.mse_loss(whole(batch), batch)
    loss.backward()
    for parameter in whole.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad /= world
    whole_optimizer.step()
    return loss.item()


average_step(0)
num_weights = sum(parameter.numel() for parameter in whole.parameters())
held = {
    "weights": sum(parameter.nbytes for parameter in whole.parameters()),
    "gradients": sum(parameter.grad.nbytes for parameter in whole.parameters()),
    "AdamW's averages": sum(
        value.nbytes for state in whole_optimizer.state.values() for value in state.values() if value.dim()
    ),
}
for name, num_bytes in held.items():
    print(f"{name:17} {num_bytes / num_weights:4.0f} bytes per weight")
print(f"in total: predicted {predicted_bytes}, measured {sum(held.values()) / num_weights:.0f}")

# %% [markdown]
# One output for four ranks: they hold the same, four times. Are the weights really equal, after a step with four
# different batches? And what were the losses?

# %%
# %%ranks
whole

# %%
# %%ranks
whole.zero_grad()
f"loss of my own batch: {average_step(1):.4f}"

# %% [markdown]
# ## A quarter of the optimizer
#
# The two averages are half of all bytes, and every rank computes the same ones. So let each rank keep the averages of
# a quarter of the weights, and step only that quarter (ZeRO 1). It needs the mean gradient of its quarter, which a
# **reduce-scatter** gives it, and then everybody's new weights, which an **all-gather** gives it.
#
# **Predict** how many bytes per weight a rank holds now, and whether the weights are those of the step above.

# %%
# %%ranks
predicted_bytes = 10

model = build()
flat = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
assert len(flat) % world == 0  # otherwise one would pad it
mine = flat.chunk(world)[rank].clone()
optimizer = torch.optim.AdamW([mine], lr=0.01)


def write_back(flat):
    start = 0
    for parameter in model.parameters():
        parameter.data.copy_(flat[start : start + parameter.numel()].view_as(parameter))
        start += parameter.numel()


def sharded_step(number):
    batch = batch_of(number * world + rank)
    model.zero_grad()
    F.mse_loss(model(batch), batch).backward()
    gradient = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
    mine.grad = torch.empty_like(mine)
    dist.reduce_scatter_tensor(mine.grad, gradient)  # the sum over all ranks, of my quarter only
    mine.grad /= world
    optimizer.step()
    dist.all_gather_into_tensor(flat, mine)
    write_back(flat)


sharded_step(0)
state = sum(value.nbytes for value in optimizer.state[mine].values() if value.dim())
measured = (sum(p.nbytes + p.grad.nbytes for p in model.parameters()) + state) / num_weights
print(f"bytes per weight: predicted {predicted_bytes}, measured {measured:.0f}")

# %%
# %ranks_draw

# %% [markdown]
# Two collectives for a step. A ring sends the same bytes as the all-reduces of the first way: an all-reduce *is* a
# reduce-scatter and an all-gather. The averages take a quarter, for nothing.
#
# Is it the same training? After the second step, compare with the copies.

# %%
# %%ranks
sharded_step(1)
ours = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
theirs = torch.cat([parameter.detach().flatten() for parameter in whole.parameters()])
print("the same weights as four copies:", torch.allclose(ours, theirs, rtol=0, atol=1e-4))

# %%
# %%ranks
{"my quarter": mine, "all weights": flat}

# %% [markdown]
# `my quarter` differs on each rank, `all weights` is equal on all. Every bug of sharding is one of these two
# sentences being wrong, so this is what `frog check` looks at in a program.
#
# ## A rank that forgets
#
# Rank 3 skips the all-gather, say since it has stepped already. **Predict** what each rank does then.

# %%
# %%ranks --allow-errors
gradient = torch.ones_like(flat)
dist.reduce_scatter_tensor(mine.grad, gradient)
if rank != 3:
    dist.all_gather_into_tensor(flat, mine)

# %%
# %ranks_draw

# %% [markdown]
# Now write it for any optimizer and any model: `frog learn check lab4/01_what_a_rank_holds`, then
# `lab4/02_shard_optimizer` and `lab4/03_shard_gradients`. The whole lab: [lab 4](../docs/labs/lab4.md).

# %%
# %ranks_stop
