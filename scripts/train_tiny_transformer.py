"""Train a tiny transformer in one process. Read it from top to bottom: the model, the checkpoint, the loop.

    python scripts/train_tiny_transformer.py --epochs 2

A "big" model is this one with larger numbers in config/config.json. The script uses `frog` only for details that a
learner can skip: reading that file, preparing text, and writing files atomically.

Shapes: B batch, T time (sequence), D model width, H heads, K key/value heads, C head width, V vocabulary.
"""

import argparse
import dataclasses
import hashlib
import itertools
import json
import math
import os
import signal
import sys
import time
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # read when torch loads: threads that wait sleep and do not spin

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import nn
from torch.nn import functional as F

from frog.core.config import ModelConfig, load_model_config
from frog.core.errors import CheckpointError, ConfigError, FrogError, UsageError
from frog.core.files import write_atomic
from frog.core.runs.folder import RunFolder
from frog.train.data import Windows, ensure_prepared, load_tokenizer

# ---- the model -------------------------------------------------------------------------------------------------------


class RMSNorm(nn.Module):
    """Divide each token's vector by its root mean square, so that values do not grow from layer to layer."""

    def __init__(self, width, eps):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x):
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps) * self.weight


def rotate(x, cos, sin):
    """Rotate the pair of columns c and c + C/2 by an angle that grows with the position (rotary embedding).

    The dot product of two rotated vectors depends only on their distance, which is what attention needs.
    """
    left, right = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-right, left], dim=-1) * sin


class Attention(nn.Module):
    """Each token attends to the tokens up to itself and computes a weighted mean of their values."""

    def __init__(self, config):
        super().__init__()
        self.head_dim = config.head_dim
        kv_width = config.num_key_value_heads * config.head_dim
        self.q_proj = nn.Linear(config.hidden_size, config.hidden_size, bias=False)  # query: what a token looks for
        self.k_proj = nn.Linear(config.hidden_size, kv_width, bias=False)  # key: how other tokens find it
        self.v_proj = nn.Linear(config.hidden_size, kv_width, bias=False)  # value: what it contributes
        self.o_proj = nn.Linear(config.hidden_size, config.hidden_size, bias=False)

    def forward(self, x, cos, sin):
        B, T, D = x.shape
        # Split the vector of each token into H short ones, and move the head dimension forward: (B, H, T, C).
        q = self.q_proj(x).view(B, T, -1, self.head_dim).transpose(1, 2)
        k = self.k_proj(x).view(B, T, -1, self.head_dim).transpose(1, 2)
        v = self.v_proj(x).view(B, T, -1, self.head_dim).transpose(1, 2)
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        # With fewer key/value heads than heads (grouped-query attention), each serves several query heads.
        k, v = (part.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for part in (k, v))
        scores = q @ k.transpose(2, 3) / math.sqrt(self.head_dim)  # (B, H, T, T)
        # A model that sees the next token learns to copy it, so mask everything right of the diagonal.
        future = torch.ones(T, T, dtype=torch.bool, device=x.device).triu(1)
        weights = scores.masked_fill(future, -math.inf).softmax(dim=-1)
        return self.o_proj((weights @ v).transpose(1, 2).reshape(B, T, D))


class FeedForward(nn.Module):
    """Process each token separately: widen, gate one half with the other (SwiGLU), narrow again."""

    def __init__(self, config):
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    """Attention, then the feed-forward network, each *added* to its input: gradients flow through the sum unchanged."""

    def __init__(self, config):
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = FeedForward(config)

    def forward(self, x, cos, sin):
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        return x + self.mlp(self.post_attention_layernorm(x))


class TinyTransformer(nn.Module):
    """Map token ids to one score per token of the vocabulary, for each position: (B, T) -> (B, T, V).

    The modules have the names of Hugging Face's Llama, so weights can move between the two without renaming.
    """

    def __init__(self, config):
        super().__init__()
        if problems := config.problems():  # for example a width that is not a multiple of the heads
            raise ConfigError("the model cannot be built\n" + "\n".join(f"  - {problem}" for problem in problems))
        self.config = config
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.num_hidden_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        # Fast rotation for the first columns, slow rotation for the last, like the hands of a clock.
        speeds = 1 / config.rope_theta ** (torch.arange(0, config.head_dim, 2) / config.head_dim)
        angles = torch.outer(torch.arange(config.max_position_embeddings), speeds).repeat(1, 2)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=config.initializer_range)
        if config.tie_word_embeddings:  # one matrix for input and output: saves a third of this model's weights
            self.lm_head.weight = self.embed_tokens.weight

    def forward(self, tokens):
        T = tokens.shape[1]
        x = self.embed_tokens(tokens)
        for layer in self.layers:
            x = layer(x, self.cos[:T], self.sin[:T])
        return self.lm_head(self.norm(x))


# ---- the checkpoint: everything the next step depends on -------------------------------------------------------------


def fingerprint(tensors):
    """Return one hash of all names and values: equal if and only if all of them are equal."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        digest.update(name.encode() + tensors[name].detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def save_checkpoint(folder, step, model, optimizer, losses, settings):
    """Save the weights, the optimizer's two averages per weight, and the step, which is also the data position.

    Uses safetensors, not pickle: loading a pickle file can execute arbitrary code.
    """
    tensors = {f"model/{name}": weight.detach() for name, weight in model.named_parameters()}
    for name, weight in model.named_parameters():
        tensors |= {f"optimizer/{name}/{key}": value for key, value in optimizer.state[weight].items()}
    tensors = {name: tensor.cpu() for name, tensor in tensors.items()} | {"losses": torch.tensor(losses)}
    about = {"step": step, "sha256": fingerprint(tensors), "settings": settings, "model": vars(model.config)}
    write_atomic(folder.checkpoints / f"step_{step:08d}.safetensors", save(tensors, {"page": json.dumps(about)}))


def read_checkpoint(path):
    """Read a checkpoint of `save_checkpoint`. Raises CheckpointError if it is damaged."""
    try:
        with safe_open(path, framework="pt") as file:
            about = json.loads((file.metadata() or {})["page"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no mapping)
        if fingerprint(tensors) != about["sha256"]:
            raise CheckpointError(f"{path}: its content does not match its hash")
    except (SafetensorError, OSError, KeyError, ValueError) as error:
        raise CheckpointError(f"{path}: damaged, or not a checkpoint of this script: {error}") from None
    return about, tensors


def last_good_checkpoint(folder):
    """Return the latest intact checkpoint; report and skip damaged ones."""
    for path in sorted(folder.checkpoints.glob("step_*.safetensors"), reverse=True):
        try:
            return read_checkpoint(path)
        except CheckpointError as error:
            print(f"skipped checkpoint: {error}")
    raise CheckpointError(f"{folder.checkpoints}: no checkpoint to resume from", "start a new run, without --resume")


def restore(model, optimizer, tensors):
    for name, weight in model.named_parameters():
        weight.data.copy_(tensors[f"model/{name}"])
        state = {key: tensors[f"optimizer/{name}/{key}"] for key in ("step", "exp_avg", "exp_avg_sq")}
        # AdamW counts its steps on the CPU; its two averages are on the device of the weight.
        optimizer.state[weight] = {k: v if k == "step" else v.to(weight.device) for k, v in state.items()}


# ---- the loop --------------------------------------------------------------------------------------------------------


def choose_device():
    found = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    return torch.device(found)


def read_batch(windows, ids, device):
    """Return inputs and labels: the label of a token is the next token, so a window of T+1 gives T of both."""
    tokens = torch.from_numpy(windows.gather(ids)).to(device)
    return tokens[:, :-1], tokens[:, 1:]


def samples_of(step, settings):
    """Return the windows of a step. They depend only on the step, so a resumed run continues exactly."""
    epoch, place = divmod(step, settings["steps_per_epoch"])
    num_samples = settings["steps_per_epoch"] * settings["batch_size"]
    order = torch.randperm(num_samples, generator=torch.Generator().manual_seed(settings["seed"] + epoch))
    return order[place * settings["batch_size"] :][: settings["batch_size"]].numpy()


def loss_of(model, inputs, labels):
    """Cross-entropy: minus the logarithm of the probability that the model assigned to the actual next token."""
    return F.cross_entropy(model(inputs).flatten(0, 1), labels.flatten())


@torch.no_grad()
def validate(model, windows, batch_size, device, most=256):
    """Return the mean loss on text that the model never trains on: what it learned, not what it memorised."""
    ids = torch.arange(min(len(windows), most))
    losses = [loss_of(model, *read_batch(windows, part.numpy(), device)) * len(part) for part in ids.split(batch_size)]
    return float(sum(losses) / len(ids))


@torch.no_grad()
def write_text(model, tokenizer, prompt, num_tokens, seed):
    """Predict one token, append it, repeat."""
    generator, ids = torch.Generator().manual_seed(seed), tokenizer.encode(prompt).ids
    for _ in range(num_tokens):
        context = torch.tensor([ids[-model.config.max_position_embeddings :]], device=model.norm.weight.device)
        best = model(context)[0, -1].cpu().topk(20)
        ids.append(int(best.indices[torch.multinomial((best.values / 0.8).softmax(-1), 1, generator=generator)]))
    return tokenizer.decode(ids)


def train(model, optimizer, folder, settings, windows, losses, say):
    """Forward, (reduce), optimize, gradient-zero, until the last epoch or Ctrl-C; append each loss to `losses`."""
    device, batch_size, per_epoch = model.norm.weight.device, settings["batch_size"], settings["steps_per_epoch"]
    step, num_steps, stop, requests = len(losses), settings["epochs"] * per_epoch, False, []
    for number in (signal.SIGINT, signal.SIGTERM):
        # Ctrl-C in the middle of a step would leave half of the weights updated: stop after the step instead.
        signal.signal(number, lambda number, frame: requests.append(number) or signal.signal(number, signal.SIG_DFL))
    heldout, blind = validate(model, windows["heldout"], batch_size, device), math.log(model.config.vocab_size)
    say(f"step {step:5d} | held-out loss {heldout:.4f}; a blind guess: ln {model.config.vocab_size} = {blind:.4f}")
    start_s = time.monotonic()
    while step < num_steps and not stop:
        inputs, labels = read_batch(windows["train"], samples_of(step, settings), device)

        loss = loss_of(model, inputs, labels)  # Forward: how wrong are the model's predictions?
        loss.backward()  #                       Backward: which change of each weight increases the loss?
        #                                        Reduce: with several ranks, average the gradients here (lab 2)
        optimizer.step()  #                      Optimize: move every weight a little the other way
        optimizer.zero_grad()  #                 Gradient zero: backward adds to the gradients, so reset them

        step, epoch = step + 1, step // per_epoch + 1
        losses.append(loss.item())
        stop = bool(requests)
        if step % settings["log_every"] == 0:
            say(f"step {step:5d} | epoch {epoch} | loss {losses[-1]:.4f}")
        if step % per_epoch == 0:
            mean = sum(losses[-per_epoch:]) / per_epoch
            heldout = validate(model, windows["heldout"], batch_size, device)
            say(f"epoch {epoch} | mean loss {mean:.4f} | held-out loss {heldout:.4f}")
        if step % settings["checkpoint_every"] == 0 or step == num_steps or stop:
            save_checkpoint(folder, step, model, optimizer, losses, settings)
            curve = "".join(f"{number},{value:.6f}\n" for number, value in enumerate(losses, start=1))
            write_atomic(folder.path / "loss.csv", "step,loss\n" + curve)
            say(f"step {step:5d} | saved {folder.checkpoints}/step_{step:08d}.safetensors")

    say(f"{time.monotonic() - start_s:.1f} s; loss of each step: {folder.path / 'loss.csv'}")


# ---- the command -----------------------------------------------------------------------------------------------------

DEFAULTS = {
    "epochs": 2,
    "steps_per_epoch": 200,
    "batch_size": 16,
    "sequence_length": 64,
    "learning_rate": 2e-3,
    "checkpoint_every": 100,
    "log_every": 50,
    "seed": 1337,
    "data": "python-docs",
}
SIZES = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads")
CONFIG = Path(__file__).resolve().parents[1] / "config" / "config.json"


def read_arguments():
    # Omitted options are absent, so that --resume can distinguish choices from defaults.
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], argument_default=argparse.SUPPRESS)
    for name, value in DEFAULTS.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(value), help=f"default: {value}")
    for name in SIZES:
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, help="overrides the model file")
    parser.add_argument("--config", type=Path, help="the model file; default: config/config.json next to scripts/")
    parser.add_argument("--resume", nargs="?", const="", metavar="RUN", help="resume a run; default: the latest")
    return vars(parser.parse_args())


def model_config(path, given):
    """Read the sizes from the model file; options override them."""
    config = load_model_config(path)
    changes = {name: given[name] for name in SIZES if name in given}
    if config.num_key_value_heads == config.num_attention_heads and "num_attention_heads" in changes:
        changes.setdefault("num_key_value_heads", changes["num_attention_heads"])  # still one per head
    return dataclasses.replace(config, **changes)


def find_folder(given):
    """Return a new run folder, or the one to resume."""
    saved = sorted(Path("runs").glob("train_tiny_transformer*/checkpoints"), key=lambda path: path.stat().st_mtime)
    if "resume" not in given:
        names = (f"train_tiny_transformer{'' if number == 1 else f'-{number}'}" for number in itertools.count(1))
        return RunFolder(next(path for name in names if not (path := Path("runs") / name).exists()))
    if not given["resume"] and not saved:
        raise UsageError("--resume: no run of this script has a checkpoint under runs/", "start a run without --resume")
    path = Path(given["resume"]) if given["resume"] else saved[-1].parent
    return RunFolder(path if path.is_dir() else Path("runs") / path)


def check(settings, config):
    """Report every invalid size before anything starts."""
    found = config.problems()
    found += [f"{k}={v}: must be above 0" for k, v in settings.items() if k not in ("seed", "data") and v <= 0]
    T, most = settings["sequence_length"], config.max_position_embeddings
    if most < T:
        found.append(f"sequence_length={T} is more than max_position_embeddings={most}: positions have no rotation")
    if found:
        raise UsageError("nothing was started\n" + "\n".join(f"  - {line}" for line in found), "change these numbers")


def main():
    given = read_arguments()
    folder = find_folder(given)
    if "resume" in given:
        if extra := ", ".join(sorted(given.keys() - {"resume", "epochs"})):
            raise UsageError(f"--resume with {extra}: a run keeps its original settings", "use only --epochs")
        about, tensors = last_good_checkpoint(folder)
        config, losses = ModelConfig(**about["model"]), tensors["losses"].tolist()
        settings = about["settings"] | {name: given[name] for name in ("epochs",) if name in given}
    else:
        tensors, config, losses = None, model_config(given.get("config", CONFIG), given), []
        settings = DEFAULTS | {name: value for name, value in given.items() if name in DEFAULTS}
    check(settings, config)
    data = ensure_prepared(settings["data"])
    if data.vocab_size > (rows := config.vocab_size):
        raise UsageError(f"the text has {data.vocab_size} tokens, the embedding {rows} rows", "raise vocab_size")
    windows = {name: Windows(data.split(name), settings["sequence_length"]) for name in ("train", "heldout")}
    asked, most = settings["steps_per_epoch"] * settings["batch_size"], len(windows["train"])
    if asked > most:
        hint = f"--steps-per-epoch {most // settings['batch_size']}"
        raise UsageError(f"an epoch of {asked} samples (steps x batch), but the text has {most}", hint)
    torch.manual_seed(settings["seed"])
    model = TinyTransformer(config).to(choose_device())
    optimizer = torch.optim.AdamW(model.parameters(), lr=settings["learning_rate"], weight_decay=0.1)
    if tensors:
        restore(model, optimizer, tensors)
    folder.rank_log(0).parent.mkdir(parents=True, exist_ok=True)
    folder.link_logs()
    with folder.rank_log(0).open("a", buffering=1) as log:

        def say(line):
            print(line, flush=True)
            log.write(line + "\n")

        say(f"{folder.path}: {config.num_parameters():,} weights, {config.num_hidden_layers} layers, {choose_device()}")
        train(model, optimizer, folder, settings, windows, losses, say)
        if len(losses) < settings["epochs"] * settings["steps_per_epoch"]:
            saved = f"saved; resume with: python {sys.argv[0]} --resume {folder.path}"
            say(f"stopped, {saved if losses else 'before the first step'}")
            return 130
        say("sample: " + write_text(model, load_tokenizer(data.tokenizer_json), "The ", 40, settings["seed"]))
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (FrogError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code if isinstance(error, FrogError) else 1)
