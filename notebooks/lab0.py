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
# # Lab 0 in a notebook: ready?
#
# The walkthrough of [lab 0](../docs/labs/lab0.md), completed: the one formula, knobs, why several devices, and two
# sockets. Where a cell says `predicted`, write your own number before you run it; the next cell compares it with the
# measurement. The exercises that check your own code are in the course, starting with
# `frog learn check lab0/01_one_formula`.

# %%
import errno
import socket
import struct
import threading

import matplotlib.pyplot as plt
import torch
from common import RANKS
from torch.nn import functional as F

torch.manual_seed(0)
print(f"torch {torch.__version__}, CUDA {torch.cuda.is_available()}, MPS {torch.backends.mps.is_available()}")

# %% [markdown]
# ## The one formula
#
# `new_weights = old_weights - learning_rate x gradient`. The gradient says where the loss *grows*, hence the minus.
#
# One weight, w = 5, with loss w x w. Its gradient is 2w. **Predict** the weight after one step with learning rate 0.2.
# With which of the learning rates 0.05, 0.2, 0.9 and 1.1 does the loss grow?

# %%
predicted_weight = 3.0
predicted_growing = [1.1]


def descend(learning_rate, num_steps=12):
    """Return the weight before and after each step."""
    weight = torch.tensor(5.0, requires_grad=True)
    seen = [weight.item()]
    for _ in range(num_steps):
        loss = weight * weight
        loss.backward()
        with torch.no_grad():
            weight -= learning_rate * weight.grad
        weight.grad.zero_()
        seen.append(weight.item())
    return seen


# %%
rates = (0.05, 0.2, 0.9, 1.1)
walks = {rate: descend(rate) for rate in rates}
growing = [rate for rate, walk in walks.items() if walk[-1] ** 2 > walk[0] ** 2]
print(f"weight after one step of 0.2: predicted {predicted_weight}, measured {walks[0.2][1]:.4f}")
print(f"the loss grows with learning rate: predicted {predicted_growing}, measured {growing}")

_, (left, right) = plt.subplots(1, 2)
line = torch.linspace(-6, 6, 121)
left.plot(line, line**2, color="#888888")
for color, rate in zip(RANKS[1:3], (0.2, 0.9), strict=True):
    left.plot(walks[rate], [weight**2 for weight in walks[rate]], "o-", color=color, label=f"learning rate {rate}")
left.set(title="Small steps slide down, large ones jump across", xlabel="weight", ylabel="loss")
left.legend(loc="upper center")
for rate in rates:
    right.semilogy([weight**2 for weight in walks[rate]], label=f"{rate}")
right.set(title="The same loss by step", xlabel="step", ylabel="loss (log scale)")
right.legend(title="learning rate", ncols=2, loc="lower left")
plt.show()

# %% [markdown]
# 0.9 overshoots in every step and still converges, since each jump ends nearer to 0 than it began: the factor from one
# weight to the next is 1 - 2 x 0.9 = -0.8. With 1.1 it is -1.2.
#
# ## Knobs
#
# A mixing board has 8 knobs, and you want to match a given sound. The gradient says for each knob how the loss changes
# if you turn it up. Is that so? Turn one knob a little and listen.

# %%
hidden = torch.randn(8)
sound_in = torch.randn(64, 8)
target = sound_in @ hidden


def loss_of(knobs, sound_in, target):
    return F.mse_loss(sound_in @ knobs, target)


knobs = torch.zeros(8, requires_grad=True)
loss_of(knobs, sound_in, target).backward()
turn = 1e-3
for number in range(3):
    turned = knobs.detach().clone()
    turned[number] += turn
    change = (loss_of(turned, sound_in, target) - loss_of(knobs, sound_in, target)).item() / turn
    print(f"knob {number}: gradient {knobs.grad[number]:+.4f}, turned by {turn}: {change:+.4f}")

# %% [markdown]
# ## The loop
#
# Forward, backward, optimize, gradient zero. **Predict**: if you leave out the last line, does the loss still fall to
# zero in the end, and what does the curve look like?

# %%


def mix(num_steps=60, forget_zero=False):
    """Return the loss of each step."""
    knobs = torch.zeros(8, requires_grad=True)
    optimizer = torch.optim.SGD([knobs], lr=0.05)
    seen = []
    for _ in range(num_steps):
        loss = loss_of(knobs, sound_in, target)  # forward: how wrong?
        loss.backward()  #                         backward: which way?
        optimizer.step()  #                        optimize: turn the knobs
        if not forget_zero:
            optimizer.zero_grad()  #               gradient zero: forget this batch's gradient
        seen.append(loss.item())
    return seen


whole, forgetful = mix(), mix(forget_zero=True)
print(f"loss after 60 steps: {whole[-1]:.4f}; without zero_grad: {forgetful[-1]:.4f}")
plt.plot(whole, label="six lines")
plt.plot(forgetful, label="without zero_grad: each step uses the sum of all gradients so far")
plt.title("Backward adds to .grad: a gradient that is not zeroed is used again")
plt.xlabel("step")
plt.ylabel("loss")
plt.ylim(-0.5, 13)
plt.legend()
plt.show()

# %% [markdown]
# The sum of all gradients so far acts like momentum without friction: the knobs swing past the answer and back. No
# error tells you.
#
# ## Why not one device?
#
# **Predict** how many bytes a training step with AdamW in float32 needs for each weight, without activations. Then
# measure it on a small layer: the weights, their gradients, and the optimizer's averages.

# %%
predicted_bytes = 16

layer = torch.nn.Linear(256, 256, bias=False)
optimizer = torch.optim.AdamW(layer.parameters())
layer(torch.randn(4, 256)).square().mean().backward()
optimizer.step()
weight = layer.weight
averages = [optimizer.state[weight][name] for name in ("exp_avg", "exp_avg_sq")]
measured = {
    "weights": weight.nbytes,
    "gradients": weight.grad.nbytes,
    "AdamW's averages": sum(average.nbytes for average in averages),
}
bytes_a_weight = sum(measured.values()) / weight.numel()
for name, num_bytes in measured.items():
    print(f"{name:18} {num_bytes / weight.numel():.0f} bytes per weight")
print(f"in total: predicted {predicted_bytes}, measured {bytes_a_weight:.0f}")

# %%
GPU_BYTES = 80e9
sizes = {"7 billion": 7e9, "70 billion": 70e9, "1.8 trillion\n(GPT-4, as reported)": 1.8e12}
_, axes = plt.subplots()
for offset, (name, each) in zip((-0.2, 0.2), (("to hold, 2 bytes each", 2), ("to train", bytes_a_weight)), strict=True):
    gpus = [num_weights * each / GPU_BYTES for num_weights in sizes.values()]
    bars = axes.bar([place + offset for place in range(len(sizes))], gpus, 0.38, label=name)
    axes.bar_label(bars, [f"{number:.2g}" if number < 10 else f"{number:.0f}" for number in gpus], padding=2)
axes.axhline(1, color="#444444", linestyle="--", linewidth=1)
axes.text(-0.58, 1.15, "one GPU")
axes.set_xticks(range(len(sizes)), sizes)
axes.set(yscale="log", ylim=(0.1, 2000), xlim=(-0.6, 2.6), ylabel="GPUs of 80 GB")
axes.set_title("Memory for weights, gradients and averages, without activations")
axes.grid(False, axis="x")
axes.legend(loc="upper left")
plt.show()

# %% [markdown]
# ## Two devices, two halves of the data
#
# Give each of two copies of the board its own half of the samples. **Predict**: after 40 steps, are the copies equal
# if each steps on its own? And if they first average their gradients (an **all-reduce**), which loss has that average
# as its gradient?

# %%


def two_copies(average, num_steps=40):
    """Return the distance between the two copies' knobs after each step."""
    copies = [torch.zeros(8, requires_grad=True) for _ in range(2)]
    heard = target + torch.randn(64)  # noise, so that the halves have different best knobs
    halves = list(zip(sound_in.chunk(2), heard.chunk(2), strict=True))
    apart = []
    for _ in range(num_steps):
        gradients = [
            torch.autograd.grad(loss_of(copy, *half), copy)[0] for copy, half in zip(copies, halves, strict=True)
        ]
        if average:
            gradients = [sum(gradients) / 2] * 2
        with torch.no_grad():
            for copy, gradient in zip(copies, gradients, strict=True):
                copy -= 0.05 * gradient
        apart.append((copies[0] - copies[1]).norm().item())
    return apart


alone, together = two_copies(average=False), two_copies(average=True)
print(f"apart after 40 steps: {alone[-1]:.4f} alone, {together[-1]} with averaged gradients")
knobs = torch.zeros(8, requires_grad=True)
batches = [(sound_in[:32], target[:32]), (sound_in[32:], target[32:]), (sound_in, target)]
first, second, both = (torch.autograd.grad(loss_of(knobs, *batch), knobs)[0] for batch in batches)
difference = ((first + second) / 2 - both).abs().max().item()
print(f"mean of the halves' gradients and the whole batch's: at most {difference:.1e} apart")
plt.plot(alone, label="each steps on its own")
plt.plot(together, label="gradients averaged first")
plt.title("Without the average there are soon two different models")
plt.xlabel("step")
plt.ylabel("distance between the copies")
plt.legend()
plt.show()

# %% [markdown]
# The two copies above share this process. Here are two real ones: the cell below runs in two processes, ranks 0 and 1,
# which keep their variables ([how](../docs/launch/world.md)).

# %%
# %load_ext frog

# %%
# %%ranks --world 2
import torch
import torch.distributed as dist
from torch.nn import functional as F

rank = dist.get_rank()
torch.manual_seed(0)
hidden, sound_in = torch.randn(8), torch.randn(64, 8)
heard = sound_in @ hidden + torch.randn(64)
my_half, my_heard = sound_in.chunk(2)[rank], heard.chunk(2)[rank]
knobs = torch.zeros(8)


def step(average):
    global knobs
    trial = knobs.clone().requires_grad_()
    F.mse_loss(my_half @ trial, my_heard).backward()
    if average:
        dist.all_reduce(trial.grad)
        trial.grad /= 2
    knobs = knobs - 0.05 * trial.grad


step(average=False)
{"my half of the data": my_half, "knobs": knobs}

# %%
# %%ranks
knobs = torch.zeros(8)
for _ in range(40):
    step(average=True)
knobs

# %%
# %ranks_stop

# %% [markdown]
# The devices must communicate. Lab 2 shows how; the next section shows over what.
#
# ## TCP: two real sockets
#
# A port is a numbered endpoint of this machine, `127.0.0.1`; port 0 asks the system for a free one. **Predict**: the
# client sends 100 messages of 1,000 bytes. How many `recv(4096)` calls does the server need for them?

# %%
predicted_recvs = 100

server = socket.create_server(("127.0.0.1", 0))
port = server.getsockname()[1]
try:
    socket.create_server(("127.0.0.1", port))
except OSError as error:
    print(f"a second server on the same port: {errno.errorcode[error.errno]}")

client = socket.create_connection(("127.0.0.1", port))
line, peer = server.accept()
print("the client's port differs from the server's:", peer[1] != port)


def send(num_messages=100, num_bytes=1000):
    for number in range(num_messages):
        client.sendall(bytes([number]) * num_bytes)
    client.close()


sender = threading.Thread(target=send)
sender.start()
pieces = []
while piece := line.recv(4096):
    pieces.append(len(piece))
sender.join()
line.close()
print(f"100 messages sent, {sum(pieces):,} bytes arrived in {len(pieces)} pieces; predicted {predicted_recvs}")

# %%
_, axes = plt.subplots(figsize=(9, 2.2))
ends = [sum(pieces[: number + 1]) for number in range(len(pieces))]
axes.eventplot(
    [[1000 * number for number in range(1, 101)], ends], colors=RANKS[:2], lineoffsets=[1, 0], linelengths=0.8
)
axes.set_yticks([1, 0], ["a message ends", "a recv ends"])
axes.set(xlim=(0, 25_000), xlabel="bytes of the stream")
axes.set_title("One stream: one recv does not return the bytes of one send (the first 25,000 bytes)")
axes.grid(False)
plt.show()

# %% [markdown]
# TCP guarantees the bytes, their order, and that each arrives once. It does not guarantee when, and it has no
# messages. A program that needs messages sends the length of each first, and reads until it has that many bytes.
# `None` means that the stream ended between two messages.

# %%


def read_exactly(line, num_bytes):
    """Return that many bytes, or None if the stream has ended before the first of them."""
    got = b""
    while len(got) < num_bytes:
        piece = line.recv(num_bytes - len(got))
        if not piece:
            if got:
                raise ConnectionError(f"the stream ended after {len(got)} of {num_bytes} bytes")
            return None
        got += piece
    return got


def messages(line):
    while (head := read_exactly(line, 4)) is not None:
        yield read_exactly(line, *struct.unpack("!I", head))


client = socket.create_connection(("127.0.0.1", port))
line, _ = server.accept()
sent = [b"Hello, ", b"frog", bytes(10_000)]
for message in sent:
    client.sendall(struct.pack("!I", len(message)) + message)
client.close()
received = list(messages(line))
line.close()
server.close()
print([len(message) for message in received], "the same messages:", received == sent)

# %% [markdown]
# Now from memory: `frog learn check lab0/02_six_lines` (the loop), then `frog quiz 0`. Lab 3 returns to messages, with
# the cases that this notebook omits: `frog learn check lab3/03_messages`. Continue with [lab 1](lab1.py).
