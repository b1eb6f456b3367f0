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
# # Lab 5 in a notebook: models larger than a device
#
# The first steps of [lab 5](../docs/labs/lab5.md), by hand, on two real ranks: a pair of matrices divided between
# them, a pipeline, and tokens that travel to experts. The cells below `%%ranks` run on processes that keep their
# variables from cell to cell ([how](../docs/launch/world.md)). Where a cell says `predicted`, write your own before
# you run it.

# %%
# %load_ext frog

# %%
# %%ranks --world 2
import time

import torch
import torch.distributed as dist
from torch.nn import functional as F

rank = dist.get_rank()
torch.manual_seed(0)
x = torch.randn(8, 32)  # the same on both ranks, as the weights below
first = torch.randn(32, 64) / 32**0.5
second = torch.randn(64, 16) / 64**0.5
expected = F.gelu(x @ first) @ second  # what one process computes
expected

# %% [markdown]
# ## By columns, then by rows
#
# Give each rank half of the first matrix's **columns**: it computes half of the outputs, and GELU works on each
# number alone. Those are the inputs for half of the second matrix's **rows**. **Predict** the shape of what a rank
# then has, and what is missing.

# %%
# %%ranks
predicted_shape = (8, 16)

columns = first.chunk(2, dim=1)[rank]
rows = second.chunk(2, dim=0)[rank]
hidden = F.gelu(x @ columns)
partial = hidden @ rows
print("shape: predicted", predicted_shape, "measured", tuple(partial.shape))
{"columns": columns, "rows": rows, "hidden": hidden, "partial": partial}

# %% [markdown]
# Each rank holds half of the weights. `partial` has the right shape already, and differs on each rank: it is one term
# of a sum. So one all-reduce suffices for two matrices:

# %%
# %%ranks
total = partial.clone()
dist.all_reduce(total)
print("as one process computes it:", torch.allclose(total, expected, atol=1e-5))
total

# %%
# %ranks_draw

# %% [markdown]
# **Predict**: would it also work the other way round, the first matrix by rows and the second by columns, with one
# all-reduce at the end?

# %%
# %%ranks
predicted = "?"

half = x.chunk(2, dim=1)[rank] @ first.chunk(2, dim=0)[rank]  # one term of the first product
late = F.gelu(half)
dist.all_reduce(late)  # after GELU: too late
early = half.clone()
dist.all_reduce(early)  # before GELU
early = F.gelu(early)
right = F.gelu(x @ first)
print("summed after GELU: ", torch.allclose(late, right, atol=1e-5))
print("summed before GELU:", torch.allclose(early, right, atol=1e-5))

# %% [markdown]
# GELU of a sum is not the sum of GELUs, so this order needs an all-reduce between the two matrices, of the larger
# hidden tensor, and the result is then divided by columns. Megatron-LM's order saves that.
#
# ## A pipeline of two stages
#
# Now the layers are divided: rank 0 has the first, rank 1 the second. Four micro-batches pass through. **Predict**
# how long both stages together take if each needs 50 ms for a micro-batch: 4 x 50, 5 x 50 or 8 x 50 ms?

# %%
# %%ranks
predicted_ms = 250

NUM, STAGE_S = 4, 0.05
dist.barrier()
start = time.perf_counter()
for number in range(NUM):
    if rank == 0:
        hidden = F.gelu(x[2 * number : 2 * number + 2] @ first)
        time.sleep(STAGE_S)  # the time that a larger layer would take
        dist.send(hidden, dst=1)
    else:
        hidden = torch.empty(2, 64)
        dist.recv(hidden, src=0)
        time.sleep(STAGE_S)
        out = hidden @ second
        assert torch.allclose(out, expected[2 * number : 2 * number + 2], atol=1e-5)
dist.barrier()
print(f"predicted {predicted_ms} ms, measured {1000 * (time.perf_counter() - start):.0f} ms")

# %%
# %ranks_draw

# %% [markdown]
# Rank 1 waits for the first micro-batch, and rank 0 for the end of the last: that idle time, one stage of five here,
# is the **bubble**. More micro-batches make it a smaller part. What if rank 1 expects one micro-batch more than rank
# 0 sends?

# %%
# %%ranks --allow-errors
for _ in range(3 + rank):
    if rank == 0:
        dist.send(x, dst=1)
    else:
        dist.recv(torch.empty(8, 32), src=0)

# %% [markdown]
# The ranks survive. In a real job, this is a loader that gives one rank a batch more.
#
# ## Tokens travel to their expert
#
# In a mixture of experts each rank holds some experts, and each token goes to the rank of its expert: an
# **all-to-all**. Rank 0 has expert 0, rank 1 expert 1. **Predict** the tokens that each rank receives; a token says
# where it is from.

# %%
# %%ranks
tokens = torch.arange(4) + 10 * rank
expert_of = torch.tensor([0, 1, 1, 0]) if rank == 0 else torch.tensor([1, 1, 1, 0])
order = expert_of.argsort(stable=True)
sent_counts = torch.bincount(expert_of, minlength=2)
received_counts = torch.empty_like(sent_counts)
dist.all_to_all_single(received_counts, sent_counts)  # first how many, then the tokens themselves
received = torch.empty(int(received_counts.sum()), dtype=torch.long)
dist.all_to_all_single(received, tokens[order], received_counts.tolist(), sent_counts.tolist())
print(f"sends {sent_counts.tolist()}, receives {received_counts.tolist()}: {received.tolist()}")

# %% [markdown]
# The experts' loads differ: rank 1 works on five of eight tokens. The way back is the same exchange with the counts
# swapped, and the inverse of `order`. **Do** it:

# %%
# %%ranks
answers = 100 * received  # what the expert computes
returned = torch.empty_like(tokens)
dist.all_to_all_single(returned, answers, sent_counts.tolist(), received_counts.tolist())
result = torch.empty_like(returned)
result[order] = returned
print("each token is back in its place:", bool((result == 100 * tokens).all()))

# %% [markdown]
# Now with gradients: `frog learn check lab5/01_column_and_row` (which all-reduce belongs in forward, which in
# backward?), `lab5/05_schedule_as_data`, `lab5/06_run_1f1b` and `lab5/08_experts`. The whole lab: [lab
# 5](../docs/labs/lab5.md).

# %%
# %ranks_stop
