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
# # Lab 1 in a notebook: the foundation
#
# The walkthrough of [lab 1](../docs/labs/lab1.md), completed, in one process. The model, its checkpoint and its data
# come from the script [`scripts/train_tiny_transformer.py`](../scripts/train_tiny_transformer.py), imported unchanged.
# Where a cell says `predicted`, write your own number before you run it.

# %%
import math
import shutil
import time
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from common import RANKS
from train_tiny_transformer import (
    CONFIG,
    TinyTransformer,
    fingerprint,
    loss_of,
    model_config,
    read_batch,
    read_checkpoint,
    restore,
    samples_of,
    save_checkpoint,
    validate,
)

from frog.core.errors import FrogError
from frog.core.runs.folder import RunFolder
from frog.train.data import Windows, ensure_prepared, load_tokenizer

torch.set_num_threads(1)  # a model this small gains nothing from more
device = torch.device("cpu")  # the script itself uses a GPU or MPS if available
settings = {"steps_per_epoch": 200, "batch_size": 8, "seed": 1337}
data = ensure_prepared("python-docs")
train_text, heldout_text = (Windows(data.split(name), 64) for name in ("train", "heldout"))
tokenizer = load_tokenizer(data.tokenizer_json)
config = model_config(CONFIG, {})
print(config)

# %% [markdown]
# ## Labels
#
# The label of a token is the token that follows it: a window of 65 tokens gives 64 inputs and 64 labels. **Predict**
# the label of the last input of a window.

# %%
inputs, labels = read_batch(train_text, samples_of(0, settings), device)
print("inputs", tuple(inputs.shape), "labels", tuple(labels.shape))
for token, label in zip(inputs[0, :6].tolist(), labels[0, :6].tolist(), strict=True):
    print(f"{tokenizer.decode([token])!r:>12} -> {tokenizer.decode([label])!r}")
print("the labels are the inputs, one later:", torch.equal(inputs[:, 1:], labels[:, :-1]))

# %% [markdown]
# ## Shapes
#
# B = 8 windows, T = 64 tokens, D = 128 columns, V = 2,048 tokens in the vocabulary. **Predict** the shape of the
# model's output. Then follow a batch through the first layer: a hook on each part records the shape of its output.

# %%
predicted_shape = (8, 64, 2048)

torch.manual_seed(settings["seed"])
model = TinyTransformer(config)
shapes = {}
names = {part: name for name, part in model.named_modules() if not name.startswith("layers.1")}


def note(part, inputs, output):
    shapes[names[part]] = tuple(output.shape)


hooks = [part.register_forward_hook(note) for part in names if not isinstance(part, torch.nn.ModuleList)]
logits = model(inputs)
for hook in hooks:
    hook.remove()
for name, shape in shapes.items():
    print(f"{name or 'the model':36} {shape}")
print("predicted", predicted_shape, "measured", tuple(logits.shape))

# %% [markdown]
# A common mistake is a shape that does not fit. Three heads cannot share 128 columns: Frog reports this before it
# builds anything, PyTorch when it reaches the operation. PyTorch's message names the requested shape and the number of
# elements.

# %%
try:
    TinyTransformer(model_config(CONFIG, {"num_attention_heads": 3}))
except FrogError as error:
    print("Frog:   ", error)
try:
    torch.zeros(2, 64, 128).view(2, 64, -1, 42)
except RuntimeError as error:
    print("PyTorch:", error)

# %% [markdown]
# ## The loop in six lines
#
# **Predict** the loss before the first step. A model that knows nothing gives each of V tokens the same probability,
# 1/V, and cross-entropy is minus the logarithm of the probability of the right token.

# %%
predicted_loss = math.log(config.vocab_size)
print(f"predicted ln {config.vocab_size} = {predicted_loss:.4f}, measured {loss_of(model, inputs, labels).item():.4f}")


def new_model(config):
    """Create a model and its optimizer, the same in each call."""
    torch.manual_seed(settings["seed"])
    model = TinyTransformer(config)
    return model, torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.1)


def take_steps(model, optimizer, first, last):
    """Take steps `first` to `last - 1`, counted from 0; return their losses."""
    losses = []
    for step in range(first, last):
        inputs, labels = read_batch(train_text, samples_of(step, settings), device)
        loss = loss_of(model, inputs, labels)  # forward
        loss.backward()  #                       backward
        optimizer.step()  #                      optimize
        optimizer.zero_grad()  #                 gradient zero
        losses.append(loss.item())
    return losses


# %%
model, optimizer = new_model(config)
before = {name: weight.detach().clone() for name, weight in model.named_parameters()}
curve, heldout = [], {}
for first in range(0, 100, 20):
    heldout[first] = validate(model, heldout_text, 8, device, most=64)
    curve += take_steps(model, optimizer, first, first + 20)
heldout[100] = validate(model, heldout_text, 8, device, most=64)

print(f"after {len(curve)} steps: loss {curve[-1]:.4f}, held-out loss {heldout[100]:.4f}")
plt.axhline(predicted_loss, color="#888888", linestyle="--", label=f"a blind guess, ln {config.vocab_size}")
plt.plot(curve, linewidth=1, label="loss of each step's batch")
plt.plot(heldout.keys(), heldout.values(), "o-", label="held-out text")
plt.title("First it learns which tokens are frequent, then which token follows which")
plt.xlabel("steps taken")
plt.ylabel("cross-entropy")
plt.legend()
plt.show()

# %% [markdown]
# ## What a size costs
#
# Every layer has four matrices of attention, three of its FFN and two norms; the embedding is used twice, to read
# tokens and to write them. That gives a formula. Use it to **predict** which of these changes keeps the number of
# weights, and which costs the most time.


# %%
def predicted_weights(config):
    D, F, V = config.hidden_size, config.intermediate_size, config.vocab_size
    return V * D + config.num_hidden_layers * (4 * D * D + 3 * D * F + 2 * D) + D


changes = {
    "unchanged": {},
    "width 64": {"hidden_size": 64},
    "FFN 704": {"intermediate_size": 704},
    "8 heads": {"num_attention_heads": 8},
    "4 layers": {"num_hidden_layers": 4},
}
measured = {}
for name, given in changes.items():
    changed = model_config(CONFIG, given)
    model, optimizer = new_model(changed)
    losses, times_ms = [], []
    for step in range(30):
        start_s = time.monotonic()
        losses += take_steps(model, optimizer, step, step + 1)
        times_ms.append((time.monotonic() - start_s) * 1000)
    weights = sum(weight.numel() for weight in model.parameters())
    measured[name] = (weights, min(times_ms), losses)
    print(
        f"{name:9} weights: predicted {predicted_weights(changed):>9,}, measured {weights:>9,} | "
        f"fastest step {min(times_ms):5.1f} ms | loss after 30 steps {sum(losses[-5:]) / 5:.3f}"
    )

# %%
_, (left, right) = plt.subplots(1, 2)
for color, (name, (weights, step_ms, losses)) in zip(RANKS, measured.items(), strict=False):
    bar = left.barh(name, step_ms, color=color)
    left.bar_label(bar, [f" {weights / 1000:,.0f} k weights"], label_type="edge")
    right.plot(range(10, 30), losses[10:], color=color, label=name)
left.invert_yaxis()
left.margins(x=0.45)
left.set(title="Fastest step, and number of weights", xlabel="ms")
left.grid(False, axis="y")
right.set(title="Loss by step, from step 10 on", xlabel="step", ylabel="loss", xticks=range(10, 31, 5))
right.legend(fontsize=9)
plt.show()

# %% [markdown]
# The number of heads changes no matrix: more heads are narrower slices of the same columns. And a deeper model is not
# better from the start: compare at the same step *and* after the same time, as the lab's challenge asks.
#
# ## A checkpoint, and an exact resume
#
# Take 40 steps without a break. Then again: 20 steps, save, discard everything, load, 20 more. **Predict**: are the
# weights equal in the end, bit for bit? And if you keep only the weights, and AdamW's averages start from zero?

# %%
predicted_equal = True

folder = RunFolder(Path("runs/notebook-lab1"))
shutil.rmtree(folder.path, ignore_errors=True)
folder.checkpoints.mkdir(parents=True)

model, optimizer = new_model(config)
straight = take_steps(model, optimizer, 0, 20)
save_checkpoint(folder, 20, model, optimizer, straight, settings)
straight += take_steps(model, optimizer, 20, 40)
straight_weights = fingerprint(dict(model.named_parameters()))

path = folder.checkpoints / "step_00000020.safetensors"
about, tensors = read_checkpoint(path)
model, optimizer = new_model(config)
restore(model, optimizer, tensors)
resumed = take_steps(model, optimizer, about["step"], 40)
equal = fingerprint(dict(model.named_parameters())) == straight_weights
print(f"resumed from the complete checkpoint: equal bit for bit: predicted {predicted_equal}, measured {equal}")

model, optimizer = new_model(config)
restore(model, optimizer, tensors)
optimizer.state.clear()
weights_only = take_steps(model, optimizer, about["step"], 40)
equal = fingerprint(dict(model.named_parameters())) == straight_weights
print("resumed from the weights alone: equal bit for bit:", equal)

# %%
plt.plot(range(10, 40), straight[10:], color="#888888", linewidth=5, alpha=0.5, label="never stopped")
plt.plot(range(20, 40), resumed, label="resumed")
plt.plot(range(20, 40), weights_only, "--", label="resumed without AdamW's averages")
plt.axvline(20, color="#444444", linewidth=1, linestyle=":")
plt.title("What the next step reads must be in the checkpoint")
plt.xlabel("step")
plt.ylabel("loss")
plt.legend()
plt.show()

# %% [markdown]
# The checkpoint also has the position in the data: it is the step, since `samples_of` depends on the step alone.
#
# ## The contents of a checkpoint
#
# **Predict** the size of the file: float32 weights, and two averages for each.

# %%
num_weights = config.num_parameters()
predicted_mb = 3 * 4 * num_weights / 1e6
print(f"predicted {predicted_mb:.2f} MB, measured {path.stat().st_size / 1e6:.2f} MB, {len(tensors)} tensors")
for name, tensor in list(tensors.items())[:6]:
    print(f"{name:52} {str(tensor.dtype).removeprefix('torch.'):8} {tuple(tensor.shape)}")

moved = {name: ((tensors[f"model/{name}"] - old).norm() / old.norm()).item() for name, old in before.items()}
_, axes = plt.subplots(figsize=(9, 5))
axes.barh(list(moved), list(moved.values()), color=[RANKS[1] if "norm" in name else RANKS[0] for name in moved])
axes.invert_yaxis()
axes.set_title("How far 20 steps moved each tensor; norms in orange")
axes.set_xlabel("length of the change / length before")
axes.grid(False, axis="y")
plt.show()

# %% [markdown]
# A tensor that had not moved at all would be frozen, or not connected to the loss.
#
# A checkpoint that cannot be trusted is worse than none. Turn one bit of the copy on disk:

# %%
damaged = bytearray(path.read_bytes())
damaged[len(damaged) // 2] ^= 1
copy = folder.path / "damaged.safetensors"
copy.write_bytes(damaged)
try:
    read_checkpoint(copy)
except FrogError as error:
    print(error)

# %% [markdown]
# Now write your own: `frog learn check lab1/01_shift_labels` (labels), `lab1/05_shape_mismatches` (two of them raise no
# error), `lab1/06_sizes` (the formula), `lab1/08_exact_resume` and `lab1/11_look_inside` (someone else's checkpoint);
# then `frog quiz 1`. Continue with [lab 2](lab2.py).
