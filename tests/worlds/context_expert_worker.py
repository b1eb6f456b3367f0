"""A rank that computes its part of attention, a model or a mixture of experts, and its error relative to the whole.

Every rank also computes the whole as the oracle. The result of each case is the largest error of a tensor beyond rtol
1e-5, as a fraction of the tensor's largest element. A mutant is one function with one change in its source.
"""

from __future__ import annotations

import contextlib
import inspect
import json
import sys
import textwrap
import types
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from frog.core.config import ModelConfig
from frog.core.env import world_env
from frog.core.processes import leave
from frog.train.comm import World, join_world
from frog.train.model import TinyTransformer, moe
from frog.train.model.transformer import causal_attention
from frog.train.parallel.mesh import Mesh
from frog.train.parallel.model import blockwise, context, expert

DENSE = ModelConfig(61, 32, 48, 2, 4, 2, 64)
UNTIED = ModelConfig(61, 32, 48, 2, 4, 4, 64, tie_word_embeddings=False)
MIXTURE = ModelConfig(61, 32, 24, 2, 4, 2, 64, num_local_experts=8, router_aux_loss_coef=0.5)
SINGLE = ModelConfig(61, 32, 24, 2, 4, 2, 64, num_local_experts=4, num_experts_per_tok=1, router_aux_loss_coef=0.5)
ALL_EXPERTS = ModelConfig(61, 32, 24, 2, 4, 2, 64, num_local_experts=4, num_experts_per_tok=4, router_aux_loss_coef=0.5)
"""All experts are active: with bf16, a choice between experts sometimes differs."""

MIXTURE_FORWARD = moe.MixtureOfExperts.forward

MUTANTS: dict[str, tuple[types.ModuleType | type, str, str, str]] = {
    "no mask on the own block": (blockwise, "scores", "if is_own:", "if False:"),
    "the sum so far not scaled": (context, "merge", "y.mul_((log_sum - together).exp_().unsqueeze(-1))", "y"),
    "the log of the sum not kept up": (context, "merge", "log_sum.copy_(together)", "pass"),
    "gradients not brought home": (context, "ring_gradients", "home += arriving", "home += leaving"),
    "chunks not mirrored": (context, "zigzag", "chunks[-1 - cp_rank]", "chunks[cp_size + cp_rank]"),
    "later keys seen": (context, "visible", "return slice(None), slice(t // 2)", "return slice(None), slice(None)"),
    "positions from zero": (context, "local_part", "positions_t), positions_t\n", "positions_t), positions_t * 0\n"),
    "rows not by expert": (expert, "by_expert", ".argsort(stable=True)", ".argsort().argsort()"),
    "combined in the wrong order": (moe.MixtureOfExperts, "forward", "order_R.argsort()", "order_R"),
    "no gate weight": (moe.MixtureOfExperts, "forward", "* weights_NA.unsqueeze(-1)", "/ self.num_active"),
    "own share of the tokens": (expert.GlobalTokenFraction, "__call__", "self.data.all_reduce(totals)", "pass"),
    "expert gradients not divided": (expert, "shard_experts", "grad / ep.size", "grad"),
}


@contextlib.contextmanager
def mutated(place: types.ModuleType | type, name: str, old: str, new: str) -> Iterator[None]:
    """Replace one function's source in this context."""
    original = getattr(place, name)
    text = textwrap.dedent(inspect.getsource(original)) + "\n"
    assert text.count(old) == 1, f"{name}: {old!r} occurs {text.count(old)} times"
    made: dict[str, Any] = {}
    exec("from __future__ import annotations\n" + text.replace(old, new), original.__globals__, made)
    setattr(place, name, made[name])
    try:
        yield
    finally:
        setattr(place, name, original)


def error(actual: Tensor, expected: Tensor, rtol: float = 1e-5) -> float:
    excess = (actual.double() - expected.double()).abs() - rtol * expected.double().abs()
    return max(0.0, (excess.max() / expected.double().abs().max()).item())


class Recorder:
    """Sums up the reported collectives."""

    def __init__(self) -> None:
        self.payload_bytes: Counter[str] = Counter()

    def __call__(self, op: str, axis: str, payload_bytes: int) -> Recorder:
        self.payload_bytes[f"{op} {axis}"] += payload_bytes
        return self

    def done(self, end_ns: int, wait_ns: int) -> None:
        return


# ---- attention -------------------------------------------------------------------------------------------------------


def attention(mesh: Mesh, kv_heads: int, dtype: torch.dtype = torch.float32) -> float:
    """Compare ring attention of the parts with attention of the whole sequence: the result and all three gradients."""
    generator = torch.Generator().manual_seed(3)
    T, cp = 8 * mesh.cp.size, mesh.cp
    shapes = [(2, heads, T, 6) for heads in (4, kv_heads, kv_heads, 4)]
    *qkv, grad = [(2 * torch.randn(shape, generator=generator)).to(dtype) for shape in shapes]
    whole = [x.to(torch.float32, copy=True).requires_grad_() for x in qkv]
    expected = causal_attention(*whole)
    expected.backward(grad.float())

    positions = context.zigzag(T, cp.size, cp.rank)
    parts = [x[:, :, positions].transpose(1, 2).contiguous().transpose(1, 2).requires_grad_() for x in qkv]
    actual = context.RingAttention(cp)(*parts)
    actual.backward(grad[:, :, positions])
    with torch.no_grad():
        assert torch.equal(context.RingAttention(cp)(*parts), actual)
    assert actual.dtype == parts[1].grad.dtype == dtype
    pairs = [(actual, expected), *((part.grad, x.grad) for part, x in zip(parts, whole, strict=True))]
    rtol = 1e-5 if dtype == torch.float32 else 2**-8
    return max(error(part.detach(), x.detach()[:, :, positions], rtol) for part, x in pairs)


# ---- models ----------------------------------------------------------------------------------------------------------


def build(config: ModelConfig, checkpointing: bool = False) -> TinyTransformer:
    torch.manual_seed(5)
    model = TinyTransformer(config, checkpointing)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.normal_(1.0 if "norm" in name else 0.0, 0.3)
    return model


def keep_oracle(whole: TinyTransformer) -> None:
    """Give a model the mixture's original formula: a mutant of the class must not affect the oracle."""
    for module in whole.modules():
        if isinstance(module, moe.MixtureOfExperts):
            module.forward = types.MethodType(MIXTURE_FORWARD, module)  # type: ignore[method-assign]


def micro_batches(num_samples: int, T: int, num_micro: int) -> Tensor:
    """Return the tokens of all ranks. Shapes: (num_micro, num_samples, T + 1)."""
    return torch.randint(0, 61, (num_micro, num_samples, T + 1), generator=torch.Generator().manual_seed(7))


def train(
    mesh: Mesh,
    config: ModelConfig,
    num_samples: int,
    *,
    T: int = 32,
    num_micro: int = 2,
    one_sided: bool = False,
    checkpointing: bool = False,
    autocast: bool = False,
    rtol: float = 1e-5,
) -> float:
    """Compare the loss and the reduced gradients of a whole model with one process, parameter by parameter.

    The samples are divided over `dp` as evenly as possible; each rank's loss has the weight of its number of samples.
    """
    batch, cast = micro_batches(num_samples, T, num_micro), lambda: torch.autocast("cpu", enabled=autocast)
    whole, model = build(config), build(config, checkpointing)
    if one_sided:
        for module in (*whole.modules(), *model.modules()):
            if isinstance(module, moe.MixtureOfExperts):
                module.gate.weight.data.zero_()  # every token goes to the first experts, which are on one rank
    keep_oracle(whole)
    expected = torch.zeros(())
    for tokens in batch:
        with cast():
            loss = whole(tokens[:, :-1], tokens[:, 1:]) / num_micro
        loss.backward()
        expected += loss.detach()

    context.use_context(model, mesh.cp)
    expert.balance_over(model, mesh.data)
    expert.shard_experts(model, mesh.ep)
    actual = torch.zeros(())
    for tokens in batch:
        own = tokens.tensor_split(mesh.dp.size)[mesh.dp.rank]
        inputs, labels, positions = context.local_part(own[:, :-1], own[:, 1:], mesh.cp)
        share = len(own) * mesh.dp.size / num_samples / num_micro
        with cast():
            loss = model(inputs, labels, positions) * share
        loss.backward()
        actual += loss.detach()
    mesh.data.all_reduce(actual)
    return max(error(actual / mesh.data.size, expected, rtol), *gradient_errors(mesh, model, whole, rtol))


def gradient_errors(mesh: Mesh, model: TinyTransformer, whole: TinyTransformer, rtol: float) -> Iterator[float]:
    """Average each gradient over its axis, and compare it with the corresponding part of the whole model's."""
    experts, expected = expert.expert_names(model), dict(whole.named_parameters())
    for name, parameter in model.named_parameters():
        axis = mesh.expert_data if name in experts else mesh.data
        assert parameter.grad is not None
        axis.all_reduce(parameter.grad)
        target = expected[name].grad
        target = target.chunk(mesh.ep.size)[mesh.ep.rank] if name in experts else target
        scale = expected[name].grad.abs().max() / target.abs().max().clamp(min=1e-30)
        yield error(parameter.grad / axis.size, target, rtol) / max(1.0, scale.item())


def sent_bytes(world: World, mesh: Mesh, config: ModelConfig) -> dict[str, int]:
    """Return the bytes sent in one forward and backward pass of a micro-batch."""
    model, recorder = build(config), Recorder()
    context.use_context(model, mesh.cp)
    expert.balance_over(model, mesh.data)
    expert.shard_experts(model, mesh.ep)
    own = micro_batches(2 * mesh.dp.size, 32, 1)[0].chunk(mesh.dp.size)[mesh.dp.rank]
    world.report_to(recorder)
    model(*context.local_part(own[:, :-1], own[:, 1:], mesh.cp)).backward()
    return dict(recorder.payload_bytes)


def cases(world: World, meshes: dict[str, Mesh]) -> dict[str, Callable[[], float]]:
    cp, dp, ep = meshes["cp"], meshes["dp"], meshes["ep"]
    found: dict[str, Callable[[], float]] = {
        "attention": lambda: attention(cp, 4),
        "attention, grouped": lambda: attention(cp, 2),
        "attention, one key/value head": lambda: attention(cp, 1),
        "attention, bf16": lambda: attention(cp, 2, torch.bfloat16),
        "cp": lambda: train(cp, DENSE, 3),
        "cp, untied": lambda: train(cp, UNTIED, 3),
        "cp, activation checkpointing": lambda: train(cp, DENSE, 3, checkpointing=True),
        "cp, autocast": lambda: train(cp, DENSE, 3, autocast=True, rtol=0.0),
        "cp, mixture": lambda: train(cp, MIXTURE, 3),
        "dp, mixture": lambda: train(dp, MIXTURE, 8),
        "dp, mixture, uneven": lambda: train(dp, MIXTURE, 7),
        "ep": lambda: train(ep, MIXTURE, 8),
        "ep, one expert a token": lambda: train(ep, SINGLE, 8),
        "ep, uneven": lambda: train(ep, MIXTURE, 7),
        "ep, all tokens to one rank": lambda: train(ep, MIXTURE, 8, one_sided=True),
        "ep, activation checkpointing": lambda: train(ep, MIXTURE, 8, checkpointing=True),
        "ep, autocast": lambda: train(ep, ALL_EXPERTS, 8, autocast=True, rtol=0.0),
    }
    if world.size == 4:
        found |= {
            "dp2 cp2": lambda: train(meshes["dp2 cp2"], DENSE, 4),
            "dp4 ep2": lambda: train(meshes["dp4 ep2"], MIXTURE, 8),
            "dp2 cp2 ep2": lambda: train(meshes["dp2 cp2"], MIXTURE, 4),
        }
    return found


def make_meshes(world: World) -> dict[str, Mesh]:
    n = world.size
    found = {"cp": Mesh(world, cp=n), "dp": Mesh(world, dp=n), "ep": Mesh(world, dp=n, ep=n)}
    if n == 4:
        found |= {"dp2 cp2": Mesh(world, dp=2, cp=2, ep=2), "dp4 ep2": Mesh(world, dp=4, ep=2)}
    return found


def main(folder: Path) -> None:
    env = world_env()
    world = join_world(env, torch.device("cpu"), timeout_s=60)
    meshes = make_meshes(world)
    result = {
        "errors": {name: case() for name, case in cases(world, meshes).items()},
        "mutants": {},
        "bytes": {
            "cp": sent_bytes(world, meshes["cp"], DENSE),
            "ep": sent_bytes(world, meshes["ep"], MIXTURE),
        },
    }
    for number, (name, mutant) in enumerate(MUTANTS.items()):
        with mutated(*mutant):
            kind = "cp" if number < 7 else "ep"
            result["mutants"][name] = train(meshes[kind], DENSE if kind == "cp" else MIXTURE, 8)
    (folder / f"rank_{env.rank}.json").write_text(json.dumps(result))
    world.leave()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
    leave(0)
