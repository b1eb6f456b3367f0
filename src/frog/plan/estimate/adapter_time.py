"""Time of a training step with LoRA: frozen weights, adapters next to them, and weights in 4 bits that are written out.

The rest of a step is that of full training (`step_time.py`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

from frog.plan.columns import Column
from frog.plan.estimate.adapters import FROZEN_BYTES, NF4_BYTES, Adapters, adapter_memory, layer_matrices
from frog.plan.estimate.kernels import Kernels
from frog.plan.estimate.layer_time import LayerModel, Times
from frog.plan.estimate.step_time import StepModel
from frog.plan.links import Group, ring_share
from frog.plan.memory import Memory

_ADAPTER_KERNELS = 5
"""Kernels of an adapter's forward pass: cast, two products, scale, add."""
_FORWARD_OUTPUT_BYTES, _FUSED_OUTPUT_BYTES = 10.0, 6.0
"""For each output of an adapter: scale it (4), and add it to the frozen matrix's (6); compiled, both in one pass."""
_BACKWARD_OUTPUT_BYTES, _BACKWARD_INPUT_BYTES = 4.0, 6.0
"""Scale the gradient of each output; add the gradient of each input to the frozen matrix's."""


class FrozenKernels(Kernels):
    """The operations of a GPU with weights that are not trained: no product for a weight's gradient.

    In float8 only one orientation of a tensor is cast, since no weight's gradient reads the transposed one.
    """

    def linear(
        self, rows: float, inner: float, columns: float, num: int = 1, *, mean_rows: bool = False
    ) -> tuple[float, float]:
        """Return the seconds of a frozen linear layer's forward and backward pass."""
        forward = self.product(rows, inner, columns, num, mean_rows=mean_rows)
        of_input = self.product(rows, columns, inner, num, mean_rows=mean_rows)
        casts = self._casts(rows * num, inner) / 2, self._casts(rows * num, columns) / 2
        return forward + casts[0], of_input + casts[1]


@dataclass(frozen=True)
class AdaptedLayers(LayerModel):
    """The layers of a model with adapters; `kernels` are those of its frozen weights."""

    adapters: Adapters = field(kw_only=True)

    @cached_property
    def _trained(self) -> Kernels:
        """The operations of the adapters, which stay in 16 bits."""
        return Kernels(self.kernels.gpu, self.layout, self.kernels.constants)

    def _products(self, mixture: bool) -> tuple[float, float]:
        forward, backward = super()._products(mixture)
        own = self.adapter_products(mixture)
        return forward + own[0], backward + own[1]

    def adapter_products(self, mixture: bool) -> tuple[float, float]:
        """Return the seconds of the adapters' products in both passes of a layer.

        They are tall and narrow, so the roofline's bytes bound them: reading inputs and writing outputs.
        """
        tokens, rank = self.layout.tokens, self.adapters.rank
        pairs = []
        for matrix in self.adapters.matrices(self.model, mixture=mixture):
            inputs, outputs = matrix.on_rank(self.layout.tp)
            pairs += [self._trained.linear(tokens, inputs, rank), self._trained.linear(tokens, rank, outputs)]
        return sum(f for f, _ in pairs), sum(b for _, b in pairs)

    def _memory(self, mixture: bool) -> tuple[float, float]:
        forward, backward = super()._memory(mixture)
        own = self.adapter_memory_s(mixture)
        dequantized = self.dequantize_s
        return forward + own[0] + dequantized, backward + own[1] + dequantized

    def adapter_memory_s(self, mixture: bool) -> tuple[float, float]:
        """Return the seconds to scale the adapters' outputs and add them, forward and backward."""
        each = _FUSED_OUTPUT_BYTES if self.layout.traits.launches_ahead else _FORWARD_OUTPUT_BYTES
        sides = [matrix.on_rank(self.layout.tp) for matrix in self.adapters.matrices(self.model, mixture=mixture)]
        inputs, outputs = (sum(side) for side in zip(*sides, strict=True)) if sides else (0.0, 0.0)
        backward = _BACKWARD_OUTPUT_BYTES * outputs + _BACKWARD_INPUT_BYTES * inputs
        tokens = self.layout.tokens
        return self.kernels.moves(tokens * each * outputs), self.kernels.moves(tokens * backward)

    @cached_property
    def dequantize_s(self) -> float:
        """The seconds to write a layer's matrices in 16 bits once; each pass does so."""
        if not self.adapters.quantized:
            return 0.0
        numel = sum(matrix.numel for matrix in layer_matrices(self.model, self.adapters.kind))
        return self.kernels.moves((NF4_BYTES + FROZEN_BYTES) * numel)

    def _bounded(self, products: float, attention: float, memory: float, comm: Times, num_kernels: float) -> Times:
        mixture = bool(self.model.moe_layers)
        added = _ADAPTER_KERNELS * len(self.adapters.matrices(self.model, mixture=mixture))
        return super()._bounded(products, attention, memory, comm, num_kernels + added)


@dataclass(frozen=True)
class AdaptedStep(StepModel):
    """A run that trains adapters."""

    adapters: Adapters = field(kw_only=True)

    @cached_property
    def kernels(self) -> Kernels:
        return FrozenKernels(self.cluster.gpu, self.layout, self.constants)

    @cached_property
    def layers(self) -> AdaptedLayers:
        return AdaptedLayers(self.model, self.layout, self.kernels, self.links, adapters=self.adapters)

    @cached_property
    def memory(self) -> Memory:
        return adapter_memory(self.model, self.layout, self.adapters, self.cluster.gpu.memory)

    @property
    def trained_parameters(self) -> int:
        return self.adapters.num_parameters(self.model)

    @property
    def model_flops(self) -> float:
        return self.product_flops + self.attention_flops

    @property
    def product_flops(self) -> float:
        """The operations in products: frozen weights take part in two of three, adapters in all three."""
        return 2 * self.model.product_flops_per_token() + 6.0 * self.trained_parameters

    @cached_property
    def _stage_adapters(self) -> float:
        return self.adapters.stage_parameters(self.model, self.layout)

    @cached_property
    def whole_bytes(self) -> tuple[Column, Column]:
        """Bytes of the frozen weights and adapters, as FSDP gathers them, and of the adapters' gradients."""
        frozen = self.adapters.frozen_bytes(self.model, self.layout)
        reduced = self.layout.traits.gradient_bytes * self._stage_adapters
        return frozen + FROZEN_BYTES * self._stage_adapters, reduced

    @cached_property
    def step_bytes(self) -> tuple[Column, Column]:
        """Bytes of the adapters' gradients, and of the updated adapters, that arrive."""
        layout, gradients = self.layout, self.whole_bytes[1]
        reduced = self.times_reduced * gradients * ring_share(layout.data)
        return reduced, FROZEN_BYTES * self._stage_adapters * ring_share(layout.shard)

    @cached_property
    def step_transfers(self) -> tuple[Column, Column]:
        """Seconds to reduce the adapters' gradients once, and under ZeRO 1 and 2 to gather the updated ones."""
        layout, links, group = self.layout, self.links, self._groups["dp"]
        num_bytes = layout.traits.gradient_bytes * self._stage_adapters
        splits = layout.zero > 0 and layout.shard == group.size
        reduce = links.gather(num_bytes, group) if splits else links.all_reduce(num_bytes, group)
        gathered = links.gather(FROZEN_BYTES * self._stage_adapters, Group(layout.shard, layout.tp))
        return reduce, gathered if layout.zero > 0 else 0.0

    @cached_property
    def layer_transfers(self) -> tuple[Column, Column, Column]:
        """Seconds to gather one layer's frozen weights and adapters, and to reduce the adapters' gradients."""
        layout, links, data = self.layout, self.links, self._groups["dp"]
        held = Group(layout.shard, layout.tp)
        adapters = self._stage_adapters / self.heaviest_layers
        frozen = self.adapters.frozen_bytes(self.model, layout) / self.heaviest_layers
        gather = links.gather(frozen + FROZEN_BYTES * adapters, held)
        reduce = links.gather(layout.traits.gradient_bytes * adapters, held)
        if held.size == data.size:
            return gather, reduce, 0.0
        others = Group(data.size // held.size, held.size * layout.tp)
        return gather, reduce, links.all_reduce(layout.traits.gradient_bytes * adapters / held.size, others)

    @cached_property
    def optimizer_parameters(self) -> tuple[Column, Column]:
        return (self._stage_adapters / self.layout.shard if self.layout.zero else self._stage_adapters), 0.0
