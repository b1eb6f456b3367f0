"""LoRA: adapters of a low rank next to frozen weights, which QLoRA keeps in 4 bits.

An adapter of a matrix (inputs, outputs) is a product of (inputs, r) and (r, outputs) next to it (Hu et al. 2021). The
frozen matrix needs no gradient, no optimizer state and, backward, only the product for its input's gradient. A layer
keeps an input for the backward pass only if an adapter reads it. In 4 bits (Dettmers et al. 2023), a matrix is written
out in 16 bits each time before it is used.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from frog.core.errors import UsageError
from frog.core.units import format_count
from frog.core.user_input import did_you_mean
from frog.plan.layout import Layout
from frog.plan.memory import (
    Kept,
    LayerMemory,
    Memory,
    allocator_bytes,
    kept_tensors,
    layer_input,
    loss_bytes,
    moments,
    state_bytes,
)
from frog.plan.model import PlannedModel

NF4_BYTES = (4 + 8 / 64 + 32 / (64 * 256)) / 8
"""Bytes of a number in NF4 with double quantization: 4 bits, of each 64 numbers a scale in 8 bits, of each 256 scales
one in 32. Dettmers et al. 2023, section 3: 4.127 bits."""
FROZEN_BYTES = 2
"""Bytes of a frozen number in 16 bits."""
ALL = "all-linear"
"""PEFT's word for all linear layers but the output matrix."""

_FUSES_QKV = ("phi3",)
_FUSES_GATE = ("phi3", "glm", "glm4")


@dataclass(frozen=True)
class Matrix:
    """A weight matrix of a layer, by the name that PEFT's `target_modules` matches."""

    name: str
    inputs: int
    outputs: int
    reads: str
    """The tensor that it multiplies: matrices that read the same one share what is kept of it."""
    split: str = "outputs"
    """The side that tensor parallelism splits; "" for neither."""

    @property
    def numel(self) -> int:
        return self.inputs * self.outputs

    def on_rank(self, tp: int) -> tuple[float, float]:
        """Return the inputs and outputs of one of tp ranks."""
        return (
            self.inputs / (tp if self.split == "inputs" else 1),
            self.outputs / (tp if self.split == "outputs" else 1),
        )


def layer_matrices(model: PlannedModel, kind: str = "", *, mixture: bool = False) -> list[Matrix]:
    """Return the linear layers of one layer; `kind` is the model_type of its config.json.

    With `mixture` only those of attention: adapters of experts are not modelled.
    """
    if not model.gated:
        return _old_matrices(model, with_names_of_gpt2=model.positions > 0)
    hidden, query = model.hidden, model.heads * model.head_dim
    keys, values = model.kv_heads * model.head_dim, model.kv_heads * (model.value_dim or model.head_dim)
    if (latent := model.latent) is not None:
        widened = model.heads * (model.head_dim - latent.rotary_width) + model.value_width
        matrices = [Matrix("q_proj", hidden, query, "attention input")]
        if latent.query_rank:
            matrices = [
                Matrix("q_a_proj", hidden, latent.query_rank, "attention input", ""),
                Matrix("q_b_proj", latent.query_rank, query, "compressed query"),
            ]
        matrices += [
            Matrix("kv_a_proj_with_mqa", hidden, latent.key_value_rank + latent.rotary_width, "attention input", ""),
            Matrix("kv_b_proj", latent.key_value_rank, widened, "compressed keys and values"),
        ]
    elif kind in _FUSES_QKV:
        matrices = [Matrix("qkv_proj", hidden, query + keys + values, "attention input")]
    else:
        parts = {"q_proj": query, "k_proj": keys, "v_proj": values}
        matrices = [Matrix(name, hidden, outputs, "attention input") for name, outputs in parts.items()]
    matrices.append(Matrix("o_proj", model.value_width, hidden, "attention output", "inputs"))
    if mixture:
        return matrices
    if kind in _FUSES_GATE:
        matrices.append(Matrix("gate_up_proj", hidden, 2 * model.ffn, "ffn input"))
    else:
        matrices += [Matrix(name, hidden, model.ffn, "ffn input") for name in ("gate_proj", "up_proj")]
    return [*matrices, Matrix("down_proj", model.ffn, hidden, "ffn inner", "inputs")]


def _old_matrices(model: PlannedModel, *, with_names_of_gpt2: bool) -> list[Matrix]:
    """Return the linear layers of GPT-2 or GPT-NeoX, whose FFNs have no gate."""
    names = ("c_attn", "c_proj", "c_fc", "c_proj")
    if not with_names_of_gpt2:
        names = ("query_key_value", "dense", "dense_h_to_4h", "dense_4h_to_h")
    hidden, width = model.hidden, model.ffn
    return [
        Matrix(names[0], hidden, 3 * hidden, "attention input"),
        Matrix(names[1], hidden, hidden, "attention output", "inputs"),
        Matrix(names[2], hidden, width, "ffn input"),
        Matrix(names[3], width, hidden, "ffn inner", "inputs"),
    ]


@dataclass(frozen=True)
class Adapters:
    """The adapters of a model: their rank, the matrices that have one, and how the frozen weights are stored."""

    rank: int
    targets: tuple[str, ...] = (ALL,)
    kind: str = ""
    """The model_type of the config.json, which decides the names of matrices."""
    quantized: bool = False
    """Frozen matrices of the layers are in NF4; embeddings, norms and the output matrix are not."""
    casts_inputs: bool = False
    """PEFT with float32 adapters casts the input of each adapter, and each keeps its own copy."""
    rest_bytes: int = FROZEN_BYTES
    """Bytes of a frozen number outside of the quantized matrices: PEFT's `prepare_model_for_kbit_training` casts these
    to float32."""

    # ---- sizes -------------------------------------------------------------------------------------------------------

    def matrices(self, model: PlannedModel, *, mixture: bool = False) -> list[Matrix]:
        """Return the matrices of a layer that have an adapter."""
        matrices = layer_matrices(model, self.kind, mixture=mixture)
        return [matrix for matrix in matrices if ALL in self.targets or matrix.name in self.targets]

    def numel(self, matrix: Matrix, tp: int = 1) -> float:
        """Return the parameters of one adapter on one of tp ranks."""
        return self.rank * sum(matrix.on_rank(tp))

    def layer_parameters(self, model: PlannedModel, *, mixture: bool = False, tp: int = 1) -> float:
        return sum(self.numel(matrix, tp) for matrix in self.matrices(model, mixture=mixture))

    def num_parameters(self, model: PlannedModel) -> int:
        """Return the number of trained parameters."""
        dense = (model.layers - model.moe_layers) * self.layer_parameters(model)
        return round(dense + model.moe_layers * self.layer_parameters(model, mixture=True))

    def stage_parameters(self, model: PlannedModel, layout: Layout) -> float:
        """Return the trained parameters of the heaviest rank before data-parallel ranks split them."""
        layers = layout.heaviest_layers(model.layers)
        mixture = min(layers, model.moe_layers)
        dense = (layers - mixture) * self.layer_parameters(model, tp=layout.tp)
        return dense + mixture * self.layer_parameters(model, mixture=True, tp=layout.tp)

    # ---- frozen weights ----------------------------------------------------------------------------------------------

    def quantized_parameters(self, model: PlannedModel, layout: Layout) -> float:
        """Return the frozen parameters in 4 bits on the heaviest rank."""
        if not self.quantized:
            return 0.0
        each = sum(matrix.numel for matrix in layer_matrices(model, self.kind))
        return layout.heaviest_layers(model.layers) * each / layout.tp

    def frozen_bytes(self, model: PlannedModel, layout: Layout) -> float:
        """Return the bytes of the frozen weights on the heaviest rank before data-parallel ranks split them."""
        shared, experts = layout.stage_parameters(model)
        small = self.quantized_parameters(model, layout)
        return NF4_BYTES * small + self.rest_bytes * (shared + experts - small)

    def of_program(self, software: str) -> Adapters:
        """Return the same adapters with the habits of a program: those that use PEFT cast inputs, and for 4 bits also
        what is outside of the quantized matrices.

        Source:  peft/tuners/lora/layer.py, `_cast_input_dtype`; peft/utils/other.py, `prepare_model_for_kbit_training`.
        """
        if not any(name in software.lower() for name in ("trainer", "accelerate")):
            return self
        return replace(self, casts_inputs=True, rest_bytes=4 if self.quantized else FROZEN_BYTES)

    # ---- refusals ----------------------------------------------------------------------------------------------------

    def problems(self, model: PlannedModel, layout: Layout) -> list[str]:
        """Return why this model cannot be tuned so, or is not modelled; empty if it can."""
        names = {matrix.name: matrix for matrix in layer_matrices(model, self.kind, mixture=bool(model.experts))}
        known = [*names] if model.experts else [ALL, *names]
        problems = [
            f"--lora-targets {name}: adapters of experts are not modelled; of attention: {','.join(names)}"
            if model.experts and name in (ALL, "gate_proj", "up_proj", "down_proj")
            else f"--lora-targets {name}: the model has no such matrix; {did_you_mean(name, known)}"
            for name in self.targets
            if name not in known
        ]
        adapted = [matrix for matrix in names.values() if ALL in self.targets or matrix.name in self.targets]
        narrow = min((min(matrix.inputs, matrix.outputs) for matrix in adapted), default=self.rank)
        if self.rank > narrow:
            problems.append(f"--lora-r {self.rank}: exceeds the smaller side of a matrix, {narrow}: no low rank")
        if layout.recompute_layers is not None:
            problems.append("--recompute-layers: not modelled next to adapters; --recompute full alone")
        if layout.offload_optimizer:
            problems.append("--offload-optimizer: not modelled next to adapters, whose optimizer is small")
        if layout.recompute == "alternate":
            problems.append("--recompute alternate: not modelled next to adapters; selective or full")
        if self.quantized:
            split = {"tp": layout.tp, "pp": layout.pp, "cp": layout.cp, "ep": layout.ep}
            problems += [
                f"--quantize nf4: bitsandbytes does not split its matrices; --{name} {size}"
                for name, size in split.items()
                if size > 1
            ]
            if model.experts:
                problems.append("--quantize nf4: bitsandbytes quantizes linear layers; the experts are one tensor")
            if layout.narrow:
                problems.append(f"--quantize nf4: its products are in 16 bits, not --precision {layout.precision}")
        return problems


def parse_targets(text: str) -> tuple[str, ...]:
    """Return the names of matrices in `q_proj,v_proj`.

    Raises:  UsageError if there is none.
    """
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    if not names:
        raise UsageError(f"--lora-targets {text!r}: names no matrix", f"--lora-targets {ALL}, or q_proj,v_proj")
    return names


def adapter_words(adapters: Adapters, model: PlannedModel) -> str:
    """Describe adapters: `LoRA r 16 on all-linear: 41.94 M trained parameters (0.52 %), frozen weights in 16 bits`."""
    trained = adapters.num_parameters(model)
    targets = ALL if ALL in adapters.targets else ", ".join(adapters.targets)
    share = 100 * trained / model.num_parameters()
    stored = "nf4 with double quantization" if adapters.quantized else "16 bits"
    return (
        f"LoRA r {adapters.rank} on {targets}: {format_count(trained)} trained parameters ({share:.2g} %), "
        f"frozen weights in {stored}"
    )


# ---- memory ----------------------------------------------------------------------------------------------------------

_WEIGHT_INPUTS = ("inputs of both blocks", "input of the FFN's last product", "rows that enter and leave experts")
"""Tensors that a layer keeps for the gradients of its weights."""


def adapter_kept(model: PlannedModel, layout: Layout, adapters: Adapters) -> list[Kept]:
    """Return what a layer keeps without recomputation: inputs of frozen matrices only if an adapter reads them.

    Attention keeps its own output, and experts keep the rows that leave them, for the router's probabilities.
    """
    tp, size, mixture = layout.tp, layout.traits.number_bytes, bool(model.moe_layers)
    stream = layout.stream_split if layout.traits.keeps_whole_copy else 1
    splits = {"attention input": stream, "ffn input": stream}
    adapted = adapters.matrices(model, mixture=mixture)
    tensors = [kept for kept in kept_tensors(model, layout) if kept.what not in _WEIGHT_INPUTS]
    if mixture:
        tensors.append(Kept("rows that leave experts", model.experts_per_token * model.hidden, size, tp))
    if adapters.casts_inputs:
        tensors.append(Kept("copies of the adapters' inputs", sum(matrix.inputs for matrix in adapted), size, tp))
    else:
        read = {matrix.reads: matrix.inputs for matrix in adapted if matrix.reads != "attention output"}
        tensors += [Kept(f"{what}, for adapters", width, size, splits.get(what, tp)) for what, width in read.items()]
    tensors.append(Kept("between both matrices of the adapters", adapters.rank * len(adapted), size))
    return tensors


def adapter_memory(model: PlannedModel, layout: Layout, adapters: Adapters, gpu_bytes: float) -> Memory:
    """Return the memory of the heaviest rank at the moment that needs most, as `step_memory` does for full training."""
    trained, frozen = adapters.stage_parameters(model, layout), adapters.frozen_bytes(model, layout)
    sizes = state_bytes(layout)
    split = trained / layout.shard
    parameters, gradients, optimizer = (
        sizes[name] * (split if layout.zero >= stage else trained)
        for name, stage in (("parameters", 3), ("gradients", 2), ("optimizer", 1))
    )
    parameters += frozen / layout.shard if layout.zero >= 3 else frozen
    layer = adapter_layer_memory(model, layout, adapters)
    gathered = adapter_gathered(model, layout, adapters)
    num_layers = layout.heaviest_layers(model.layers)
    updated = split if layout.zero else trained
    memories = []
    for first in (True,) if layout.pp == 1 else (True, False):
        moment = max(moments(layout, num_layers, layer, gathered, updated, first=first), key=sum)
        allocator = allocator_bytes(layout, gpu_bytes, parameters + gradients + optimizer, sum(moment), updated)
        memories.append(Memory(parameters, gradients, optimizer, *moment, allocator))
    return max(memories, key=lambda memory: memory.total)


def adapter_layer_memory(model: PlannedModel, layout: Layout, adapters: Adapters) -> LayerMemory:
    """Return the bytes of one layer; a quantized matrix is in 16 bits while it is used."""
    whole = layout.tokens * sum(
        kept.numbers * kept.num_bytes / kept.split for kept in adapter_kept(model, layout, adapters)
    )
    full = layout.recompute == "full"
    kept = layer_input(model, layout) if full else whole
    written = 0.0
    if adapters.quantized:
        written = FROZEN_BYTES * max(matrix.numel for matrix in layer_matrices(model, adapters.kind))
    return LayerMemory(kept, 0.0 if full else kept, (whole if full else 0.0) + written, loss_bytes(model, layout))


def adapter_gathered(model: PlannedModel, layout: Layout, adapters: Adapters) -> tuple[float, float]:
    """Return the bytes of gathered frozen weights under ZeRO 3, at the loss and in a layer's backward pass.

    They have no gradients. What is outside of the layers stays gathered; a layer is gathered next to the following one.
    """
    if layout.zero < 3 or layout.shard < 2:
        return 0.0, 0.0
    whole, layers = adapters.frozen_bytes(model, layout), layout.heaviest_layers(model.layers)
    head = model.head_parameters() if layout.pp == 1 else 0
    outside = adapters.rest_bytes * (model.embedding_parameters() + head) / layout.tp
    return outside, outside + 2 * (whole - outside) / layers
