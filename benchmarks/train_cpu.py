"""Frog's training speed on a CPU, compared with a plain nanoGPT-style GPT loop and with `transformers`' Llama.

    python benchmarks/train_cpu.py [--threads 2] [--rounds-scale 1.0] [--tiny]

Each contender has its own process, like a user's run, and all have the same allocator settings. They alternate in
blocks of steps, on the same tokens with the same number of threads, so that other load on the machine affects all of
them. A row shows the median block; ratios are medians of the rounds' ratios. `products` computes only the matrix
products of a step, each with the library and orientation that was fastest here: no step that multiplies in float32 can
be faster. Frog and Llama start from the same weights: the agreement of their losses, step by step, shows that both
compute the same function.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from contenders import LARGER, SMALL, TINY, FrogLoop, PlainLoop, Size
from plain_gpt import PlainGPT
from torch import Tensor, nn
from torch.nn import functional as F

from frog.core.env import world_env
from frog.core.machine import keep_freed_memory
from frog.train.comm import World
from frog.train.hardware import autocast
from frog.train.model import TinyTransformer
from frog.train.model.matmul import without_onednn

GPT, LLAMA, FROG, PRODUCTS = "plain GPT loop (b)", "transformers Llama loop (a)", "Frog", "products"
GPT_BF16, FROG_BF16 = "plain GPT loop, bf16", "Frog, bf16"
WARMUP_STEPS = 3
LOSS_RTOL = 1e-4
COMPARED_STEPS = 50
"""Over hundreds of steps at a constant rate, the last bits of two float32 programs grow to visible differences."""


@dataclass(frozen=True)
class Claim:
    """A measurement: a size, a vocabulary, and the speed that Frog should reach."""

    size: Size
    vocab_size: int
    rounds: int
    steps_a_block: int
    targets: dict[str, float]
    """Target per baseline: the relative speed; for `products`, the fraction of a step."""


CLAIMS = (
    Claim(SMALL, 2048, 24, 4, {GPT: 1.3, PRODUCTS: 0.6, GPT_BF16: 1.0}),
    Claim(LARGER, 2048, 10, 1, {GPT: 1.5, PRODUCTS: 0.65, GPT_BF16: 1.0}),
    Claim(SMALL, 65, 12, 4, {}),
)
TINY_CLAIM = Claim(TINY, 65, 3, 1, {})


class Llama(nn.Module):
    """transformers' Llama with Frog's sizes and weights, and the simplest loss."""

    def __init__(self, frog: TinyTransformer) -> None:
        from transformers import LlamaConfig, LlamaForCausalLM

        super().__init__()
        sizes = {name: value for name, value in vars(frog.config).items() if name != "rope_theta"}
        rope = {"rope_type": "default", "rope_theta": frog.config.rope_theta}
        self.llama = LlamaForCausalLM(LlamaConfig(**sizes, rope_parameters=rope, use_cache=False))
        weights = frog.state_dict()
        self.llama.load_state_dict({n if n.startswith("lm_head") else f"model.{n}": t for n, t in weights.items()})

    def forward(self, tokens_BT: Tensor, labels_BT: Tensor) -> Tensor:
        logits_BTV = self.llama(input_ids=tokens_BT).logits
        return F.cross_entropy(logits_BTV.view(-1, logits_BTV.shape[-1]), labels_BT.view(-1))


class Bf16(nn.Module):
    """The model, with its forward pass under autocast."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *batch: Tensor) -> Tensor:
        with autocast("bf16", torch.device("cpu")):
            return self.model(*batch)


class Products:
    """Only the matrix products of a step of Frog's model: forward, and both gradients."""

    def __init__(self, size: Size, vocab_size: int) -> None:
        rows, width = size.batch_size * size.sequence_length, size.width
        linears = [(width, width)] * 4 + [(width, size.ffn_width)] * 2 + [(size.ffn_width, width)]
        self.calls: list[Callable[[], Tensor]] = []
        fastest: dict[tuple[int, int, int], Callable[[Tensor, Tensor], Tensor]] = {}
        for inner, outer in linears * size.num_layers + [(width, vocab_size)]:
            for m, k, n in ((rows, inner, outer), (rows, outer, inner), (outer, rows, inner)):
                a_MK, b_NK = torch.randn(m, k), torch.randn(n, k)
                way = fastest.setdefault((m, k, n), min(ways(), key=lambda way: seconds(way, a_MK, b_NK)))
                self.calls.append(lambda way=way, a=a_MK, b=b_NK: way(a, b))  # type: ignore[misc]

    def step(self, *_: Tensor) -> float:
        for call in self.calls:
            call()
        return 0.0


def ways() -> Iterator[Callable[[Tensor, Tensor], Tensor]]:
    """Yield the ways to compute `a @ b.T`: with either library, and with either factor on the left."""
    yield lambda a, b: a @ b.t()
    yield lambda a, b: (b @ a.t()).t()
    if hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        onednn = torch.ops.mkldnn._linear_pointwise
        yield lambda a, b: onednn(a, b, None, "none", [], "")
        yield lambda a, b: onednn(b, a, None, "none", [], "").t()


def seconds(way: Callable[[Tensor, Tensor], Tensor], a_MK: Tensor, b_NK: Tensor) -> float:
    """Return the time of the fastest of several calls."""
    found = []
    for _ in range(5):
        start = time.perf_counter()
        way(a_MK, b_NK)
        found.append(time.perf_counter() - start)
    return min(found)


def build(name: str, size: Size, vocab_size: int) -> PlainLoop | FrogLoop | Products:
    """Create a contender; Frog and Llama have the same weights."""
    torch.manual_seed(0)
    if name == PRODUCTS:
        return Products(size, vocab_size)
    if name.startswith("plain GPT"):
        gpt = PlainGPT(vocab_size, size.width, size.num_layers, size.num_heads, size.sequence_length)
        return PlainLoop(Bf16(gpt) if name == GPT_BF16 else gpt)
    frog = TinyTransformer(size.config(vocab_size))
    if name == LLAMA:
        return PlainLoop(Llama(frog))
    world = World(world_env(), torch.device("cpu"), timeout_s=60)
    return FrogLoop(frog, world, precision="bf16" if name == FROG_BF16 else "fp32")


CONTENDERS: dict[str, Callable[[], AbstractContextManager[None]]] = {
    GPT: nullcontext,
    LLAMA: nullcontext,
    FROG: nullcontext,
    "Frog, products by MKL": without_onednn,
    PRODUCTS: nullcontext,
    GPT_BF16: nullcontext,
    FROG_BF16: nullcontext,
}
"""The context in which each contender runs."""


def serve(name: str, claim: Claim, threads: int) -> None:
    """Run a block of steps for each seed on stdin; print ms per step and losses: a contender's process."""
    keep_freed_memory()
    torch.set_num_threads(threads)
    with CONTENDERS[name]():
        loop = build(name, claim.size, claim.vocab_size)
        for line in sys.stdin:
            seed = int(line)
            count = claim.steps_a_block if seed else WARMUP_STEPS
            batches = claim.size.batches(claim.vocab_size, count, seed=seed)
            start = time.perf_counter()
            losses = [loop.step(*batch) for batch in batches]
            ms = (time.perf_counter() - start) * 1e3 / count
            print(json.dumps({"ms": ms, "losses": losses}), flush=True)


@dataclass
class Contender:
    """A contender's process, seen from the main process."""

    process: subprocess.Popen[str]
    ms: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)

    def block(self, seed: int) -> dict[str, Any]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(seed, file=self.process.stdin, flush=True)
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit("a contender's process ended")
        found: dict[str, Any] = json.loads(line)
        return found


@contextmanager
def contenders(number: int, words: list[str]) -> Iterator[dict[str, Contender]]:
    """Start all contenders' processes, and end them with this block."""
    found = {}
    try:
        for name in CONTENDERS:
            command = [sys.executable, __file__, "--serve", name, str(number), *words]
            pipe = subprocess.PIPE
            found[name] = Contender(subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True))
        yield found
    finally:
        for contender in found.values():
            contender.process.kill()
            contender.process.communicate()


def measure(claim: Claim, rounds: int, found: dict[str, Contender]) -> None:
    """Run blocks of steps in turn; another contender begins in each round."""
    names = list(found)
    for name in names:
        found[name].losses += found[name].block(0)["losses"]
    for index in range(rounds):
        first = index % len(names)
        for name in names[first:] + names[:first]:
            block = found[name].block(1 + index)
            found[name].ms.append(block["ms"])
            found[name].losses += block["losses"]


def ratio(one: Contender, other: Contender) -> tuple[float, float, float]:
    """Return how many times as long a step of `one` takes as one of `other`: median and middle half of the rounds."""
    low, middle, high = statistics.quantiles((a / b for a, b in zip(one.ms, other.ms, strict=True)), n=4)
    return low, middle, high


def report(claim: Claim, found: dict[str, Contender]) -> None:
    tokens = claim.size.batch_size * claim.size.sequence_length
    frog = found[FROG]
    print(f"\n{claim.size}, vocabulary {claim.vocab_size}; {len(frog.ms)} blocks of {claim.steps_a_block} steps each")
    print(f"  {'':30}{'ms/step':>9}{'tokens/s':>10}{'x (b)':>8}{'x (a)':>8}")
    for name, contender in found.items():
        ms = statistics.median(contender.ms)
        times = [ratio(found[baseline], contender)[1] for baseline in (GPT, LLAMA)]
        print(f"  {name:30}{ms:>9.1f}{tokens / ms * 1e3:>10.0f}{times[0]:>8.2f}{times[1]:>8.2f}")
    pairs = list(itertools.islice(zip(frog.losses, found[LLAMA].losses, strict=True), COMPARED_STEPS))
    difference = max(abs(a - b) / b for a, b in pairs)
    verdict = "the same mathematics" if difference <= LOSS_RTOL else "NOT the same mathematics"
    print(f"  losses of Frog and (a) over {len(pairs)} steps differ by at most {difference:.1e}: {verdict}")
    for name, target in claim.targets.items():
        low, middle, high = ratio(found[name], found[FROG_BF16] if name == GPT_BF16 else frog)
        said = f"{middle:.0%} of Frog's step are its products" if name == PRODUCTS else f"{middle:.2f} x {name}"
        verdict = "reached" if middle >= target else "NOT reached"
        print(f"  {said}; target {target}: {verdict} (half of the rounds: {low:.2f} to {high:.2f})")
    sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds-scale", type=float, default=1.0, help="factor for the number of rounds")
    parser.add_argument("--tiny", action="store_true", help="small sizes, to check that it runs")
    parser.add_argument("--serve", nargs=2, metavar=("NAME", "CLAIM"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    claims = (TINY_CLAIM,) if args.tiny else CLAIMS
    if args.serve:
        serve(args.serve[0], claims[int(args.serve[1])], args.threads)
        return
    print(f"{args.threads} threads, {torch.backends.cpu.get_cpu_capability()}; float32 unless stated otherwise")
    words = ["--threads", str(args.threads), *(["--tiny"] if args.tiny else [])]
    for number, claim in enumerate(claims):
        with contenders(number, words) as found:
            measure(claim, max(3, round(claim.rounds * args.rounds_scale)), found)
            report(claim, found)
    print("\nThe claim refers to vocabulary 2048, Frog's own.")


if __name__ == "__main__":
    main()
