"""Training speed of a model with about a billion parameters on one GPU: Frog and two plain loops, in one run.

    python benchmarks/gpu.py [--batch 8] [--sequence 2048] [--rounds 5]
    python benchmarks/gpu.py --tiny      the same program with small sizes, on any device, to check that it runs
    python benchmarks/gpu.py --plan H100-80GB     only what `frog plan` predicts for that GPU; needs none

All three use bf16 autocast over float32 weights, compilation, fused AdamW, and clipping at norm 1: Frog's strategy with
its model; a plain GPT in a hand-written loop; transformers' LlamaForCausalLM with exactly Frog's sizes in a
hand-written loop (omitted if transformers is not installed). Attention is `scaled_dot_product_attention`, which uses
the flash kernel on a GPU. Prints tokens per second and MFU: the model's own operations (6 per parameter and token, plus
the attention scores, from `ModelConfig.flops_per_token`; for the plain GPT by the same rule) over the card's dense bf16
peak. Next to it is what `frog plan` predicts for FSDP on that GPU, if it has a profile of it.
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from plain_gpt import PlainGPT
from torch import Tensor, nn

from frog.core.config import ModelConfig, RunConfig, TrainConfig
from frog.core.env import world_env
from frog.core.errors import ConfigError
from frog.plan.estimate.hardware import similar_gpu
from frog.plan.estimate.rows import planned_run
from frog.plan.model import PlannedModel, from_model_config
from frog.train.comm import World
from frog.train.data import Batch
from frog.train.hardware import peak_flops, peak_memory_bytes
from frog.train.model import TinyTransformer
from frog.train.optim.tensors import UpdatedTensor, decay_groups
from frog.train.parallel.build_strategy import build_mesh, build_strategy

BILLION = ModelConfig(
    vocab_size=32768,
    hidden_size=2048,
    intermediate_size=5632,
    num_hidden_layers=20,
    num_attention_heads=16,
    num_key_value_heads=16,
    max_position_embeddings=4096,
)
TINY = ModelConfig(
    vocab_size=512,
    hidden_size=64,
    intermediate_size=176,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=4,
    max_position_embeddings=128,
)
WARMUP_STEPS = 3

Step = Callable[[Tensor, Tensor], None]


@dataclass
class Contender:
    """A way to run a training step."""

    name: str
    make: Callable[[], Step]
    flops_per_token: float
    planned: PlannedModel


def autocast(device: torch.device) -> torch.autocast:
    return torch.autocast(device.type, torch.bfloat16)


def make_optimizer(tensors: Sequence[UpdatedTensor]) -> torch.optim.AdamW:
    return torch.optim.AdamW(decay_groups(tensors, 0.1), lr=1e-4, betas=(0.9, 0.95), fused=True)


def frog_step(model_config: ModelConfig, device: torch.device, compiled: bool) -> Step:
    config = RunConfig(model_config, train=TrainConfig(compile=compiled, precision="bf16"))
    world = World(world_env(), device, timeout_s=60)
    model = TinyTransformer(model_config).to(device)
    strategy = build_strategy(config, build_mesh(config, world), model, make_optimizer, autocast(device))
    scaler = torch.amp.GradScaler(device.type, enabled=False)

    def step(tokens_BT: Tensor, labels_BT: Tensor) -> None:
        batch = Batch(0, np.empty(0), tokens_BT.unsqueeze(0), labels_BT.unsqueeze(0), (1.0,))
        strategy.reduce(strategy.forward_backward(batch, lambda loss: loss), stop=False)
        strategy.clip(strategy.norm(), 1.0)
        strategy.step(scaler)
        strategy.zero()

    return step


def plain_step(model: nn.Module, loss_of: Callable[[nn.Module, Tensor, Tensor], Tensor], compiled: bool) -> Step:
    parameters = list(model.parameters())
    optimizer = make_optimizer([UpdatedTensor.of(name, p) for name, p in model.named_parameters()])
    run = torch.compile(model) if compiled else model
    device = parameters[0].device

    def step(tokens_BT: Tensor, labels_BT: Tensor) -> None:
        with autocast(device):
            loss = loss_of(run, tokens_BT, labels_BT)
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        loss.item()  # Frog's step also knows its loss at the end

    return step


def llama(config: ModelConfig) -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    names = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
    sizes = {name: getattr(config, name) for name in (*names, "num_key_value_heads", "max_position_embeddings")}
    return LlamaForCausalLM(LlamaConfig(**sizes, tie_word_embeddings=True, use_cache=False))


def llama_loss(model: nn.Module, tokens_BT: Tensor, labels_BT: Tensor) -> Tensor:
    logits = model(input_ids=tokens_BT).logits
    return nn.functional.cross_entropy(logits.float().flatten(0, 1), labels_BT.flatten())


def contenders(config: ModelConfig, sequence: int, device: torch.device, compiled: bool) -> list[Contender]:
    width, layers = config.hidden_size, config.num_hidden_layers
    gpt_matrices = layers * 12 * width * width + config.vocab_size * width
    gpt_flops = 6.0 * gpt_matrices + 12.0 * layers * width * sequence
    own, planned = config.flops_per_token(sequence), from_model_config(config)
    heads = config.num_attention_heads
    planned_gpt = PlannedModel(
        layers=layers,
        hidden=width,
        heads=heads,
        kv_heads=heads,
        head_dim=width // heads,
        ffn=4 * width,
        vocab=config.vocab_size,
        gated=False,
        tied=True,
        positions=sequence,
    )

    def gpt() -> Step:
        model = PlainGPT(config.vocab_size, width, layers, config.num_attention_heads, sequence).to(device)
        return plain_step(model, lambda run, tokens, labels: run(tokens, labels), compiled)

    found = [
        Contender("Frog", lambda: frog_step(config, device, compiled), own, planned),
        Contender("plain GPT loop", gpt, gpt_flops, planned_gpt),
    ]
    if importlib.util.find_spec("transformers"):
        found.append(
            Contender(
                "transformers loop", lambda: plain_step(llama(config).to(device), llama_loss, compiled), own, planned
            )
        )
    return found


def tokens_per_s(step: Step, shape: tuple[int, int], vocab_size: int, steps: int, device: torch.device) -> float:
    tokens = torch.randint(0, vocab_size, (shape[0], shape[1] + 1), device=device)
    inputs, labels = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
    synchronize(device)
    start = time.perf_counter()
    for _ in range(steps):
        step(inputs, labels)
    synchronize(device)
    return steps * inputs.numel() / (time.perf_counter() - start)


def planned_tokens_per_s(model: PlannedModel, batch: int, sequence: int, gpu: str) -> float | None:
    """Return the tokens per second that `frog plan` predicts; None for a GPU without a profile."""
    try:
        row = {"gpu": similar_gpu(gpu).name, "software": "FSDP2", "precision": "bf16", "recompute": "none", "zero": "0"}
    except ConfigError:
        return None
    sizes = {"n_gpus": 1, "dp": 1, "seq_len": sequence, "global_batch": batch, "micro_batch": batch}
    run = planned_run(model, row | {name: str(size) for name, size in sizes.items()})
    return batch * sequence / run.step.step.total


def print_plan(gpu: str, batch: int, sequence: int) -> None:
    for contender in contenders(BILLION, sequence, torch.device("cpu"), compiled=False):
        rate = planned_tokens_per_s(contender.planned, batch, sequence, gpu)
        print(f"  {contender.name:20}" + (f"{rate:12,.0f} tokens/s planned" if rate else f"no profile of {gpu}"))


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--sequence", type=int, default=2048)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=5, help="in a round")
    parser.add_argument("--tiny", action="store_true", help="small sizes, uncompiled, on any device")
    parser.add_argument("--plan", metavar="GPU", help="only print what frog plan predicts for a GPU")
    args = parser.parse_args()
    if args.plan:
        print_plan(args.plan, args.batch, args.sequence)
        return
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device.type != "cuda" and not args.tiny:
        parser.error("no GPU found; use --tiny to check that the program runs")
    config, batch, sequence = (TINY, 2, 64) if args.tiny else (BILLION, args.batch, args.sequence)
    torch.set_float32_matmul_precision("high")
    name = torch.cuda.get_device_name() if device.type == "cuda" else "CPU"
    size = f"{config.num_parameters() / 1e6:.0f} M parameters, {batch} x {sequence}"
    print(f"torch {torch.__version__}, {name}, bf16, {size}", flush=True)
    peak = peak_flops(device, "bf16")
    rates: dict[str, list[float]] = {}
    # Three such models do not fit in memory: each round rebuilds every contender, and excludes its warm-up.
    for _ in range(1 if args.tiny else args.rounds):
        for contender in contenders(config, sequence, device, compiled=not args.tiny):
            torch.manual_seed(0)
            step = contender.make()
            start = time.perf_counter()
            tokens_per_s(step, (batch, sequence), config.vocab_size, WARMUP_STEPS, device)
            warmup_s = time.perf_counter() - start
            rate = tokens_per_s(step, (batch, sequence), config.vocab_size, args.steps, device)
            rates.setdefault(contender.name, []).append(rate)
            print(f"  {contender.name:20}{rate:12,.0f} tokens/s after {warmup_s:.0f} s of warm-up", flush=True)
            del step
            gc.collect()
            torch.compiler.reset()
            if device.type == "cuda":
                torch.cuda.empty_cache()
    print("medians:")
    for contender in contenders(config, sequence, device, compiled=False):
        rate = statistics.median(rates[contender.name])
        mfu = f"  MFU {100 * contender.flops_per_token * rate / peak:5.1f} %" if peak else ""
        is_gpu = device.type == "cuda"
        planned = planned_tokens_per_s(contender.planned, batch, sequence, name) if is_gpu else None
        plan = f"  planned {planned:,.0f}, {planned / rate - 1:+.0%}" if planned else ""
        print(f"  {contender.name:20}{rate:12,.0f} tokens/s{mfu}{plan}")
    print(f"  peak memory: {peak_memory_bytes(device) / 2**30:.1f} GiB")


if __name__ == "__main__":
    main()
