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
# # Lab 6 in a notebook: your own collective library
#
# The first steps of [lab 6](../docs/labs/lab6.md): four ranks sum their tensors with nothing but messages to their
# neighbors. The lab writes it over sockets, from single bytes; here torch sends the messages, and you see the ring.
# The cells below `%%ranks` run on processes that keep their variables from cell to cell
# ([how](../docs/launch/world.md)). Where a cell says `predicted`, write your own before you run it.

# %%
# %load_ext frog

# %%
# %%ranks --world 4
import torch
import torch.distributed as dist

rank, world = dist.get_rank(), dist.get_world_size()
left, right = (rank - 1) % world, (rank + 1) % world
f"left {left}, right {right}"

# %% [markdown]
# ## Everybody sends first
#
# Each rank sends a tensor to its right neighbor, then receives one from its left. **Predict** what happens.

# %%
# %%ranks --allow-errors
predicted = "each rank has its left neighbor's number"

mine = torch.full((2_000_000,), float(rank))
got = torch.empty_like(mine)
dist.send(mine, right)
dist.recv(got, left)

# %% [markdown]
# A ring of waiting: each rank's send waits until its neighbor receives, and no neighbor does. Over plain sockets the
# same program works while the tensors fit into the system's buffers, and stops with larger ones, which is worse: it
# passes the tests. The remedy is to do both at once.

# %%
# %%ranks


def exchange(outgoing, incoming):
    """Send to the right and receive from the left, at the same time."""
    sending = dist.isend(outgoing, right)
    dist.recv(incoming, left)
    sending.wait()


exchange(mine, got)
got[0].item()

# %% [markdown]
# ## A sum in a ring
#
# Let every rank's tensor travel once around, and add each that comes by. **Predict** how many bytes each rank sends
# for 8 MB in a world of 4: the tensor is passed on three times.

# %%
# %%ranks
predicted_mb = 24


def naive_sum(tensor):
    total, travelling = tensor.clone(), tensor.clone()
    sent = 0
    for _ in range(world - 1):
        incoming = torch.empty_like(travelling)
        exchange(travelling, incoming)
        sent += travelling.nbytes
        travelling = incoming
        total += incoming
    return total, sent


total, sent = naive_sum(mine)
print(f"sum {total[0].item():.0f}, sent {sent / 1e6:.0f} MB, predicted {predicted_mb}")
total

# %% [markdown]
# Right, but the bytes grow with the world. Cut the tensor into as many chunks as ranks. In the first round of three
# steps, each chunk travels once around and is summed on its way (**reduce-scatter**): afterwards every rank has one
# complete chunk. In the second round the complete chunks travel (**all-gather**). **Predict** the bytes.

# %%
# %%ranks
predicted_mb = 12


def ring_sum(tensor):
    chunks = [chunk.clone() for chunk in tensor.chunk(world)]
    sent = 0
    for step in range(world - 1):  # reduce-scatter
        out, into = (rank - step) % world, (rank - step - 1) % world
        incoming = torch.empty_like(chunks[into])
        exchange(chunks[out], incoming)
        chunks[into] += incoming
        sent += chunks[out].nbytes
    for step in range(world - 1):  # all-gather
        out, into = (rank + 1 - step) % world, (rank - step) % world
        exchange(chunks[out], chunks[into])
        sent += chunks[out].nbytes
    return torch.cat(chunks), sent


ringed, sent = ring_sum(mine)
print(f"sent {sent / 1e6:.0f} MB, predicted {predicted_mb}: 2 x 3/4 of 8 MB")
print("equal to the naive sum:", torch.equal(ringed, total))
ringed

# %%
# %ranks_draw

# %% [markdown]
# Six messages per rank, all of a quarter: 2(N-1)/N of the tensor, whether 4 ranks or 4,000. And `dist.all_reduce`
# itself?

# %%
# %%ranks
same = mine.clone()
dist.all_reduce(same)
print("equal to torch's:", torch.equal(same, ringed))

# %% [markdown]
# For fractions, the last bits may differ: the ring adds in another order for each chunk. But they
# are the same bits on all ranks, since each chunk is summed once and then copied. **Predict**: is that also true of
# the naive sum, where each rank adds in its own order?

# %%
# %%ranks
predicted = "?"

torch.manual_seed(rank)
numbers = torch.randn(1000)
naive, _ = naive_sum(numbers)
ringed, _ = ring_sum(numbers)
{"naive": naive, "ring": ringed}

# %% [markdown]
# Weights that differ in the last bit on each rank are the beginning of two models. This is why the naive sum is wrong
# for training, and not only slow.
#
# Now from single bytes: `frog learn check lab6/01_frames` (both ways at once, without a deadlock),
# `lab6/02_rendezvous` and `lab6/03_ring`. The whole lab: [lab 6](../docs/labs/lab6.md).

# %%
# %ranks_stop
