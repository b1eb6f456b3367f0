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
# # Lab 2 in a notebook: the distributed shift
#
# The walkthrough of [lab 2](../docs/labs/lab2.md), completed. Cells below `%%ranks` run on ranks that live next to
# the notebook ([how](../docs/launch/world.md)). Whole trainings start with `frog run`, and the notebook reads their
# [run folder](../docs/observe/run-folder.md). Where a cell says `predicted`, write your own number before you run it.

# %%
import itertools
import statistics
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch
from common import PHASES, RANKS, frog, train
from torch.utils.data import DistributedSampler

from frog.core.runs.event_schema import CollectiveEvent, SpanEvent, StepEvent
from frog.core.runs.folder import RunFolder
from frog.train.data import Windows, ensure_prepared
from frog.train.trained import load_trained

data = ensure_prepared("python-docs")

# %%
# %load_ext frog

# %% [markdown]
# ## Two ranks by hand
#
# Two processes run the same cell. Each has a rank, and that is the only difference: so they build the same model, and
# take different data. **Predict** which of these are equal on both: the weights, the data, the gradient.

# %%
# %%ranks --world 2
import torch
import torch.distributed as dist

rank = dist.get_rank()
torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
samples = torch.arange(32.0).reshape(8, 4) / 32
mine = samples[rank::2]  # every second sample
loss = (model(mine) - mine.sum(1, keepdim=True)).square().mean()
loss.backward()
{"weights": model.weight, "data": mine, "gradient": model.weight.grad}

# %% [markdown]
# A step with these gradients would make two different models. So the ranks average them first, in a **collective**: a
# call that all ranks make, and that returns when all have come.

# %%
# %%ranks
dist.all_reduce(model.weight.grad)
model.weight.grad /= 2
model.weight.grad

# %%
# %%ranks
everything = torch.nn.Linear(4, 1)
everything.load_state_dict(model.state_dict())
(everything(samples) - samples.sum(1, keepdim=True)).square().mean().backward()
print("the gradient of one process with all samples:", torch.allclose(everything.weight.grad, model.weight.grad))

# %% [markdown]
# **Predict** what happens if rank 1 leaves the call out, since its loss is small, say.

# %%
# %%ranks --allow-errors
if rank == 0:
    dist.all_reduce(model.bias.grad)

# %%
# %ranks_draw

# %% [markdown]
# Rank 0 waits. torch would end this after 30 minutes. Frog sees that no other rank can still come, says who waits
# where, and ends the cell. The ranks still have their variables.

# %%
# %%ranks
dist.all_reduce(model.bias.grad)
model.bias.grad / 2

# %%
# %ranks_stop

# %% [markdown]
# ## Ranks
#
# The same script, four times: [`scripts/ddp_simulation_train.py`](../scripts/ddp_simulation_train.py). Each process
# reads its rank from its environment. Rank 2 fails in the fifth step, as the lab requests; look at the earlier steps
# first. **Predict** which of these are equal on two ranks: the samples, the loss, the norm of the gradient before the
# reduction, the norm after it, the weights.

# %%
frog("run", "--nproc", "4", "--", "scripts/ddp_simulation_train.py", "--fail-rank", "2", "--fail-step", "5", fails=True)
page_logs = [Path(f"logs/rank_{rank}/train.log").read_text() for rank in range(4)]
for log in page_logs[:2]:
    print("\n".join(log.splitlines()[:5]), end="\n\n")

# %% [markdown]
# Samples, losses and gradients differ. The norm after the reduction and the hash of the weights are equal, bit for bit.
# The script compares them over all ranks in every step, and stops if they differ.
#
# ## Gradients, averaged
#
# Now `frog.train`. It keeps the global batch for any world size, here 16 sequences, so a world of 4 computes the same
# as one process. **Predict** how many bytes of gradient a step reduces: 664,192 weights in float32.

# %%
SHORT = ("train.device=cpu", "train.global_batch_size=16", "eval.tokens=2048", "eval.sample_tokens=0")
predicted_bytes = 4 * 664_192

four = train("notebook-lab2-four", "train.steps=20", *SHORT, nproc=4)
one = train("notebook-lab2-one", "train.steps=20", *SHORT, nproc=1)

# %%


def steps_of(run, rank):
    return list(run.ranks[rank].by_step(StepEvent).values())


def gradient_calls(run, rank, step):
    """Return a step's all-reduces that carry gradients, not those of a few numbers, such as the loss."""
    calls = run.ranks[rank].of(CollectiveEvent)
    return [call for call in calls if call.step == step and call.op == "all_reduce" and call.payload_bytes > 400]


ranks = [steps_of(four, rank) for rank in range(4)]
for rank, steps in enumerate(ranks):
    step = steps[4]
    print(
        f"rank {rank}, step 5: loss {step.loss:.4f}, norm before {step.grad_norm_local:.4f}, after {step.grad_norm:.4f}"
    )
same = all(len({step.grad_norm for step in steps}) == 1 for steps in zip(*ranks, strict=True))
print("the norm after the reduction is equal on all ranks, bit for bit, in all steps:", same)
measured_bytes = sum(call.payload_bytes for call in gradient_calls(four, 0, 5))
print(f"bytes reduced in a step: predicted {predicted_bytes:,}, measured {measured_bytes:,}")
print(f"each rank in a ring of 4 sends 2 x 3/4 of them: {2 * 3 / 4 * measured_bytes:,.0f}")

# %%
_, (left, right) = plt.subplots(1, 2)
numbers = range(1, len(ranks[0]) + 1)
for rank, steps in enumerate(ranks):
    left.plot(numbers, [step.loss for step in steps], color=RANKS[rank], linewidth=1, label=f"rank {rank}")
    right.plot(numbers, [step.grad_norm_local for step in steps], color=RANKS[rank], linewidth=1)
right.plot(numbers, [step.grad_norm for step in ranks[0]], color="black", label="after, on every rank")
for axes in (left, right):
    axes.set_xticks(range(0, 21, 5))
left.set(title="Loss of each rank's own samples", xlabel="step", ylabel="loss")
right.set(title="Norm of the gradient, before and after", xlabel="step", ylabel="norm", ylim=(0, None))
left.legend()
right.legend()
plt.show()

# %% [markdown]
# The ranks reduced a few more bytes than predicted: the last bucket also carries the numbers that they report, such as
# the loss. The mean of four gradients is shorter than each: the parts that they do not share cancel.
#
# And the whole run: does a world of 4 equal one process? **Predict** the answer of `frog compare`: bitwise equal,
# within tolerance, or different.

# %%
frog("compare", "notebook-lab2-one", "notebook-lab2-four")

# %% [markdown]
# The sums are computed in a different order, so only the last bits differ.
#
# ## Why the losses are different, but close
#
# All ranks have the same weights; each has 4 different windows of text. If that is the only difference, the ranks'
# losses scatter like means of 4 windows: by the standard deviation of single windows, divided by the root of 4.
# **Predict** it from the trained model, one window at a time, then measure it in the run.

# %%
model, _, step = load_trained(RunFolder(Path("runs/notebook-lab2-four")))
windows = Windows(data.split("train"), 64)
tokens = torch.from_numpy(windows.gather(np.arange(0, len(windows), len(windows) // 200)))
with torch.no_grad():
    token_losses = torch.nn.functional.cross_entropy(
        model(tokens[:, :-1]).transpose(1, 2), tokens[:, 1:], reduction="none"
    )
single = token_losses.mean(1).std().item()
predicted_scatter = single / 4**0.5
late = list(zip(*(steps[10:] for steps in ranks), strict=True))
measured_scatter = statistics.mean(statistics.variance(step.loss for step in steps) for steps in late) ** 0.5
print(f"standard deviation of single windows: {single:.3f}")
print(f"of the ranks' losses: predicted {predicted_scatter:.3f}, measured {measured_scatter:.3f}")

# %% [markdown]
# They are close, not equal: ten steps of four ranks are a small sample, and the run's model was still learning.
#
# ## The sampler
#
# 18 samples, 4 ranks. `DistributedSampler` shuffles all numbers with a seed that every rank knows, and deals them out
# like cards. **Predict** how many samples each rank takes, and what happens in epoch 2 without `set_epoch`.


# %%
def deal(epoch):
    """Return the samples that each of four ranks takes in an epoch (None: set_epoch was forgotten)."""
    taken = []
    for rank in range(4):
        sampler = DistributedSampler(range(18), num_replicas=4, rank=rank, seed=1337)
        if epoch is not None:
            sampler.set_epoch(epoch)
        taken.append(list(sampler))
    return taken


rows = {"epoch 1": deal(0), "epoch 2": deal(1), "epoch 2,\nno set_epoch": deal(None)}
for name, taken in rows.items():
    twice = {sample for sample in range(18) if sum(sample in share for share in taken) > 1}
    print(
        f"{name.replace(chr(10), ' ')}: {[len(share) for share in taken]} samples, all 18 taken: "
        f"{set().union(*taken) == set(range(18))}, twice, as padding: {sorted(twice)}"
    )

_, axes = plt.subplots(figsize=(9, 2.6))
for place, taken in enumerate(rows.values()):
    for index, sample in enumerate(itertools.chain(*zip(*taken, strict=True))):
        axes.barh(-place, 0.94, left=index, height=0.8, color=RANKS[index % 4])
        axes.text(index + 0.47, -place, sample, ha="center", va="center", color="white")
for rank in range(4):
    axes.bar(0, 0, color=RANKS[rank], label=f"rank {rank}")
axes.set_yticks([0, -1, -2], rows)
axes.set_xticks([])
axes.tick_params(length=0)
axes.set_title("Dealt like cards; the last two repeat the first two samples, so that all shares are equally long")
axes.grid(False)
axes.spines[:].set_visible(False)
axes.legend(ncols=4, loc="upper center", bbox_to_anchor=(0.5, 0))
plt.show()

# %% [markdown]
# Without `set_epoch` nothing fails, and epoch 2 repeats epoch 1. In the run above, Frog's own order has the same
# properties:

# %%
ids_by_step = [[step.sample_ids for step in steps] for steps in zip(*ranks, strict=True)]
disjoint = all(len(set().union(*ids)) == sum(map(len, ids)) for ids in ids_by_step)
print("no sample on two ranks in any step:", disjoint)
print(
    "the same samples as one process in every step:",
    all(
        sorted(itertools.chain(*ids)) == sorted(alone.sample_ids)
        for ids, alone in zip(ids_by_step, steps_of(one, 0), strict=True)
    ),
)

# %% [markdown]
# ## Buckets and overlap
#
# Backward finds the gradient of the last layer first. `naive` reduces one parameter after another once backward has
# ended; `overlapped` packs gradients into buckets, here of 0.5 MB, and reduces each as soon as it is full. **Predict**
# the number of all-reduces for each: the model has 20 weight tensors.

# %%
predicted_calls = {"naive": 20, "overlapped": 6}

ways = {}
for way in predicted_calls:
    settings = ("train.steps=10", *SHORT, f"strategy.reduction={way}", "strategy.bucket_mb=0.5")
    ways[way] = train(f"notebook-lab2-{way}", *settings, nproc=2)
for way, run in ways.items():
    calls = gradient_calls(run, 0, 5)
    total = sum(call.payload_bytes for call in calls)
    print(f"{way:10} all-reduces: predicted {predicted_calls[way]}, measured {len(calls)}; {total:,} bytes in total")

# %%


def fastest_step(run):
    """Return the step that other programs on this machine disturbed least."""
    steps = steps_of(run, 0)
    return min(itertools.pairwise(steps), key=lambda pair: pair[1].end_ns - pair[0].end_ns)[1].step


_, rows = plt.subplots(len(ways), 1, sharex=True, figsize=(9, 4.6))
for axes, (way, run) in zip(rows, ways.items(), strict=True):
    step = fastest_step(run)
    start_ns = min(span.start_ns for worker in run.ranks.values() for span in worker.of(SpanEvent) if span.step == step)
    for rank, worker in sorted(run.ranks.items()):
        for span in worker.of(SpanEvent):
            if span.step == step and span.phase in ("forward", "backward", "reduce", "optimize"):
                axes.barh(
                    -rank,
                    (span.end_ns - span.start_ns) / 1e6,
                    left=(span.start_ns - start_ns) / 1e6,
                    height=0.4,
                    color=PHASES[span.phase],
                )
        for call in gradient_calls(run, rank, step):
            axes.barh(
                -rank - 0.33,
                (call.end_ns - call.start_ns) / 1e6,
                left=(call.start_ns - start_ns) / 1e6,
                height=0.14,
                color=PHASES["reduce"],
                edgecolor="white",
                linewidth=0.5,
            )
    axes.set_yticks([0, -1], ["rank 0", "rank 1"])
    axes.set_title(f"{way}: step {step}; the thin line is the gradient's all-reduces")
    axes.grid(False, axis="y")
for phase in ("forward", "backward", "reduce", "optimize"):
    rows[0].bar(0, 0, color=PHASES[phase], label=phase)
rows[0].legend(ncols=4, loc="upper center", bbox_to_anchor=(0.5, -0.1))
rows[1].set_xlabel("ms from the beginning of the step")
plt.show()

# %% [markdown]
# Overlapped all-reduces run during backward; the step waits only for those that have not finished when backward ends.
# Two ranks on one machine gain little; on a slow link they gain more: [network](../docs/launch/network.md).
#
# ## Mixed precision
#
# Autocast runs matrix products in 16 bits and keeps the rest in 32. float16 has a narrow range: below 2^-24 it has only
# zero. **Predict** what share of the model's gradients would round to zero.

# %%
predicted_lost = 0.1

weight = torch.nn.Linear(64, 64)
norm = torch.nn.RMSNorm(64)
with torch.autocast("cpu", torch.bfloat16):
    normed = norm(torch.randn(8, 64))
    product = weight(normed)
product.sum().backward()
for name, tensor in {
    "weight": weight.weight,
    "norm": normed,
    "product": product,
    "gradient": weight.weight.grad,
}.items():
    print(f"{name:9} {tensor.dtype}")

batch = tokens[:32]
torch.nn.functional.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten()).backward()
gradient = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
gradient = gradient[gradient != 0]
lost = (gradient.half() == 0).float().mean().item()
scaled = (gradient * 2.0**16).half()
lost_scaled, overflow = (scaled == 0).float().mean().item(), scaled.isinf().sum().item()
print(f"rounded to zero in float16: predicted {predicted_lost:.1%}, measured {lost:.1%}")
print(f"multiplied by 2^16 first: {lost_scaled:.2%} rounded to zero, {overflow} too large")

# %%
powers = gradient.abs().log2()
bins = np.arange(-48, 18)
plt.hist(powers.numpy(), bins, color=RANKS[0], alpha=0.8, label="gradients")
plt.hist((powers + 16).numpy(), bins, color=RANKS[1], alpha=0.6, label="gradients of the loss x 2^16")
for edge, text in ((-24, "smallest float16"), (16, "largest")):
    plt.axvline(edge, color="#444444", linestyle="--", linewidth=1)
    plt.text(edge - 0.4, plt.ylim()[1] * 0.98, text, rotation=90, ha="right", va="top")
plt.title("Scaling the loss moves all gradients into the range of float16")
plt.xlabel("power of two")
plt.ylabel("number of weights")
plt.legend(loc="upper left")
plt.show()

# %% [markdown]
# A scale that is too large overflows; training skips the step and halves the scale, until it fits. **Predict**: with a
# scale that starts at 2^24, can the ranks disagree on which steps to skip?

# %%
half = train(
    "notebook-lab2-half",
    "train.steps=12",
    *SHORT,
    "train.global_batch_size=4",
    "train.precision=fp16",
    f"train.initial_loss_scale={2.0**24}",
    nproc=2,
)
scales = [step.loss_scale for step in steps_of(half, 0)]
skipped = [[step.step for step in steps_of(half, rank) if step.skipped] for rank in range(2)]
print("steps skipped by rank 0:", skipped[0])
print("the same on rank 1:", skipped[0] == skipped[1])
plt.step(range(1, len(scales) + 1), scales, where="mid", color=RANKS[0])
plt.plot(
    skipped[0], [scales[step - 1] for step in skipped[0]], "x", color=RANKS[1], label="step skipped, on both ranks"
)
plt.yscale("log", base=2)
plt.title("The scale halves until the gradient is finite")
plt.xlabel("step")
plt.ylabel("loss scale")
plt.legend()
plt.show()

# %% [markdown]
# If one rank stepped and the other did not, the copies would differ from then on. So all ranks share one decision.
#
# ## Rank 2 fails
#
# Back to the first world. Here are the last lines of each log. **Predict** from these lines alone which rank failed
# first, and why the others' errors do not show the cause.

# %%
for rank, log in enumerate(page_logs):
    lines = log.splitlines()
    failed = [line for line in lines if "FAILED" in line]
    last = next(line for line in reversed(lines) if "weights" in line and "FAILED" not in line)
    print(f"{last}\n{failed[0].split('. ')[0] if failed else f'rank {rank} | (no error: ended from outside)'}\n")

# %% [markdown]
# All ranks had taken four steps. One rank reports its own error; the others report a closed connection, or ended before
# they could report anything. The rank to look at is the one whose error is not about communication.
#
# Now write your own: `frog learn check lab2/01_average_gradients`, `lab2/03_overlap`, `lab2/05_sampler`,
# `lab2/09_loss_scaling`, `lab2/11_find_rank_2` (real logs, from which you find the rank) and
# `lab2/12_why_losses_differ`; then `frog quiz 2`. Lab 3 has no notebook, since its worlds run in separate terminals:
# [lab 3](../docs/labs/lab3.md).
