"""The sizes of a transformer, under the names that Hugging Face's config.json uses."""

from __future__ import annotations

from dataclasses import dataclass

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
"""Ten times the largest that anybody has trained, and more: what lies above is a slip of the pen."""


@dataclass(frozen=True)
class ModelConfig:
    """A decoder-only transformer of the Llama family. `problems()` tells every size that cannot be."""

    vocab_size: int
    """How many tokens there are."""
    hidden_size: int
    """Width of the residual stream."""
    intermediate_size: int
    """Width inside a layer's FFN."""
    num_hidden_layers: int
    """Transformer layers."""
    num_attention_heads: int
    """Query heads of a layer."""
    num_key_value_heads: int
    """Key and value heads, which query heads share."""
    max_position_embeddings: int
    """Positions that a sequence may have."""
    rope_theta: float = 10000.0
    """Base of the rotary positions' frequencies."""
    rms_norm_eps: float = 1e-5
    """Added to the mean square in a norm."""
    initializer_range: float = 0.02
    """Standard deviation of the first weights."""
    tie_word_embeddings: bool = True
    """Whether the output layer's weight is the embedding."""
    num_local_experts: int | None = None
    """None: one FFN a layer. Else a mixture of so many, each of `intermediate_size`."""
    num_experts_per_tok: int = 2
    """How many of its layer's experts a token goes through."""
    router_aux_loss_coef: float = 0.001
    """Weight of the load-balancing loss in the training loss."""

    @property
    def head_dim(self) -> int:
        """Width of one attention head."""
        return self.hidden_size // self.num_attention_heads

    def problems(self) -> list[str]:
        """Every rule that these sizes break, with the numbers and the rule; empty if the model can be built."""
        found = [
            f"{name}={size}: must be at least 1" if size < 1 else f"{name}={size}: must be at most {most}"
            for name, most in _MOST.items()
            if (size := getattr(self, name)) is not None and not 1 <= size <= most
        ]
        found += [
            f"{name}={value}: must be {'at least' if zero else 'above'} 0"
            for name, value, zero in (
                ("rope_theta", self.rope_theta, False),
                ("rms_norm_eps", self.rms_norm_eps, True),
                ("initializer_range", self.initializer_range, True),
            )
            if value < 0 or (value == 0 and not zero)
        ]
        if found:
            return found
        hidden, heads, kv_heads = self.hidden_size, self.num_attention_heads, self.num_key_value_heads
        if hidden % heads:
            found.append(
                f"hidden_size={hidden} is not a multiple of num_attention_heads={heads}: "
                f"each head takes hidden_size / num_attention_heads = {hidden / heads:g} columns, which must be whole"
            )
        elif self.head_dim % 2:
            found.append(
                f"hidden_size={hidden} / num_attention_heads={heads} = {self.head_dim} columns a head: "
                "rotary positions turn columns in pairs, so this must be even"
            )
        if heads % kv_heads:
            found.append(
                f"num_attention_heads={heads} is not a multiple of num_key_value_heads={kv_heads}: "
                "each key/value head serves the same number of query heads"
            )
        return found + self._expert_problems()

    def _expert_problems(self) -> list[str]:
        if self.num_local_experts is None:
            return []
        found = []
        if not 1 <= self.num_experts_per_tok <= self.num_local_experts:
            found.append(
                f"num_experts_per_tok={self.num_experts_per_tok} of num_local_experts={self.num_local_experts}: "
                "a token goes through at least one expert, and through each at most once"
            )
        if self.router_aux_loss_coef < 0:
            found.append(f"router_aux_loss_coef={self.router_aux_loss_coef}: must be at least 0")
        return found

    def num_parameters(self) -> int:
        """How many weights the model has; a tied embedding counts once."""
        return self._num_parameters(self.num_local_experts)

    def built_bytes(self) -> int:
        """What a built model takes: its weights, and cosine and sine of each position, in float32."""
        return 4 * (self.num_parameters() + 2 * self.max_position_embeddings * self.head_dim)

    def num_active_parameters(self) -> int:
        """How many weights one token passes: of a layer's experts only those that it is sent to."""
        return self._num_parameters(self.num_local_experts and self.num_experts_per_tok)

    def _num_parameters(self, num_experts: int | None) -> int:
        """The weights of a model of which `num_experts` experts a layer count, but the whole router."""
        hidden, kv = self.hidden_size, self.num_key_value_heads * self.head_dim
        attention = 2 * hidden * hidden + 2 * hidden * kv
        ffn, router = 3 * hidden * self.intermediate_size, hidden * (self.num_local_experts or 0)
        layer = attention + (1 if num_experts is None else num_experts) * ffn + router + 2 * hidden
        embeddings = self.vocab_size * hidden * (1 if self.tie_word_embeddings else 2)
        return self.num_hidden_layers * layer + embeddings + hidden

    def flops_per_token(self, sequence_length: int) -> float:
        """Floating-point operations to train on one token: forward and backward, matrix products only.

        Of a mixture of experts those count that a token is sent to.

        Units:   operations; a multiply-add counts as two.
        Assumes: full (not causal) attention scores, as Chowdhery et al. 2022 (PaLM), appendix B, counts them.
        """
        looked_up = 0 if self.tie_word_embeddings else self.vocab_size * self.hidden_size
        matrices = self.num_active_parameters() - looked_up - (2 * self.num_hidden_layers + 1) * self.hidden_size
        return 6.0 * matrices + 12.0 * self.num_hidden_layers * self.hidden_size * sequence_length
