"""Time of one transformer layer on one rank, for one micro-batch: computation and tensor-parallel communication."""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass, replace
from functools import cached_property

from frog.plan.columns import Column, most
from frog.plan.estimate.kernels import Kernels
from frog.plan.layout import Layout
from frog.plan.links import Group, Links, ring_share
from frog.plan.model import PlannedModel

_DENSE_KERNELS, _MOE_KERNELS = 22, 60
"""Kernels of a layer's forward pass in an eager implementation; about twice as many in the backward pass, which C++
launches twice as fast."""
_EXPERT_CASTS = {"fp8": 3, "mxfp8": 1, "nvfp4": 2}
"""Kernels that cast the rows of one expert: largest number, scale, cast; MXFP8's blocks need only the last.
Source: Transformer Engine 2.9, `multi_tensor_quantize_impl`."""
_COLLECTIVES = 2
"""Tensor-parallel collectives of a pass. Each is launched like a kernel, and waits for the slowest of tp processes:
another launch for each doubling of tp."""


@dataclass(frozen=True)
class Times:
    """Seconds by cause. They add up, except that `launch` is what launching adds to a layer bound by it."""

    products: float = 0.0
    attention: float = 0.0
    memory: float = 0.0
    launch: float = 0.0
    tensor: float = 0.0
    context: float = 0.0
    expert: float = 0.0

    @property
    def total(self) -> float:
        return float(sum(vars(self).values()))

    def __add__(self, other: Times) -> Times:
        return Times(*map(operator.add, vars(self).values(), vars(other).values()))

    def __mul__(self, factor: float) -> Times:
        return Times(*[seconds * factor for seconds in vars(self).values()])


@dataclass(frozen=True)
class Passes:
    """The forward pass through some layers, the backward pass, and what recomputation adds to that."""

    forward: Times = Times()
    backward: Times = Times()
    recomputed: Times = Times()

    @property
    def total(self) -> Times:
        return self.forward + self.backward + self.recomputed

    def __add__(self, other: Passes) -> Passes:
        return Passes(self.forward + other.forward, self.backward + other.backward, self.recomputed + other.recomputed)

    def __mul__(self, factor: float) -> Passes:
        return Passes(self.forward * factor, self.backward * factor, self.recomputed * factor)


@dataclass(frozen=True)
class LayerModel:
    """The layers of one model under one layout on one cluster."""

    model: PlannedModel
    layout: Layout
    kernels: Kernels
    links: Links

    def slowed(self, communication: Column, arrived: Column, exposed: Column) -> Column:
        """Return the seconds that computation takes longer than it would alone, beyond the exposed communication.

        While c seconds of communication run, l seconds of computation are lost: both take max(c, computation + l).
        Computation that ends before the communication costs nothing, however slow it was.
        """
        return most(0.0, self.kernels.lost_beside(communication, arrived) - exposed)

    @property
    def overlaps_experts(self) -> bool:
        """True if the experts' all-to-all runs next to another micro-batch."""
        traits, ep = self.layout.traits, self.layout.ep
        far = Group(ep, self.layout.expert_split).inside(self.links.domain) < ep
        return traits.overlaps_experts or (traits.overlaps_far_experts and far)

    @property
    def stream_bytes(self) -> float:
        """Mean bytes that tp ranks gather or reduce-scatter once."""
        layout = self.layout
        size = (layout.gathered_bytes + 2) / 2 if layout.sequence_parallel else 2.0
        return size * layout.tokens * self.model.hidden

    def layer(self, *, mixture: bool) -> Passes:
        """Return the time of a dense layer, or of one with a mixture of experts."""
        products = self._products(mixture)
        attention = self._attention()
        memory = self._memory(mixture)
        forward, backward = (self._communication(mixture, *pair) for pair in zip(products, attention, strict=True))
        if self.overlaps_experts:
            computed = [sum(parts) for parts in zip(products, attention, memory, strict=True)]
            forward, backward = self._beside(forward, computed[1]), self._beside(backward, computed[0])
        comm = forward, backward
        num_kernels = _MOE_KERNELS if mixture else _DENSE_KERNELS
        more = self._expert_launches if mixture else (0.0, 0.0)
        forward = self._bounded(products[0], attention[0], memory[0], comm[0], num_kernels + more[0])
        backward = self._bounded(products[1], attention[1], memory[1], comm[1], num_kernels + more[1])
        return Passes(forward, backward, self._recomputed(forward))

    def _bounded(self, products: float, attention: float, memory: float, comm: Times, num_kernels: float) -> Times:
        """Add the time that launching the kernels takes beyond running them."""
        ran = Times(products, attention, memory) + comm
        launches = num_kernels + _COLLECTIVES * math.log2(self.layout.tp)
        launching = 0.0 if self.layout.traits.launches_ahead else launches * self.kernels.constants.launch_s
        return ran + Times(launch=max(0.0, launching - ran.total))

    @property
    def _expert_launches(self) -> tuple[float, float]:
        """Launches of kernels for single experts in both passes, as Python's, which take twice as long as C++'s.

        Each of two grouped products casts its rows and multiplies once forward, and twice backward.
        """
        layout = self.layout
        if not layout.traits.launches_each_expert:
            return 0.0, 0.0
        local, casts = self.model.experts / layout.ep, _EXPERT_CASTS.get(layout.precision, 0)
        return 2 * local * (1 + casts) / 2, 2 * local * (2 + casts) / 2

    def _beside(self, comm: Times, computation: float) -> Times:
        """Hide the experts' all-to-all of a pass behind the computation of another micro-batch's other pass.

        Source:  DeepSeek-AI 2024, DeepSeek-V3, section 3.2.1.
        """
        hidden = min(comm.expert, computation)
        layout = self.layout
        arrived = ring_share(layout.ep) * sum(self.expert_bytes)
        arrived += 2 * ring_share(layout.expert_split) * self.gathered_row_bytes
        left = self._left_of(comm.expert, hidden, arrived)
        return replace(comm, expert=left)

    def _left_of(self, whole: float, hidden: float, arrived: float) -> float:
        """Return the exposed seconds of a collective of which some are hidden, and what these cost: at most as much."""
        lost = self.kernels.lost_beside(hidden, arrived * hidden / whole if whole else 0.0)
        return whole - float(max(0.0, hidden - lost))

    @property
    def expert_bytes(self) -> tuple[float, float]:
        """Bytes that the rank with most rows receives from their tokens' ranks, and that it sends back."""
        model, layout = self.model, self.layout
        sent = layout.tokens / layout.tp * model.experts_per_token * model.hidden * self.expert_load
        in_fp8 = layout.traits.dispatches_fp8 and layout.precision.startswith("fp8")
        return (1.0 if in_fp8 else 2.0) * sent, 2.0 * sent

    @cached_property
    def expert_load(self) -> float:
        """Rows of the rank with most, of the mean."""
        return self.layout.expert_load(self.model)

    @property
    def expert_rows(self) -> float:
        """Mean rows of an expert on the rank with most: k copies of each token of all ranks that hold the experts once,
        times the load of this rank.
        """
        model, layout = self.model, self.layout
        copies = layout.tokens / layout.tp * layout.expert_ranks * model.experts_per_token
        return copies / model.experts * self.expert_load

    @property
    def gathers_stream(self) -> bool:
        """True if ranks that split experts as tp splits the rest gather tokens, not a row for each of their experts."""
        return self.layout.ep == 1 and self.layout.expert_split == self.layout.tp

    @property
    def gathered_row_bytes(self) -> float:
        """Bytes of the rows that the ranks that split an expert gather, and of the sums that they reduce-scatter."""
        model, layout = self.model, self.layout
        if layout.expert_split == 1 or self.gathers_stream:
            return 0.0
        rows = layout.tokens / layout.tp * layout.expert_split * model.experts_per_token
        return 2.0 * rows * self.expert_load * model.hidden

    def stream_exchanges(self, mixture: bool) -> int:
        """Return how often tp ranks gather and scatter the stream in one pass: for attention and for the FFN.

        With sequence parallelism a rank sends its own tokens to their experts. Only shared experts, and experts that
        tp splits without ep, need all tokens on all tp ranks.

        Source:  Megatron-Core, `MoEAlltoAllTokenDispatcher` and `SharedExpertMLP`.
        """
        if not mixture or not self.layout.sequence_parallel:
            return 2
        return 2 if self.model.shared_experts or self.gathers_stream else 1

    def _recomputed(self, forward: Times) -> Times:
        """Return what the backward pass computes again: of a mean layer of the heaviest stage, if only some layers do.

        Source:  Chen et al. 2016 (full), Korthikanti et al. 2022 (selective: only scores), torchtitan (alternate);
                 DeepSeek-AI 2024, DeepSeek-V3, section 3.2.3 (selective: what widens latent attention).
        """
        match self.layout.recompute:
            case "full" if self.layout.recompute_layers is not None:
                layers = self.model.layers
                return forward * (self.layout.layers_computed_again(layers) / self.layout.heaviest_layers(layers))
            case "full":
                return forward
            case "selective" if self.layout.traits.attention == "scores":
                return Times(attention=forward.attention)
            case "selective":
                tp, tokens = self.layout.tp, self.layout.tokens
                pairs = [part_of(pair, self.model.hidden, tp) for pair in self.model.latent_products()]
                return Times(products=sum(self.kernels.linear(tokens, *pair)[0] for pair in pairs))
            case "alternate":
                return Times(products=forward.products / 2, memory=forward.memory, tensor=forward.tensor / 2)
        return Times()

    def _products(self, mixture: bool) -> tuple[float, float]:
        model, tp, tokens = self.model, self.layout.tp, self.layout.tokens
        pairs = [self.kernels.linear(tokens, *part_of(pair, model.hidden, tp)) for pair in model.attention_products()]
        if not mixture:
            pairs += [self.kernels.linear(tokens, *part_of(p, model.hidden, tp)) for p in model.ffn_products(model.ffn)]
            return sum(f for f, _ in pairs), sum(b for _, b in pairs)
        shared = model.ffn_products(model.expert_ffn * model.shared_experts) if model.shared_experts else []
        pairs += [self.kernels.linear(tokens, *part_of(pair, model.hidden, tp)) for pair in shared]
        pairs.append(self.kernels.linear(tokens / tp, model.hidden, model.experts))
        pairs += self._experts()
        return sum(f for f, _ in pairs), sum(b for _, b in pairs)

    def _experts(self) -> list[tuple[float, float]]:
        """Return the grouped products of this rank's experts, or of its part of each."""
        model, layout = self.model, self.layout
        pairs = [part_of(pair, model.hidden, layout.expert_split) for pair in model.ffn_products(model.expert_ffn)]
        local = model.experts // layout.ep
        return [self.kernels.linear(self.expert_rows, *pair, num=local, mean_rows=True) for pair in pairs]

    def _attention(self) -> tuple[float, float]:
        """Return the seconds of attention in both passes, of a mean layer if some have a sliding window."""
        model, layout = self.model, self.layout
        batch_heads = layout.micro_batch * model.heads / layout.tp
        dims = (model.head_dim, model.value_dim or model.head_dim)
        keys = model.mean_keys(layout.seq_len)
        forward, backward = self.kernels.attention(batch_heads, layout.seq_len / layout.cp, keys, dims)
        merged = self._merged_blocks()
        return forward + merged[0], backward + merged[1]

    def _merged_blocks(self) -> tuple[float, float]:
        """Return the seconds in which ring attention adds up what each block of keys and values gives, in float32.

        Each of the cp blocks reads 2 bytes and reads and writes 8: an output forward; the gradient of each query, key
        and value backward.
        """
        model, layout = self.model, self.layout
        if layout.cp == 1:
            return 0.0, 0.0
        values = model.value_dim or model.head_dim
        width = model.heads * values, model.heads * model.head_dim + model.kv_heads * (model.head_dim + values)
        num_bytes = [10.0 * layout.cp * layout.tokens * each / layout.tp for each in width]
        return self.kernels.moves(num_bytes[0]), self.kernels.moves(num_bytes[1])

    def _memory(self, mixture: bool) -> tuple[float, float]:
        """Return the seconds of memory-bound operations, forward and backward, by bytes per token:

        norms           read and write the stream: 4 D each, backward 6 D
        residuals       read two, write one, twice: 12 D (dropout's masks: 2 D), backward 8 D
        q, k, v         rotate or rearrange: 4 each
        activation      read its inputs, write its output: 4 F, gated 6 F; backward 6 F or 10 F
        experts         copy the rows to the network's buffer, sort them by expert, and both back: 16 D for each of a
                        token's experts, in both passes; ranks that split an expert sort the rows of all of them
        """
        model, layout = self.model, self.layout
        stream = layout.tp if layout.sequence_parallel else 1
        width = model.hidden / stream
        dropout = 2 * width * layout.traits.dropout
        heads = 4 * ((model.heads + model.kv_heads) * model.head_dim + model.kv_heads * model.head_dim) / layout.tp
        ffn, rows = float(model.ffn), 0.0
        if mixture:
            rows = model.experts_per_token * self.expert_load
            ffn = model.expert_ffn * (rows + model.shared_experts)
        activation = ffn / layout.tp
        permuted = 8.0 * model.hidden * rows / layout.tp * (1 + layout.expert_split)
        norms = model.layer_norms * width
        forward = 4 * norms + 12 * width + dropout + heads + (6 if model.gated else 4) * activation + permuted
        backward = 6 * norms + 8 * width + dropout + heads + (10 if model.gated else 6) * activation + permuted
        return self.kernels.moves(layout.tokens * forward), self.kernels.moves(layout.tokens * backward)

    def _communication(self, mixture: bool, products: float, attention: float) -> Times:
        """Return the exposed communication of one pass, and what the hidden part takes from the computation next to it.
        It hides behind the products or attention, at most their time.

        tp     two all-reduces of the stream; with sequence parallelism as many bytes (Korthikanti et al. 2022), of
               which those of the gathers may be in float8
        cp     the ring passes all keys and values behind attention, except the first block
        ep     tokens to their experts and back: two all-to-alls (Lepikhin et al. 2021). Ranks that split an expert
               gather what arrived, and reduce-scatter their sums (Megatron-Core)
        """
        model, layout, links = self.model, self.layout, self.links
        exchanges = self.stream_exchanges(mixture)
        tensor = exchanges * links.all_reduce(self.stream_bytes, Group(layout.tp, 1))
        if layout.traits.overlaps_tensor:
            hidden = min(self.kernels.constants.hidden_tensor * tensor, products)
            tensor = self._left_of(tensor, hidden, 2 * exchanges * ring_share(layout.tp) * self.stream_bytes)
        keys_values = 2.0 * layout.tokens * 2 * model.kv_heads * model.head_dim / layout.tp
        ring = links.gather(keys_values * layout.cp, Group(layout.cp, layout.tp))
        hidden = ring - max(ring / layout.cp, ring - attention)
        context = self._left_of(ring, hidden, ring_share(layout.cp) * keys_values * layout.cp)
        expert = 0.0
        if mixture:
            group, traits = Group(layout.ep, layout.expert_split), layout.traits
            once = traits.sends_once_per_node or (traits.sends_groups_once and model.expert_groups > 0)
            copies = model.experts_per_token if once else 1
            expert = sum(links.all_to_all(sent, group, copies, model.expert_groups) for sent in self.expert_bytes)
            if self.gathered_row_bytes:
                expert += 2 * links.gather(self.gathered_row_bytes, Group(layout.expert_split, 1))
        return Times(tensor=tensor, context=context, expert=expert)


def part_of(pair: tuple[int, int], hidden: int, tp: int) -> tuple[float, float]:
    """Split a product over tp: along its inputs if its outputs are the stream, else along its outputs."""
    inner, columns = pair
    return (inner / tp, columns) if columns == hidden else (inner, columns / tp)
