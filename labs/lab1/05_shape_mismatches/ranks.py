"""Run each part of the model alone, and the whole model, with given weights and sizes that are all different."""

from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from torch import Tensor

SIZES = (
    {"hidden_size": 12, "intermediate_size": 14, "num_attention_heads": 3, "num_key_value_heads": 3, "head_dim": 4},
    {"hidden_size": 24, "intermediate_size": 10, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 6},
)
COMMON = {
    "vocab_size": 11,
    "num_hidden_layers": 2,
    "max_position_embeddings": 32,
    "rope_theta": 100.0,
    "rms_norm_eps": 0.05,
    "tie_word_embeddings": False,
}
BATCHES = ((2, 5), (1, 7), (4, 4))


def make_weights(seed: int, sizes: dict[str, Any]) -> dict[str, Tensor]:
    """Draw all weights of a model, by name."""
    generator = torch.Generator().manual_seed(seed)
    D, F, V = sizes["hidden_size"], sizes["intermediate_size"], COMMON["vocab_size"]
    kv = sizes["num_key_value_heads"] * sizes["head_dim"]
    shapes = {"embed_tokens.weight": (V, D), "norm.weight": (D,), "lm_head.weight": (V, D)}
    for layer in range(COMMON["num_hidden_layers"]):
        parts = {"self_attn.q_proj": (D, D), "self_attn.k_proj": (kv, D), "self_attn.v_proj": (kv, D)}
        parts |= {"self_attn.o_proj": (D, D), "mlp.gate_proj": (F, D), "mlp.up_proj": (F, D), "mlp.down_proj": (D, F)}
        parts |= {"input_layernorm": (D,), "post_attention_layernorm": (D,)}
        shapes |= {f"layers.{layer}.{name}.weight": shape for name, shape in parts.items()}
    return {name: torch.randn(shape, generator=generator) / 2 + (len(shape) == 1) for name, shape in shapes.items()}


def make_batch(seed: int, B: int, T: int, D: int) -> tuple[Tensor, Tensor]:
    """Draw tokens (B, T), and vectors (B, T, D) for a single part."""
    generator = torch.Generator().manual_seed(seed + 10 * B + T)
    return torch.randint(COMMON["vocab_size"], (B, T), generator=generator), torch.randn(B, T, D, generator=generator)


def tables(sizes: dict[str, Any], T: int) -> tuple[Tensor, Tensor]:
    """Compute cosine and sine of the angles of T positions: (T, C)."""
    C = sizes["head_dim"]
    speeds = 1 / COMMON["rope_theta"] ** (torch.arange(0, C, 2) / C)
    angles = torch.outer(torch.arange(T), speeds).repeat(1, 2)
    return angles.cos(), angles.sin()


def work(learner: ModuleType, case: dict[str, Any]) -> Any:
    """Return, for each config, loading problems and the output or error of each part and of the whole model."""
    found = []
    for sizes in SIZES:
        model = learner.TinyTransformer(SimpleNamespace(**COMMON, **sizes))
        result: dict[str, Any] = {"load": load(model, make_weights(case["seed"], sizes)), "batches": []}
        for B, T in BATCHES:
            tokens, x = make_batch(case["seed"], B, T, sizes["hidden_size"])
            layer, angles = model.layers[0], tables(sizes, T)
            parts = {
                "norm": attempt(layer.input_layernorm, x),
                "attention": attempt(layer.self_attn, x, *angles),
                "ffn": attempt(layer.mlp, x),
                "whole": attempt(model, tokens),
            }
            result["batches"].append(parts)
        found.append(result)
    return found


@torch.no_grad()
def load(model: torch.nn.Module, weights: dict[str, Tensor]) -> str:
    """Load the weights that fit into the model; return the problems."""
    own, problems = dict(model.named_parameters()), []
    for name in sorted(weights.keys() | own.keys()):
        if name not in own or name not in weights:
            problems.append(f"{name} is {'missing in the model' if name not in own else 'not in a checkpoint'}")
        elif own[name].shape != weights[name].shape:
            problems.append(f"{name} is {tuple(own[name].shape)}, in a checkpoint {tuple(weights[name].shape)}")
        else:
            own[name].copy_(weights[name])
    return "; ".join(problems)


@torch.no_grad()
def attempt(part: Any, *inputs: Tensor) -> Any:
    """Return a tensor, or the text of an error."""
    try:
        return part(*inputs)
    except (RuntimeError, ValueError, IndexError, TypeError) as error:
        return f"{type(error).__name__}: {error}"
