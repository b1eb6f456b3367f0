"""A transformer as the planner sees it: its sizes, exact numbers of parameters and of floating-point operations."""

from __future__ import annotations

from dataclasses import dataclass

from frog.core.config.model import ModelConfig


@dataclass(frozen=True)
class LatentAttention:
    """Multi-head latent attention (DeepSeek-V2): queries, keys and values pass through narrow projections."""

    query_rank: int
    """Width of the compressed query; 0: the query is not compressed."""
    key_value_rank: int
    rotary_width: int
    """Part of each query and key that carries the position."""


@dataclass(frozen=True)
class PlannedModel:
    """A decoder-only transformer.

    Source:  parameters of Llama, Qwen, Mixtral, GPT-2 and DeepSeek-V3 as their public implementations have them.
    """

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    """Width of a dense layer's FFN."""
    vocab: int
    gated: bool = True
    """Three matrices in the FFN (SwiGLU) instead of two."""
    tied: bool = False
    """The embedding is also the output matrix."""
    biases: bool = False
    """Biases in all products, and LayerNorm instead of RMSNorm, as in GPT-2."""
    attention_vectors: int = 0
    """Parameters of a layer's attention outside of its matrices: norms of heads, as in Qwen3, biases, as in Qwen2."""
    layer_norms: int = 2
    """Norms of a layer, of the model's width; Gemma 2 and GLM-4 have 4."""
    window: int = 0
    """Tokens that a layer with sliding-window attention sees."""
    windowed_layers: int = 0
    positions: int = 0
    """Learned position embeddings; 0: none."""
    experts: int = 0
    experts_per_token: int = 0
    shared_experts: int = 0
    router_vectors: int = 0
    """Parameters of a mixture's layer outside of its matrices: the gate of Qwen2's shared experts, gpt-oss's biases."""
    expert_ffn: int = 0
    expert_groups: int = 0
    """Groups of experts, of a token's choice, that may be on different nodes (DeepSeek-V3: 4); 0: no limit."""
    dense_layers: int = 0
    """Layers without experts, in a mixture of experts; counted as if they came first."""
    value_dim: int = 0
    """Width of a value head, if it is not `head_dim`."""
    latent: LatentAttention | None = None
    prediction_layers: int = 0
    """Layers that predict tokens further ahead (DeepSeek-V3), each with a pass through the output matrix."""

    @property
    def value_width(self) -> int:
        return self.heads * (self.value_dim or self.head_dim)

    @property
    def moe_layers(self) -> int:
        return self.layers - self.dense_layers if self.experts else 0

    @property
    def ffn_matrices(self) -> int:
        return 3 if self.gated else 2

    def attention_products(self) -> list[tuple[int, int]]:
        """Return the (inputs, outputs) of attention's weight matrices."""
        if (latent := self.latent) is None:
            outputs = (self.heads + self.kv_heads) * self.head_dim + self.kv_heads * (self.value_dim or self.head_dim)
            return [(self.hidden, outputs), (self.value_width, self.hidden)]
        query = self.heads * self.head_dim
        keys_values = self.heads * (self.head_dim - latent.rotary_width) + self.value_width
        compress = [(self.hidden, latent.query_rank), (latent.query_rank, query)]
        return [
            *(compress if latent.query_rank else [(self.hidden, query)]),
            (self.hidden, latent.key_value_rank + latent.rotary_width),
            (latent.key_value_rank, keys_values),
            (self.value_width, self.hidden),
        ]

    def latent_products(self) -> list[tuple[int, int]]:
        """Return those of them that widen latent attention's narrow queries, keys and values."""
        return (
            [] if self.latent is None else [pair for pair in self.attention_products()[:-1] if pair[0] != self.hidden]
        )

    def ffn_products(self, width: int) -> list[tuple[int, int]]:
        """Return the (inputs, outputs) of an FFN's weight matrices; gate and up are one product."""
        return [(self.hidden, width * (self.ffn_matrices - 1)), (width, self.hidden)]

    def problems(self) -> list[str]:
        """Return why no model can have these sizes; empty if one can."""
        needed = ["layers", "hidden", "heads", "kv_heads", "head_dim", "ffn", "vocab"]
        needed += ["experts_per_token", "expert_ffn"] if self.experts else []
        problems = [f"{name}={getattr(self, name)}: must be at least 1" for name in needed if getattr(self, name) < 1]
        if self.experts_per_token > self.experts:
            problems.append(f"experts_per_token={self.experts_per_token} exceeds experts={self.experts}")
        if self.dense_layers > self.layers:
            problems.append(f"dense_layers={self.dense_layers} exceeds layers={self.layers}")
        return problems

    # ---- parameters --------------------------------------------------------------------------------------------------

    def attention_parameters(self) -> int:
        norms = self.latent.query_rank + self.latent.key_value_rank if self.latent else 0
        return _numel(self.attention_products(), self.biases) + norms + self.attention_vectors

    def norm_parameters(self) -> int:
        """Return the size of one norm."""
        return self.hidden * (2 if self.biases else 1)

    def dense_layer_parameters(self) -> int:
        ffn = _numel(self.ffn_products(self.ffn), self.biases)
        return self.attention_parameters() + self.layer_norms * self.norm_parameters() + ffn

    def expert_parameters(self) -> int:
        """Return the size of one expert."""
        return _numel(self.ffn_products(self.expert_ffn), self.biases)

    def moe_layer_shared_parameters(self) -> int:
        """Return the parameters of a mixture's layer that every token uses."""
        norms = self.layer_norms * self.norm_parameters()
        router = self.hidden * self.experts + self.router_vectors
        return self.attention_parameters() + norms + router + self.shared_experts * self.expert_parameters()

    def num_parameters(self) -> int:
        """Return the number of parameters, without the layers that predict further ahead."""
        dense = (self.layers - self.moe_layers) * self.dense_layer_parameters()
        mixture = self.moe_layers * (self.moe_layer_shared_parameters() + self.experts * self.expert_parameters())
        return dense + mixture + self.embedding_parameters() + self.head_parameters()

    def embedding_parameters(self) -> int:
        return (self.vocab + self.positions) * self.hidden

    def head_parameters(self) -> int:
        """Return the size of the last norm and, unless it is the embedding, the output matrix."""
        return self.norm_parameters() + (0 if self.tied else self.vocab * self.hidden)

    # ---- floating-point operations -----------------------------------------------------------------------------------

    def product_flops_per_token(self) -> float:
        """Return the operations of one forward pass in weight matrices: two per weight that a token meets."""
        attention = self.layers * _weights(self.attention_products())
        dense = (self.layers - self.moe_layers) * _weights(self.ffn_products(self.ffn))
        active = self.experts_per_token + self.shared_experts
        mixture = self.moe_layers * (active * _weights(self.ffn_products(self.expert_ffn)) + self.hidden * self.experts)
        return 2.0 * (attention + dense + mixture + self.hidden * self.vocab)

    def attention_flops_per_token(self, seq_len: int, *, causal: bool = True) -> float:
        """Return the operations of one forward pass in attention: scores and their products with the values.

        causal: count only the tokens that a token sees. Layers with a sliding window have a causal mask, too.
        """
        each = 2.0 * self.mean_keys(seq_len) * (self.heads * self.head_dim + self.value_width)
        return self.layers * each * (0.5 if causal else 1.0)

    def keys_in_window(self, seq_len: float) -> float:
        """Return twice the tokens that a token sees on average in a layer with a sliding window.

        It is the length of a sequence whose causal attention without a window has as many scores per token.
        """
        return 2 * self.window - self.window**2 / seq_len if 0 < self.window < seq_len else seq_len

    def mean_keys(self, seq_len: float) -> float:
        """Return the same, as the mean of layers with and without a window."""
        return seq_len + self.windowed_layers / self.layers * (self.keys_in_window(seq_len) - seq_len)

    def model_flops_per_token(self, seq_len: int) -> float:
        """Return the operations of a training step per token: forward, and twice as many backward, causal."""
        return 3 * (self.product_flops_per_token() + self.attention_flops_per_token(seq_len))


def from_model_config(config: ModelConfig) -> PlannedModel:
    """Return a Frog model (a Llama, Qwen3 or Mixtral) as the planner sees it."""
    experts = config.num_local_experts or 0
    return PlannedModel(
        layers=config.num_hidden_layers,
        hidden=config.hidden_size,
        heads=config.num_attention_heads,
        kv_heads=config.num_key_value_heads,
        head_dim=config.head_dim,
        ffn=config.intermediate_size,
        vocab=config.vocab_size,
        attention_vectors=2 * config.head_dim if config.qk_norm else 0,
        tied=config.tie_word_embeddings,
        experts=experts,
        experts_per_token=config.num_experts_per_tok if experts else 0,
        expert_ffn=config.intermediate_size if experts else 0,
    )


def _weights(products: list[tuple[int, int]]) -> int:
    return sum(inputs * outputs for inputs, outputs in products)


def _numel(products: list[tuple[int, int]], biases: bool) -> int:
    return _weights(products) + (sum(outputs for _, outputs in products) if biases else 0)
