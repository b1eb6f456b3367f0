"""One replica of a served model: its memory, the time of a prefill, and the time of one output token.

A decode step passes one token of each sequence through the model. A product then takes the longer of reading its
weights and of its arithmetic, attention the longer of reading the cache and of its arithmetic (roofline, Williams et
al. 2009), and tensor parallelism adds two small all-reduces in each layer. A prefill is a forward pass as in training.
The rates of products, memory and links are those of the model of training, whose constants no serving run has fitted.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

from frog.plan.estimate.constants import FITTED, Constants
from frog.plan.estimate.hardware import Cluster
from frog.plan.estimate.kernels import Kernels
from frog.plan.estimate.layer_time import LayerModel, part_of
from frog.plan.layout import Layout, Precision, Traits
from frog.plan.links import Group, Links
from frog.plan.memory import CONTEXT_BYTES
from frog.plan.model import PlannedModel
from frog.plan.serve.kv_cache import KvCache

PREFILL_TOKENS = 8192
"""Tokens of a prefill that run at once: vLLM's `max_num_batched_tokens` on GPUs with 80 GB."""
_ACTIVATION_BYTES = 2
_LOGIT_BYTES = 6
"""A logit in 16 bits and in float32."""
_STREAM_BYTES = 44
"""Traffic of a layer's memory-bound operations for each number of the stream and token: norms, residuals, rotations."""


@dataclass(frozen=True)
class DecodeTime:
    """Seconds of one output token of each sequence, by what bounds them."""

    weights: float = 0.0
    """Products that are bound by reading their weights."""
    arithmetic: float = 0.0
    """Products that are bound by their arithmetic."""
    cache: float = 0.0
    """Attention: it reads the KV cache."""
    memory: float = 0.0
    exchange: float = 0.0
    """All-reduces of tensor parallelism."""

    @property
    def total(self) -> float:
        return float(sum(vars(self).values()))


@dataclass(frozen=True)
class ServerMemory:
    """Bytes of one GPU."""

    weights: float
    cache: float
    activations: float
    """A prefill's, with the logits of a batch."""
    context: float = CONTEXT_BYTES

    @property
    def total(self) -> float:
        return self.weights + self.cache + self.activations + self.context


@dataclass(frozen=True)
class _Product:
    """Products of one kind in a decode step, on one GPU."""

    inner: float
    columns: float
    num_bytes: int
    """Bytes of a weight."""
    rows: float
    num: int
    """How often the model has it."""
    matrices: float = 1
    """Matrices of this size that one launch reads: the experts that a batch chooses."""


@dataclass(frozen=True)
class Server:
    """A model on tp GPUs of a cluster."""

    model: PlannedModel
    cluster: Cluster
    tp: int = 1
    precision: Precision = "bf16"
    cache_bytes: int = 2
    constants: Constants = FITTED

    @property
    def weight_bytes(self) -> int:
        """Bytes of a number in a layer's matrices; embeddings, norms and the output matrix have 16 bits."""
        return 1 if self.precision.startswith("fp8") else 2

    @cached_property
    def links(self) -> Links:
        return self.cluster.links(self.constants)

    @cached_property
    def cache(self) -> KvCache:
        return KvCache(self.model, self.tp, self.cache_bytes)

    @cached_property
    def _kernels(self) -> Kernels:
        return Kernels(self.cluster.gpu, self._layout(1, 1), self.constants)

    def _layout(self, seq_len: int, sequences: int) -> Layout:
        traits = Traits("fused", launches_ahead=True)
        return Layout(
            seq_len, sequences, sequences, tp=self.tp, precision=self.precision, recompute="none", traits=traits
        )

    # ---- memory ------------------------------------------------------------------------------------------------------

    @cached_property
    def held_weights(self) -> float:
        """Bytes of the weights on one GPU."""
        model, tp = self.model, self.tp
        outside = model.embedding_parameters() + model.head_parameters()
        layers = model.num_parameters() - outside
        return (self.weight_bytes * layers + 2 * outside) / tp

    def activations(self, batch: int, prompt: int) -> float:
        """Return the bytes of a prefill's widest moment, and of the logits of a batch."""
        model, tokens = self.model, min(PREFILL_TOKENS, batch * prompt)
        inner = 3 * model.ffn
        if model.moe_layers:
            active = model.experts_per_token
            inner = max(inner, 3 * (active + model.shared_experts) * model.expert_ffn + 2 * active * model.hidden)
        stream = 3 * model.hidden + inner / self.tp
        return _ACTIVATION_BYTES * tokens * stream + _LOGIT_BYTES * batch * model.vocab / self.tp

    def memory(self, batch: int, prompt: int, generate: int) -> ServerMemory:
        """Return the memory when all sequences have their last token."""
        held = batch * self.cache.paged_bytes(prompt + generate)
        return ServerMemory(self.held_weights, held, self.activations(batch, prompt))

    def largest_batch(self, prompt: int, generate: int, usable_bytes: float) -> int:
        """Return how many sequences fit at once; 0 if not even one does."""
        each = self.cache.paged_bytes(prompt + generate) + _LOGIT_BYTES * self.model.vocab / self.tp
        alone = self.memory(1, prompt, generate).total
        full = self.memory(max(1, PREFILL_TOKENS // prompt), prompt, generate)
        if alone > usable_bytes:
            return 0
        fixed = full.weights + full.context + full.activations
        batch = max(1, math.floor((usable_bytes - fixed) / each))
        while batch > 1 and self.memory(batch, prompt, generate).total > usable_bytes:
            batch -= 1
        while self.memory(batch + 1, prompt, generate).total <= usable_bytes:
            batch += 1
        return batch

    # ---- one output token --------------------------------------------------------------------------------------------

    def decode(self, batch: float, context: float) -> DecodeTime:
        """Return the seconds of one token of each of `batch` sequences that have `context` tokens on average."""
        model = self.model
        weights = arithmetic = 0.0
        for product in self._products(batch):
            read, computed = self._bounds(product)
            if read >= computed:
                weights += product.num * read
            else:
                arithmetic += product.num * computed
        moved = batch * model.layers * _STREAM_BYTES * model.hidden + 8.0 * batch * model.vocab / self.tp
        exchanges = 2 * model.layers * exchange_seconds(self.links, 2.0 * batch * model.hidden, self.tp)
        return DecodeTime(
            weights, arithmetic, self._attention(batch, context), moved / self._kernels.memory_rate, exchanges
        )

    def _bounds(self, product: _Product) -> tuple[float, float]:
        """Return the seconds in which a product moves its weights, inputs and outputs, and in which it computes."""
        rows, inner, columns = product.rows, product.inner, product.columns
        moved = product.num_bytes * inner * columns + 2.0 * rows * (inner + columns)
        rate = self._kernels.product_rate if product.num_bytes == 1 else self._rate_16_bits
        return (
            product.matrices * moved / self._kernels.memory_rate,
            product.matrices * 2.0 * rows * inner * columns / rate,
        )

    @property
    def _rate_16_bits(self) -> float:
        return self.cluster.gpu.sustained_bf16 * self.constants.product

    def _products(self, batch: float) -> list[_Product]:
        model, size = self.model, self.weight_bytes
        dense, mixture = model.layers - model.moe_layers, model.moe_layers

        def parts(pairs: list[tuple[int, int]], num: int, rows: float = batch, matrices: float = 1) -> list[_Product]:
            split = [part_of(pair, model.hidden, self.tp) for pair in pairs]
            return [_Product(*pair, size, rows, num, matrices) for pair in split]

        products = parts(model.attention_products(), model.layers) + parts(model.ffn_products(model.ffn), dense)
        if mixture:
            shared = model.ffn_products(model.expert_ffn * model.shared_experts) if model.shared_experts else []
            products += [*parts(shared, mixture), _Product(model.hidden, model.experts, 2, batch, mixture)]
            touched = touched_experts(model, batch)
            rows = batch * model.experts_per_token / touched
            products += parts(model.ffn_products(model.expert_ffn), mixture, rows, touched)
        products.append(_Product(model.hidden, model.vocab / self.tp, 2, batch, 1))
        return products

    def _attention(self, batch: float, context: float) -> float:
        """Return the seconds in which attention reads the cache of all sequences, or computes with it."""
        model = self.model
        read = batch * self.cache.sequence_bytes(context) / self._kernels.memory_rate
        if (latent := model.latent) is not None:  # queries and outputs have the width of the cache
            width = model.heads * (2 * latent.key_value_rank + latent.rotary_width)
        else:
            width = model.heads * model.head_dim + model.value_width
        flops = 2.0 * batch * self.cache.read_tokens(context) * model.layers * width / self.tp
        return max(read, flops / self._rate_16_bits)

    # ---- prompts -----------------------------------------------------------------------------------------------------

    def prefill(self, prompt: int, sequences: int = 1) -> float:
        """Return the seconds of a forward pass through prompts, and the logits of their last tokens."""
        model = self.model
        at_once = max(1, min(sequences, PREFILL_TOKENS // prompt))
        layout = self._layout(prompt, at_once)
        kernels = Kernels(self.cluster.gpu, layout, self.constants)
        layers = LayerModel(model, layout, kernels, self.links)
        exchange = 2 * exchange_seconds(self.links, 2.0 * layout.tokens * model.hidden, self.tp)
        seconds = 0.0
        for mixture, num in ((False, model.layers - model.moe_layers), (True, model.moe_layers)):
            if num:
                forward = layers.layer(mixture=mixture).forward
                seconds += num * (forward.total - forward.tensor + exchange)
        head = 2.0 * model.hidden * model.vocab / self.tp / kernels.memory_rate
        return float((seconds + head) * sequences / at_once)


def touched_experts(model: PlannedModel, tokens: float) -> float:
    """Return how many different experts the tokens of a batch choose, if each choice is random."""
    return float(model.experts * (1 - (1 - model.experts_per_token / model.experts) ** tokens))


def exchange_seconds(links: Links, num_bytes: float, tp: int) -> float:
    """Return the seconds of an all-reduce by the fastest algorithm for its size: a ring, or direct reads.

    Inside a domain each rank reads all others' data at once (one shot), or a part of them, then the others' sums (two
    shots), with the latency of one hop for each shot, as vLLM's and TensorRT-LLM's kernels do. Across domains those
    sums pass the network in a tree.
    """
    if tp < 2:
        return 0.0
    group = Group(tp, 1)
    ring, inside = links.all_reduce(num_bytes, group), group.inside(links.domain)
    two_shots = 2 * ((inside - 1) / inside * num_bytes / links.link + links.link_latency_s)
    if inside < tp:
        across = links.all_reduce(num_bytes / inside, Group(-(-tp // inside), inside))
        return float(min(ring, two_shots + across))
    one_shot = (tp - 1) * num_bytes / links.link + links.link_latency_s
    return float(min(ring, one_shot, two_shots))
