"""How fast Frog trains on a CPU, beside a plain GPT loop as nanoGPT writes it and beside `transformers`' Llama.

    python benchmarks/train_cpu.py [--threads 2] [--budget-scale 1.0]

All train in one process on the same tokens with the same number of threads in float32, a block of steps each in turn,
round after round for a given time, so that whatever else the machine does falls on all of them. A row shows the median
block, and how many times as fast as the two baselines that is. Frog and Llama start from the same weights: that their
losses agree step by step shows that both do the same mathematics.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
import time
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

import torch
from contenders import LARGER, SMALL, FrogLoop, PlainLoop, Size
from plain_gpt import PlainGPT
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import LlamaConfig, LlamaForCausalLM
from transformers import __version__ as transformers_version

from frog.comm import World
from frog.core.env import world_env
from frog.model import TinyTransformer
from frog.model.matmul import without_onednn

GPT, LLAMA, FROG = "plain GPT loop (b)", "transformers Llama loop (a)", "Frog"
WARMUP_STEPS = 3
LOSS_RTOL = 1e-4
COMPARED_STEPS = 50
"""Over hundreds of steps at a constant rate the last bits of any two float32 programs grow to visible differences."""


@dataclass(frozen=True)
class Claim:
    """What is measured: a size at a vocabulary, and how many times as fast as the baselines Frog should be."""

    size: Size
    vocab_size: int
    budget_s: float
    steps_a_block: int
    targets: dict[str, float] | None


SMALL_TARGETS, LARGER_TARGETS = {GPT: 1.15, LLAMA: 1.3}, {GPT: 1.08, LLAMA: 1.2}
CLAIMS = (
    Claim(SMALL, 2048, 80, 4, SMALL_TARGETS),
    Claim(LARGER, 2048, 110, 1, LARGER_TARGETS),
    Claim(SMALL, 65, 50, 4, None),
    Claim(LARGER, 65, 70, 1, None),
)


class Llama(nn.Module):
    """transformers' Llama with Frog's sizes and weights, and the plainest loss."""

    def __init__(self, frog: TinyTransformer) -> None:
        super().__init__()
        sizes = {name: value for name, value in vars(frog.config).items() if name != "rope_theta"}
        rope = {"rope_type": "default", "rope_theta": frog.config.rope_theta}
        self.llama = LlamaForCausalLM(LlamaConfig(**sizes, rope_parameters=rope, use_cache=False))
        weights = frog.state_dict()
        self.llama.load_state_dict({n if n.startswith("lm_head") else f"model.{n}": t for n, t in weights.items()})

    def forward(self, tokens_BT: Tensor, labels_BT: Tensor) -> Tensor:
        logits_BTV = self.llama(input_ids=tokens_BT).logits
        return F.cross_entropy(logits_BTV.view(-1, logits_BTV.shape[-1]), labels_BT.view(-1))


@dataclass
class Contender:
    loop: PlainLoop | FrogLoop
    context: AbstractContextManager[None] | None = None
    ms: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)

    @property
    def median_ms(self) -> float:
        return statistics.median(self.ms)


def build(claim: Claim) -> dict[str, Contender]:
    """Every contender, each with a model of its own; all but the GPT with the same weights."""
    size, world = claim.size, World(world_env(), torch.device("cpu"), timeout_s=60)

    def frog() -> TinyTransformer:
        torch.manual_seed(0)
        return TinyTransformer(size.config(claim.vocab_size))

    def gpt() -> PlainGPT:
        torch.manual_seed(0)
        return PlainGPT(claim.vocab_size, size.width, size.num_layers, size.num_heads, size.sequence_length)

    return {
        GPT: Contender(PlainLoop(gpt())),
        "  the same, fused AdamW": Contender(PlainLoop(gpt(), fused=True)),
        LLAMA: Contender(PlainLoop(Llama(frog()))),
        "  the same, fused AdamW ": Contender(PlainLoop(Llama(frog()), fused=True)),
        FROG: Contender(FrogLoop(frog(), world)),
        "  the same, products by MKL": Contender(FrogLoop(frog(), world), without_onednn),
        "  the same, in the plain loop": Contender(PlainLoop(frog())),
    }


def run_block(contender: Contender, batches: list[tuple[Tensor, Tensor]]) -> float:
    """Milliseconds a step."""
    with contender.context() if contender.context else nullcontext():
        start = time.perf_counter()
        contender.losses += [contender.loop.step(*batch) for batch in batches]
        return (time.perf_counter() - start) * 1e3 / len(batches)


def measure(claim: Claim, budget_s: float) -> dict[str, Contender]:
    """Blocks of steps in turn until the time is up; who begins moves on by one each round."""
    contenders = build(claim)
    names = list(contenders)
    end = time.monotonic() + budget_s
    for name in names:
        run_block(contenders[name], claim.size.batches(claim.vocab_size, WARMUP_STEPS))
    for index in itertools.count():
        block = claim.size.batches(claim.vocab_size, claim.steps_a_block, seed=1 + index)
        first = index % len(names)
        for name in names[first:] + names[:first]:
            contenders[name].ms.append(run_block(contenders[name], block))
        if index >= 2 and time.monotonic() > end:
            return contenders
    raise AssertionError("the count has no end")


def report(claim: Claim, contenders: dict[str, Contender]) -> None:
    tokens = claim.size.batch_size * claim.size.sequence_length
    gpt, llama, frog = contenders[GPT], contenders[LLAMA], contenders[FROG]
    print(f"\n{claim.size}, vocabulary {claim.vocab_size}; {len(frog.ms)} blocks of {claim.steps_a_block} steps each")
    print(f"  {'':32}{'parameters':>11}{'ms/step':>9}{'tokens/s':>10}{'x (b)':>8}{'x (a)':>8}")
    for name, contender in contenders.items():
        ms = contender.median_ms
        count = sum(p.numel() for p in contender.loop.model.parameters())
        print(
            f"  {name:32}{count:>11,}{ms:>9.1f}{tokens / ms * 1e3:>10.0f}"
            f"{gpt.median_ms / ms:>8.2f}{llama.median_ms / ms:>8.2f}"
        )
    pairs = list(zip(frog.losses, llama.losses, strict=True))[:COMPARED_STEPS]
    difference = max(abs(a - b) / b for a, b in pairs)
    verdict = "the same mathematics" if difference <= LOSS_RTOL else "NOT the same mathematics"
    print(f"  losses of Frog and (a) over {len(pairs)} steps differ by at most {difference:.1e}: {verdict}")
    for name, target in (claim.targets or {}).items():
        ratio = contenders[name].median_ms / frog.median_ms
        low, _, high = statistics.quantiles((a / b for a, b in zip(contenders[name].ms, frog.ms, strict=True)), n=4)
        verdict = "reached" if ratio >= target else "NOT reached"
        fastest = min(contenders[name].ms) / min(frog.ms)
        print(f"  {ratio:.2f} x {name}; target {target}: {verdict}")
        print(f"       (half of the rounds: {low:.2f} to {high:.2f}; fastest block to fastest block: {fastest:.2f})")
    sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--budget-scale", type=float, default=1.0, help="more or less time than usual")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    processor = torch.cpu.get_capabilities()
    print(
        f"torch {torch.__version__}, transformers {transformers_version}, {args.threads} threads, float32, "
        f"{processor.get('cpu_name', 'unknown processor')}, {torch.backends.cpu.get_cpu_capability()}"
    )
    start = time.monotonic()
    for claim in CLAIMS:
        report(claim, measure(claim, claim.budget_s * args.budget_scale))
    print(f"\nThe claim is made at vocabulary 2048, Frog's own. Took {time.monotonic() - start:.0f} s.")


if __name__ == "__main__":
    main()
