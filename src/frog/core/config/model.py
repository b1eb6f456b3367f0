"""The sizes of a transformer, under Hugging Face's config.json names, and the table of its parameters.

The table is at the end of this file. All code that needs a parameter's name, shape or split reads it:
the counts below, the plan, tensor parallelism (Frog's and torch's), the report and the Hugging Face import.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

IGNORED_LABEL = -100
"""The label of a position that does not count in the loss, such as a prompt or padding. PyTorch's `ignore_index`."""

_MOST = {
    "vocab_size": 10**8,
    "hidden_size": 10**6,
    "intermediate_size": 10**7,
    "num_hidden_layers": 10**4,
    "num_attention_heads": 10**5,
    "num_key_value_heads": 10**5,
    "max_position_embeddings": 10**8,
    "num_local_experts": 10**5,
}
"""Upper limits, over ten times the largest model ever trained: anything above is a typing mistake."""


@dataclass(frozen=True)
class ModelConfig:
    """A decoder-only transformer of the Llama family. `problems()` reports every invalid size."""

    vocab_size: int
    """Number of tokens in the vocabulary."""
    hidden_size: int
    """Width of the residual stream."""
    intermediate_size: int
    """Hidden width of a layer's FFN."""
    num_hidden_layers: int
    """Transformer layers."""
    num_attention_heads: int
    """Query heads per layer."""
    num_key_value_heads: int
    """Key and value heads per layer; several query heads share one."""
    max_position_embeddings: int
    """Longest sequence, in positions."""
    rope_theta: float = 10000.0
    """Base frequency of the rotary position embeddings."""
    rms_norm_eps: float = 1e-5
    """Added to the mean square in each RMSNorm."""
    initializer_range: float = 0.02
    """Standard deviation of the initial weights."""
    tie_word_embeddings: bool = True
    """Use the embedding as the output layer's weight."""
    qk_norm: bool = False
    """Normalize each head's queries and keys before their rotation, as Qwen3 does."""
    num_local_experts: int | None = None
    """Experts in each layer's mixture of experts, each of `intermediate_size`; None: one dense FFN per layer."""
    num_experts_per_tok: int = 2
    """Number of its layer's experts that process each token."""
    router_aux_loss_coef: float = 0.001
    """Weight of the load-balancing loss in the training loss."""

    @property
    def head_dim(self) -> int:
        """Width of one attention head."""
        return self.hidden_size // self.num_attention_heads

    def problems(self) -> list[str]:
        """Return every rule that these sizes break, with the numbers and the rule; empty if the model can be built."""
        problems = [
            f"{name}={size}: must be at least 1" if size < 1 else f"{name}={size}: must be at most {most}"
            for name, most in _MOST.items()
            if (size := getattr(self, name)) is not None and not 1 <= size <= most
        ]
        problems += [
            f"{name}={value}: must be {'at least' if zero else 'above'} 0"
            for name, value, zero in (
                ("rope_theta", self.rope_theta, False),
                ("rms_norm_eps", self.rms_norm_eps, True),
                ("initializer_range", self.initializer_range, True),
            )
            if value < 0 or (value == 0 and not zero)
        ]
        if problems:
            return problems
        hidden, heads, kv_heads = self.hidden_size, self.num_attention_heads, self.num_key_value_heads
        if hidden % heads:
            problems.append(
                f"hidden_size={hidden} is not a multiple of num_attention_heads={heads}: "
                f"each head takes hidden_size / num_attention_heads = {hidden / heads:g} columns, which must be whole"
            )
        elif self.head_dim % 2:
            problems.append(
                f"hidden_size={hidden} / num_attention_heads={heads} = {self.head_dim} columns a head: "
                "rotary positions turn columns in pairs, so this must be even"
            )
        if heads % kv_heads:
            problems.append(
                f"num_attention_heads={heads} is not a multiple of num_key_value_heads={kv_heads}: "
                "each key/value head serves the same number of query heads"
            )
        if self.qk_norm and self.num_local_experts is not None:
            problems.append(
                f"qk_norm=true with num_local_experts={self.num_local_experts}: no Hugging Face model combines both as "
                "Frog's model does; remove one of them"
            )
        return problems + self._expert_problems()

    def _expert_problems(self) -> list[str]:
        if self.num_local_experts is None:
            return []
        problems = []
        if not 1 <= self.num_experts_per_tok <= self.num_local_experts:
            problems.append(
                f"num_experts_per_tok={self.num_experts_per_tok} of num_local_experts={self.num_local_experts}: "
                "each token goes through at least one expert, and through each at most once"
            )
        if self.router_aux_loss_coef < 0:
            problems.append(f"router_aux_loss_coef={self.router_aux_loss_coef}: must be at least 0")
        return problems

    @property
    def kv_width(self) -> int:
        """Total width of all key heads, equal to that of all value heads."""
        return self.num_key_value_heads * self.head_dim

    def layer_parameters(self) -> tuple[Parameter, ...]:
        """The parameters of one layer, in the order of the forward pass."""
        return tuple(parameter for parameter in _LAYER if parameter.exists(self))

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shape of every parameter by its name in the model, in the order of `state_dict`."""
        embedding, *last = ROOT
        layers = {
            f"layers.{number}.{parameter.name}": parameter.shape(self)
            for number in range(self.num_hidden_layers)
            for parameter in self.layer_parameters()
        }
        return {embedding.name: embedding.shape(self), **layers, **{tensor.name: tensor.shape(self) for tensor in last}}

    def num_parameters(self) -> int:
        """Number of weights of the model; a tied embedding counts once."""
        copies = self.vocab_size * self.hidden_size if self.tie_word_embeddings else 0
        return self._sum(lambda parameter: parameter.numel(self)) - copies

    def built_bytes(self) -> int:
        """Memory of a built model: its weights, and the cosine and sine of each position, in float32."""
        return 4 * (self.num_parameters() + 2 * self.max_position_embeddings * self.head_dim)

    def flops_per_token(self, sequence_length: int) -> float:
        """Floating-point operations to train on one token: forward and backward, matrix products only.

        In a mixture of experts, only the experts that process the token count.

        Units:   operations; a multiply-add counts as two.
        Assumes: full (not causal) attention scores, as Chowdhery et al. 2022 (PaLM), appendix B, counts them.
        """
        weights = self._sum(self._num_multiplied)
        return 6.0 * weights + 12.0 * self.num_hidden_layers * self.hidden_size * sequence_length

    def _num_multiplied(self, parameter: Parameter) -> int:
        """Return how many of the parameter's weights multiply one token: an embedding is only looked up."""
        if parameter.kind in ("embedding", "norm", "head norm"):
            return 0
        if parameter.kind == "expert":
            return parameter.numel(self) // (self.num_local_experts or 1) * self.num_experts_per_tok
        return parameter.numel(self)

    def _sum(self, count: Callable[[Parameter], int]) -> int:
        """Sum `count` over all parameters of the model; the head counts separately even if it is tied."""
        return sum(map(count, ROOT)) + self.num_hidden_layers * sum(map(count, self.layer_parameters()))


# ---- the table of parameters -----------------------------------------------------------------------------------------


def _always(model: ModelConfig) -> bool:
    return True


def _is_dense(model: ModelConfig) -> bool:
    return model.num_local_experts is None


def _has_qk_norm(model: ModelConfig) -> bool:
    return model.qk_norm


def _has_experts(model: ModelConfig) -> bool:
    return model.num_local_experts is not None


@dataclass(frozen=True)
class Parameter:
    """A row of the table: one parameter of the model, or of each layer."""

    name: str
    """Its name in the model; for a layer's parameter, the name within its layer."""
    dims: str
    """One letter for each dim of its shape, a key of `_WIDTHS`."""
    kind: Literal["embedding", "head", "matrix", "router", "expert", "norm", "head norm"]
    """A head norm works on each attention head: where tensor parallelism splits the heads, each rank computes a part of
    its gradient.
    """
    split_dim: int | None = None
    """The dim that tensor parallelism splits: 0 the outputs, 1 the inputs; None if it is not split."""
    exists: Callable[[ModelConfig], bool] = _always
    """True for the models that have it."""

    @property
    def module(self) -> str:
        """The name of the module that owns it."""
        return self.name.rpartition(".")[0]

    def shape(self, model: ModelConfig) -> tuple[int, ...]:
        """Return the sizes of its dims."""
        return tuple(_WIDTHS[letter](model) for letter in self.dims)

    def numel(self, model: ModelConfig) -> int:
        """Return the number of its elements."""
        return math.prod(self.shape(model))


_WIDTHS: dict[str, Callable[[ModelConfig], int]] = {
    "D": lambda model: model.hidden_size,
    "K": lambda model: model.kv_width,
    "C": lambda model: model.head_dim,
    "F": lambda model: model.intermediate_size,
    "G": lambda model: 2 * model.intermediate_size,
    "E": lambda model: model.num_local_experts or 0,
    "V": lambda model: model.vocab_size,
}
"""The size of each letter: D model width, K width of all key (or value) heads, C width of one head, F FFN width, G gate
and up together, E experts, V vocabulary."""

ROOT = (
    Parameter("embed_tokens.weight", "VD", "embedding", split_dim=0),
    Parameter("norm.weight", "D", "norm"),
    Parameter("lm_head.weight", "VD", "head", split_dim=0),
)
"""The parameters outside the layers. A tied head is listed too: it is the embedding under another name."""

_LAYER = (
    Parameter("input_layernorm.weight", "D", "norm"),
    Parameter("self_attn.q_proj.weight", "DD", "matrix", split_dim=0),
    Parameter("self_attn.q_norm.weight", "C", "head norm", exists=_has_qk_norm),
    Parameter("self_attn.k_proj.weight", "KD", "matrix", split_dim=0),
    Parameter("self_attn.k_norm.weight", "C", "head norm", exists=_has_qk_norm),
    Parameter("self_attn.v_proj.weight", "KD", "matrix", split_dim=0),
    Parameter("self_attn.o_proj.weight", "DD", "matrix", split_dim=1),
    Parameter("post_attention_layernorm.weight", "D", "norm"),
    Parameter("mlp.gate_proj.weight", "FD", "matrix", split_dim=0, exists=_is_dense),
    Parameter("mlp.up_proj.weight", "FD", "matrix", split_dim=0, exists=_is_dense),
    Parameter("mlp.down_proj.weight", "DF", "matrix", split_dim=1, exists=_is_dense),
    Parameter("mlp.gate.weight", "ED", "router", exists=_has_experts),
    Parameter("mlp.experts.gate_up_proj", "EGD", "expert", exists=_has_experts),
    Parameter("mlp.experts.down_proj", "EDF", "expert", exists=_has_experts),
)

_BY_NAME = {parameter.name: parameter for parameter in ROOT + _LAYER}

MODULE_PARTS = tuple(dict.fromkeys(part for row in _LAYER for part in row.module.split(".")))
"""The components of the module names in a layer, in the order of the forward pass."""


def split_dim(name: str) -> int | None:
    """Return the dim along which tensor parallelism splits the parameter `name`; None if no dim is split."""
    row = _BY_NAME.get(re.sub(r"^.*\blayers\.\d+\.", "", name))
    return None if row is None else row.split_dim
