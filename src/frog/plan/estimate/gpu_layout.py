"""How a run is divided among GPUs, and which implementation runs it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from frog.plan.model import PlannedModel

Recompute = Literal["none", "selective", "alternate", "full"]
"""Activation recomputation: only attention (selective), every second product (alternate), or the whole layer (full)."""

Attention = Literal["scores", "flash1", "triton", "flash", "fused"]
"""Attention that writes its scores to memory, FlashAttention 1, its version in Triton, FlashAttention 2, or the fastest
fused kernel of the GPU."""


Schedule = Literal["gpipe", "1f1b", "zero_bubble"]
"""Order of a pipeline's passes. With virtual stages, 1f1b is interleaved."""

Precision = Literal["bf16", "fp16", "fp8", "fp8_rowwise"]
"""Number format of the large products; float8 has one scale per tensor, or one per row."""


@dataclass(frozen=True)
class Traits:
    """What an implementation does that changes the time of a step. None of it is fitted."""

    attention: Attention = "flash"
    overlaps_gradients: bool = True
    """The reduction of gradients runs during the backward pass."""
    overlaps_parameters: bool = False
    """ZeRO 1 gathers parameters during the next forward pass."""
    overlaps_tensor: bool = False
    """Tensor parallelism computes on one part of a product while it sends another."""
    overlaps_stages: bool = False
    """An interleaved pipeline sends to the next stage while it computes the next micro-batch."""
    light_collectives: bool = False
    """Collectives read registered buffers, so they occupy few multiprocessors (NCCL 2.24: 6 instead of 24 or so)."""
    dropout: bool = False
    fuses_gate: bool = True
    """A fused or compiled kernel computes a gated FFN's activation and product, and keeps only its two inputs."""
    keeps_whole_copy: bool = True
    """Parameters and gradients in 16 and 32 bits next to the optimizer's float32 copy, as in Megatron; FSDP shards
    float32 parameters, and casts them when it gathers them."""
    gradient_bytes: int = 4
    """Size of a number in the reduction of gradients."""
    loss_bytes: tuple[int, int] = (8, 12)
    """What the loss reads and writes for each logit, forward and backward; by default once in 16 and in 32 bits."""
    parallel_loss: bool = False
    """The loss is computed on parts of the vocabulary by torch's loss parallelism."""
    fuses_loss: bool = False
    """A compiled or fused kernel computes the loss, so that logits are never stored in float32."""
    step_bytes: int = 0
    """Bytes that the optimizer allocates for each parameter that the rank updates, next to its states."""
    norm_bytes: int = 0
    """Bytes for each of these parameters that the gradients' norm allocates and frees, in blocks into which none of the
    optimizer's tensors fits."""
    keeps_gathered: bool = False
    """FSDP in a pipeline gathers parameters and reduces gradients once a step, not for every micro-batch."""
    sends_once_per_node: bool = False
    """Expert parallelism sends a token once to each node that has one of its experts (DeepEP)."""
    sends_groups_once: bool = False
    """The same, for models that send a token to few nodes (DeepSeek)."""
    overlaps_experts: bool = False
    """The all-to-all of one micro-batch runs next to the other pass of another (DualPipe, Megatron-Core's combined
    1F1B)."""
    overlaps_far_experts: bool = False
    """The same, where a rank's experts are in several NVLink domains."""
    dispatches_fp8: bool = False
    """With float8, tokens travel to their experts in one byte per number, and back in two (DeepSeek-V3)."""
    scales_tiles: bool = False
    """Float8 has a scale for each tile of 128 numbers, so that another kernel casts (DeepSeek-V3, section 3.5.2)."""
    launches_ahead: bool = False
    """CUDA graphs or compilation remove the cost of launching kernels one by one."""


@dataclass(frozen=True)
class PlannedLayout:
    """Degrees of parallelism and batch. Ranks vary fastest along tp, then cp, dp, pp; ep lies inside tp, cp and dp."""

    seq_len: int
    global_batch: int
    micro_batch: int = 1
    dp: int = 1
    tp: int = 1
    pp: int = 1
    cp: int = 1
    ep: int = 1
    virtual_stages: int = 1
    schedule: Schedule = "1f1b"
    zero: int = 0
    """0 to 3: what data-parallel ranks split (nothing, optimizer state, gradients too, parameters too)."""
    zero_group: int = 0
    """Ranks that split it; 0: all data-parallel ranks."""
    sequence_parallel: bool = False
    recompute: Recompute = "none"
    precision: Precision = "bf16"
    traits: Traits = field(default_factory=Traits)

    @property
    def num_gpus(self) -> int:
        return self.dp * self.tp * self.pp * self.cp

    @property
    def num_micro(self) -> int:
        """Micro-batches of each data-parallel rank in a step."""
        return self.global_batch // (self.dp * self.micro_batch)

    @property
    def shard(self) -> int:
        """Ranks that split the states."""
        return min(self.zero_group, self.dp * self.cp) if self.zero_group else self.dp * self.cp

    @property
    def gathered_bytes(self) -> int:
        """Size of a number that ranks gather: a parameter, or an input of products with sequence parallelism.

        Float8 with one scale per tensor is cast before it is sent (Transformer Engine, torchao); a scale for each row
        is known only to the rank that has the whole row.
        """
        return 1 if self.precision == "fp8" else 2

    @property
    def tokens(self) -> int:
        """Tokens of a micro-batch on one rank."""
        return self.micro_batch * self.seq_len // self.cp

    def problems(self, model: PlannedModel) -> list[str]:
        """Return why a model cannot run with this layout, with both numbers; empty if it can."""
        degrees = {"dp": self.dp, "tp": self.tp, "pp": self.pp, "cp": self.cp, "ep": self.ep}
        degrees |= {"micro_batch": self.micro_batch, "virtual_stages": self.virtual_stages, "seq_len": self.seq_len}
        found = [f"{name}={value}: must be at least 1" for name, value in degrees.items() if value < 1]
        if found:
            return found
        if self.global_batch < 1 or self.global_batch % (self.dp * self.micro_batch):
            found.append(
                f"global_batch={self.global_batch} does not divide by dp={self.dp} x micro_batch={self.micro_batch}"
            )
        if model.heads % self.tp:
            found.append(f"heads={model.heads} do not divide by tp={self.tp}")
        if self.pp * self.virtual_stages > model.layers:
            found.append(f"pp={self.pp} x virtual_stages={self.virtual_stages} exceeds layers={model.layers}")
        if self.virtual_stages > 1 and self.pp == 1:
            found.append(f"virtual_stages={self.virtual_stages}: needs a pipeline, pp of at least 2")
        if self.seq_len % self.cp:
            found.append(f"seq_len={self.seq_len} does not divide by cp={self.cp}")
        if self.ep > 1 and not model.experts:
            found.append(f"ep={self.ep}: the model has no experts")
        elif self.ep > 1 and model.experts % self.ep:
            found.append(f"experts={model.experts} do not divide by ep={self.ep}")
        elif (ranks := self.dp * self.tp * self.cp) % self.ep:
            found.append(f"ep={self.ep} does not divide dp x tp x cp = {ranks}")
        if 0 < self.zero_group < self.dp * self.cp and (self.dp * self.cp) % self.zero_group:
            found.append(f"zero_group={self.zero_group} does not divide dp x cp = {self.dp * self.cp}")
        if self.zero not in (0, 1, 2, 3):
            found.append(f"zero={self.zero}: must be 0 to 3")
        return found

    def heaviest_layers(self, layers: int) -> int:
        """Return the number of layers on the stage that has most."""
        return math.ceil(layers / self.pp)
