"""The layout of a run: how its model and batch are divided among ranks, and which program runs it.

`Layout` is that of any program, from a row of a table, options or a run file; its memory, traffic and time derive from
it. `RankShare` is what one rank of a run of Frog's holds of it, tensor by tensor. Sizes are numbers of elements unless
their name says bytes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from frog.core.config import ModelConfig, RunConfig
from frog.core.config.model import ROOT, Parameter
from frog.plan.columns import choose, least, most
from frog.plan.model import PlannedModel
from frog.train.parallel.schedules.schedule import stage_layers

FLOAT_BYTES = 4
"""Parameters, gradients and moments of Frog's program are float32, whatever the precision of the products."""

Recompute = Literal["none", "selective", "alternate", "full"]
"""Activation recomputation: only attention (selective), every second product (alternate), or the whole layer (full)."""

RecomputeMethod = Literal["block", "uniform"]
"""Which layers full recomputation computes again, in Megatron's words: some of each chunk one by one, or all of them,
some at once."""

Attention = Literal["scores", "flash1", "triton", "flash", "fused"]
"""Attention that writes its scores to memory, FlashAttention 1, its version in Triton, FlashAttention 2, or the fastest
fused kernel of the GPU."""


Schedule = Literal["gpipe", "1f1b", "zero_bubble"]
"""Order of a pipeline's passes. With virtual stages, 1f1b is interleaved."""

Precision = Literal["fp32", "bf16", "fp16", "fp8", "fp8_rowwise", "mxfp8", "nvfp4"]
"""Number format of the large products; float8 has one scale per tensor, or one per row, MXFP8 one for each 32 numbers,
NVFP4 one for each 16 numbers of 4 bits."""


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
    dropout: bool = False
    fuses_gate: bool = True
    """A fused or compiled kernel computes a gated FFN's activation and product, and keeps only its two inputs."""
    keeps_whole_copy: bool = True
    """Parameters and gradients in 16 and 32 bits next to the optimizer's float32 copy, as in Megatron; FSDP shards
    float32 parameters, and casts them when it gathers them."""
    gradient_bytes: int = 4
    """Size of a number in the reduction of gradients."""
    number_bytes: int = 2
    """Size of an activation that is kept."""
    keeps_statistics: bool = False
    """Eager norms, attention and routers keep normalized inputs, inverse roots, sums and probabilities, too."""
    loss_keeps_gradients: bool = False
    """The loss computes its gradients in the forward pass, and keeps these instead of the logits."""
    pads_vocab: bool = False
    """The output matrix has a multiple of 128 rows on each rank, as in Megatron."""
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
    launches_each_expert: bool = False
    """Each expert's products and casts are kernels of their own, launched in a loop (Transformer Engine's
    `GroupedLinear`)."""
    pads_products: bool = False
    """A compiler fills up matrices whose rows do not start at multiples of 16 bytes (Inductor's `shape_padding`)."""
    copies_gathered: bool = True
    """FSDP copies what it gathers into the parameters (FSDP2); those of FSDP1 are views of it."""
    collective_sms: int = 20
    """Multiprocessors that a collective takes from the computation next to it. DeepSeek-AI 2024, section 3.2.2, for the
    kernels of its own all-to-all; assumed for NCCL, which takes 6 where buffers are registered (NCCL 2.24)."""

    splits_experts: bool = False
    """tp also splits experts that ep divides, unless `expert_tp` is stated: Megatron-Core's default. Recipes of
    Megatron-Bridge, and torchtitan, keep them whole."""

    def vocab_of_rank(self, vocab: int, tp: int) -> float:
        """Return the rows of the output matrix on the first of tp ranks, which has most."""
        edge = 128 if self.pads_vocab else 1
        return math.ceil(vocab / (tp * edge)) * edge


@dataclass(frozen=True)
class Layout:
    """Degrees of parallelism and batch. Ranks vary fastest along tp, then cp, dp, pp.

    The tp x cp x dp ranks of one stage also hold the experts: they vary fastest along expert_tp, then ep, and the rest
    have copies.
    """

    seq_len: int
    global_batch: int
    micro_batch: int = 1
    dp: int = 1
    tp: int = 1
    pp: int = 1
    cp: int = 1
    ep: int = 1
    expert_tp: int | None = None
    """Ranks of tensor parallelism in an expert; None: tp if ep is 1, else 1."""
    capacity_factor: float | None = None
    """Rows that each expert computes, of the mean: tokens beyond are dropped, and fewer filled up to it; None: none is
    dropped."""
    imbalance: float | None = None
    """Rows of the rank with most, of the mean, if no token is dropped; None: those of random choices."""
    virtual_stages: int = 1
    schedule: Schedule = "1f1b"
    zero: int = 0
    """0 to 3: what data-parallel ranks split (nothing, optimizer state, gradients too, parameters too)."""
    zero_group: int = 0
    """Ranks that split it; 0: all data-parallel ranks."""
    sequence_parallel: bool = False
    recompute: Recompute = "none"
    recompute_layers: int | None = None
    """With full recomputation, layers of each chunk that are computed again (block), or of each unit of layers that are
    computed again at once (uniform). None: all layers, one by one."""
    recompute_method: RecomputeMethod = "block"
    offload_optimizer: float = 0.0
    """Fraction of the rank's parameters whose optimizer state is in the host's memory and which are updated there."""
    precision: Precision = "bf16"
    traits: Traits = field(default_factory=Traits)

    @property
    def sizes(self) -> dict[str, int]:
        """Size of each axis, from the slowest to the fastest."""
        return {"pp": self.pp, "dp": self.dp, "cp": self.cp, "tp": self.tp}

    @property
    def num_gpus(self) -> int:
        return self.dp * self.tp * self.pp * self.cp

    @cached_property
    def data(self) -> int:
        """Number of ranks that average one gradient: those of dp and cp together."""
        return self.dp * self.cp

    @cached_property
    def num_micro(self) -> int:
        """Micro-batches of each data-parallel rank in a step."""
        return self.global_batch // (self.dp * self.micro_batch)

    @cached_property
    def shard(self) -> int:
        """Ranks that split the states."""
        return choose(self.zero_group > 0, least(self.zero_group, self.data), self.data)  # type: ignore[no-any-return]

    @cached_property
    def expert_split(self) -> int:
        """Ranks over which the matrices of an expert are split."""
        if self.expert_tp is not None:
            return self.expert_tp
        return choose(self.ep > 1, 1, self.tp)  # type: ignore[no-any-return]

    @cached_property
    def expert_ranks(self) -> int:
        """Ranks that hold all experts of a layer once."""
        return self.ep * self.expert_split

    @cached_property
    def num_expert_copies(self) -> int:
        """Number of ranks that hold the same experts."""
        return most(1, self.data * self.tp // self.expert_ranks)  # type: ignore[no-any-return]

    def expert_load(self, model: PlannedModel) -> float:
        """Return the rows of experts on the rank with most, of the mean: all ranks wait for it in each layer.

        If N tokens choose k of E experts at random, each of n ranks has a mean of m = N k / n rows, and the largest
        exceeds it by q sqrt((E - k) / (E - 1) / m), where q is the mean of the largest of n normal numbers. Megatron's
        forced balance is random choices, too (`apply_random_logits`). Trained routers are less even: their imbalance
        can be stated, and is at most that of tokens which all choose experts of one rank.

        Source:  variance of the hypergeometric distribution; q as approximated by Blom 1958. Padded experts: Lepikhin
                 et al. 2021, section 2.2; Megatron-Core, `moe_pad_expert_input_to_capacity`.
        """
        if self.capacity_factor is not None:
            return self.capacity_factor
        if self.ep == 1:
            return 1.0
        chosen, local = model.experts_per_token, model.experts / self.ep
        most_rows = min(chosen, local) * self.ep / chosen
        if self.imbalance is not None:
            return min(self.imbalance, most_rows)
        rows = self.tokens / self.tp * self.expert_split * chosen
        variance = (model.experts - chosen) / max(1, model.experts - 1) / rows
        return min(1 + largest_of_normal(self.ep) * math.sqrt(variance), most_rows)

    def kept_load(self, model: PlannedModel) -> float:
        """Return the rows that the rank with most keeps, of the mean.

        Random choices make another rank the fullest in each layer, so that what all layers keep is about even.
        """
        return 1.0 if self.capacity_factor is None and self.imbalance is None else self.expert_load(model)

    @property
    def stream_split(self) -> int:
        """Number of ranks over which sequence parallelism splits the residual stream."""
        return self.tp if self.sequence_parallel else 1

    @property
    def gathered_bytes(self) -> int:
        """Size of a number that ranks gather: a parameter, or an input of products with sequence parallelism.

        Float8 with one scale per tensor is cast before it is sent (Transformer Engine, torchao); a scale for each row
        is known only to the rank that has the whole row. MXFP8 and NVFP4 are assumed to be cast after it: a backward
        pass needs them in blocks of columns, too.
        """
        return 1 if self.precision == "fp8" else 2

    @property
    def narrow(self) -> bool:
        """True if large products have numbers of 8 or 4 bits."""
        return self.precision not in ("fp32", "bf16", "fp16")

    @property
    def tokens(self) -> int:
        """Tokens of a micro-batch on one rank."""
        return self.micro_batch * self.seq_len // self.cp

    def layers_computed_again(self, layers: int) -> int:
        """Return how many layers of the heaviest stage full recomputation computes again."""
        held = self.heaviest_layers(layers)
        if self.recompute_layers is None or self.recompute_method == "uniform":
            return held
        return min(held, self.recompute_layers * self.virtual_stages)

    def layers_at_once(self, layers: int) -> int:
        """Return how many layers are computed again together, so that all of their activations exist at once."""
        if self.recompute_layers is None or self.recompute_method == "block":
            return 1
        return min(self.recompute_layers, -(-self.heaviest_layers(layers) // self.virtual_stages))

    def kept_layer_inputs(self, layers: int) -> int:
        """Return how many inputs of layers the heaviest stage keeps in order to compute them again."""
        again = self.layers_computed_again(layers)
        if self.layers_at_once(layers) == 1:
            return again
        return self.virtual_stages * -(-again // (self.virtual_stages * self.layers_at_once(layers)))

    def problems(self, model: PlannedModel) -> list[str]:
        """Return why a model cannot run with this layout, with both numbers; empty if it can."""
        degrees = {"dp": self.dp, "tp": self.tp, "pp": self.pp, "cp": self.cp, "ep": self.ep}
        degrees |= {"micro_batch": self.micro_batch, "virtual_stages": self.virtual_stages, "seq_len": self.seq_len}
        stated = {"expert_tp": self.expert_tp, "recompute_layers": self.recompute_layers}
        degrees |= {name: value for name, value in stated.items() if value is not None}
        problems = [f"{name}={value}: must be at least 1" for name, value in degrees.items() if value < 1]
        if problems:
            return problems
        if self.global_batch < 1 or self.global_batch % (self.dp * self.micro_batch):
            problems.append(
                f"global_batch={self.global_batch} does not divide by dp={self.dp} x micro_batch={self.micro_batch}"
            )
        problems += self._uneven_tensors(model)
        # Megatron can place the embedding and the loss in chunks of their own.
        alone = 2 if self.virtual_stages > 1 else 0
        if self.pp * self.virtual_stages > model.layers + alone:
            problems.append(f"pp={self.pp} x virtual_stages={self.virtual_stages} exceeds layers={model.layers}")
        if self.virtual_stages > 1 and self.pp == 1:
            problems.append(f"virtual_stages={self.virtual_stages}: needs a pipeline, pp of at least 2")
        if self.recompute_layers is not None and self.recompute != "full":
            problems.append(f"recompute_layers={self.recompute_layers}: needs recompute=full, not {self.recompute}")
        if not 0 <= self.offload_optimizer <= 1:
            problems.append(f"offload_optimizer={self.offload_optimizer:g}: must be between 0 and 1")
        if self.offload_optimizer and not self.traits.keeps_whole_copy:
            problems.append(
                "offload_optimizer: FSDP programs offload parameters, too, and Frog's nothing: not modelled"
            )
        if self.seq_len % self.cp:
            problems.append(f"seq_len={self.seq_len} does not divide by cp={self.cp}")
        problems += self._misplaced_experts(model)
        if 0 < self.zero_group < self.data and self.data % self.zero_group:
            problems.append(f"zero_group={self.zero_group} does not divide dp x cp = {self.data}")
        if self.zero not in (0, 1, 2, 3):
            problems.append(f"zero={self.zero}: must be 0 to 3")
        return problems

    def _misplaced_experts(self, model: PlannedModel) -> list[str]:
        """Return why the ranks of a stage cannot hold the experts of a layer."""
        degrees = {"ep": self.ep} | ({} if self.expert_tp is None else {"expert_tp": self.expert_tp})
        loads = {"capacity_factor": self.capacity_factor, "imbalance": self.imbalance}
        stated = {name: load for name, load in loads.items() if load is not None}
        if not model.experts:
            of_experts = {name: size for name, size in degrees.items() if size > 1} | stated
            return [f"{name}={size:g}: the model has no experts" for name, size in of_experts.items()]
        if len(stated) > 1:
            return [
                f"imbalance={self.imbalance:g}: with capacity_factor={self.capacity_factor:g} all ranks have equal rows"
            ]
        if self.imbalance is not None and self.imbalance < 1:
            return [f"imbalance={self.imbalance:g}: the rank with most rows has at least the mean, 1"]
        if self.capacity_factor is not None and self.capacity_factor <= 0:
            return [f"capacity_factor={self.capacity_factor:g}: must be above 0"]
        if model.experts % self.ep:
            return [f"experts={model.experts} do not divide by ep={self.ep}"]
        if (ranks := self.dp * self.tp * self.cp) % self.expert_ranks == 0:
            return []
        words = " x ".join(f"{name}={size}" for name, size in degrees.items())
        product = f" = {self.expert_ranks}" if len(degrees) > 1 else ""
        return [f"{words}{product} does not divide dp x tp x cp = {ranks}"]

    def _uneven_tensors(self, model: PlannedModel) -> list[str]:
        """Return what tp ranks cannot split evenly. Key/value heads may be fewer than ranks: some then hold copies."""
        tp, tokens = self.tp, self.seq_len // self.cp
        problems = [f"heads={model.heads} do not divide by tp={tp}"] if model.heads % tp else []
        if model.kv_heads % tp and tp % model.kv_heads:
            problems.append(f"kv_heads={model.kv_heads} neither divide by tp={tp} nor divide it")
        if model.layers > model.moe_layers and model.ffn % tp:
            problems.append(f"ffn={model.ffn} does not divide by tp={tp}")
        if model.moe_layers and self.expert_tp is not None and model.expert_ffn % self.expert_tp:
            problems.append(f"expert_ffn={model.expert_ffn} does not divide by expert_tp={self.expert_tp}")
        elif model.moe_layers and model.expert_ffn % self.expert_split:
            problems.append(f"expert_ffn={model.expert_ffn} does not divide by tp={tp}, which splits experts if ep=1")
        if self.sequence_parallel and tokens % tp:
            problems.append(f"seq_len / cp = {tokens} does not divide by tp={tp}, as sequence parallelism needs")
        return problems

    def notes(self, model: PlannedModel) -> list[str]:
        """Return what some programs refuse of this layout, although others run it; empty if all run it."""
        notes, chunks = [], self.pp * self.virtual_stages
        if model.layers % chunks:
            stages = f"pp {self.pp}" + (f" x {self.virtual_stages} virtual stages" if self.virtual_stages > 1 else "")
            held = model.layers // chunks
            notes.append(
                f"{model.layers} layers do not divide by {stages}: some hold {held} and some {held + 1}, "
                "which Megatron-Core refuses unless told to"
            )
        if self.virtual_stages > 1 and self.num_micro % self.pp:
            notes.append(
                f"{self.num_micro} micro-batches do not divide by pp {self.pp}, in groups of which they pass an "
                "interleaved pipeline: Frog and Megatron-LM refuse that"
            )
        return notes

    # ---- parameters --------------------------------------------------------------------------------------------------

    def heaviest_layers(self, layers: int) -> int:
        """Return the number of layers on the stage that has most."""
        return -(-layers // self.pp)

    def stage_parameters(self, model: PlannedModel) -> tuple[float, float]:
        """Return the numbers of parameters of the heaviest rank, before data-parallel ranks split them: of those that
        all of them share, and of the experts, which expert parallelism splits.
        """
        layers = self.heaviest_layers(model.layers)
        mixture = least(layers, model.moe_layers)
        dense = (layers - mixture) * model.dense_layer_parameters() + mixture * (
            model.moe_layer_shared_parameters() if model.experts else 0
        )
        ends = model.embedding_parameters() + choose(self.pp == 1, model.head_parameters(), 0)
        experts = mixture * model.experts * (model.expert_parameters() if model.experts else 0) / self.expert_ranks
        return (dense + ends) / self.tp, experts

    def split(self, shared: float, experts: float) -> float:
        """Return what one rank keeps of parameters, or of their bytes, if data-parallel ranks split them."""
        return shared / self.shard + experts / least(self.shard, self.num_expert_copies)  # type: ignore[no-any-return]


def largest_of_normal(number: int) -> float:
    """Return about the mean of the largest of so many independent numbers with a standard normal distribution."""
    from statistics import NormalDist

    return NormalDist().inv_cdf((number - 0.375) / (number + 0.25))


FROG = Traits(
    fuses_gate=False,
    keeps_whole_copy=False,
    number_bytes=FLOAT_BYTES,
    keeps_statistics=True,
    loss_keeps_gradients=True,
)
"""Frog's own program on CPUs; `estimate/programs.py` has the programs on GPUs."""


def run_layout(config: RunConfig, world_size: int) -> Layout:
    """Return the layout of a run in a world, for which it is valid."""
    strategy, train = config.strategy, config.train
    dp, is_pipeline = strategy.dp_size(world_size), strategy.pp > 1
    return Layout(
        seq_len=config.data.sequence_length,
        global_batch=train.global_batch_size,
        micro_batch=config.micro_batch_size(max(1, dp)),
        dp=dp,
        tp=strategy.tp,
        pp=strategy.pp,
        cp=strategy.cp,
        ep=strategy.ep,
        virtual_stages=strategy.virtual_stages if is_pipeline and strategy.schedule == "interleaved" else 1,
        schedule="1f1b" if strategy.schedule == "interleaved" else strategy.schedule,
        zero=strategy.entry.zero_stage,
        zero_group=strategy.shard or 0,
        sequence_parallel=strategy.sequence_parallel,
        recompute="full" if train.activation_checkpointing else "none",
        precision=train.precision,
        traits=FROG,
    )


# ---- one rank of a run -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class UnitSizes:
    """The sizes of a group of parameters: a layer, or the root (embedding, last norm, head)."""

    matrices: tuple[int, ...]
    """Elements of each matrix, in the model's order."""
    vectors: tuple[int, ...]

    @property
    def numel(self) -> int:
        return sum(self.matrices) + sum(self.vectors)


def join(units: Iterable[UnitSizes]) -> UnitSizes:
    """Join several units into one."""
    units = list(units)
    return UnitSizes(
        tuple(size for unit in units for size in unit.matrices), tuple(size for unit in units for size in unit.vectors)
    )


def unit(model: ModelConfig, rows: Iterable[Parameter], tp: int = 1, ep: int = 1) -> UnitSizes:
    """Return one rank's sizes of some rows of the table of parameters, divided by `tp` and `ep`."""

    def num_parts(row: Parameter) -> int:
        if row.kind == "expert":
            return ep
        return 1 if row.split_dim is None else tp

    sizes = [(row, row.numel(model) // num_parts(row)) for row in rows]
    return UnitSizes(
        tuple(size for row, size in sizes if len(row.dims) > 1),
        tuple(size for row, size in sizes if len(row.dims) == 1),
    )


def layer_unit(model: ModelConfig, tp: int = 1, ep: int = 1) -> UnitSizes:
    """Return one layer's parameters on one of `tp` ranks, with its share of the experts."""
    return unit(model, model.layer_parameters(), tp, ep)


def root_unit(model: ModelConfig, tp: int = 1, *, first: bool = True, last: bool = True) -> UnitSizes:
    """Return the parameters outside the layers, on a rank of the first stage, the last, both or neither.

    A rank with both has a tied embedding once.
    """
    held = {"embedding": first, "norm": last, "head": last and not (first and model.tie_word_embeddings)}
    return unit(model, (row for row in ROOT if held[row.kind]), tp)


@dataclass(frozen=True)
class RankShare:
    """One rank of a run: its place in the mesh, its stages, and the exact sizes of its tensors.

    Assumes that the run is valid; `plan/strategies.py` reports why not.
    """

    config: RunConfig
    world_size: int
    rank: int = 0

    @property
    def model(self) -> ModelConfig:
        return self.config.model

    @cached_property
    def layout(self) -> Layout:
        return run_layout(self.config, self.world_size)

    @property
    def sizes(self) -> dict[str, int]:
        return self.layout.sizes

    @cached_property
    def place(self) -> dict[str, int]:
        """This rank's coordinate on each axis."""
        coordinates, rest = {}, self.rank
        for name, size in reversed(self.sizes.items()):
            rest, coordinates[name] = divmod(rest, size)
        return coordinates

    @property
    def data_axis(self) -> str:
        return "dp" if self.sizes["cp"] == 1 else "data"

    @property
    def data_rank(self) -> int:
        return self.place["dp"] * self.sizes["cp"] + self.place["cp"]

    @property
    def shard_axis(self) -> str:
        return self.data_axis if self.layout.shard == self.layout.data else "shard"

    @property
    def replicate(self) -> int:
        return self.layout.data // self.layout.shard

    # ---- the batch ---------------------------------------------------------------------------------------------------

    @property
    def num_micro(self) -> int:
        """Micro-batches of a step; a batch that is distributed unevenly makes a rank's last ones smaller."""
        return self.config.train.grad_accum

    @property
    def stream_bytes(self) -> int:
        """x: the full residual stream between two layers: B*T*D numbers."""
        return FLOAT_BYTES * self.layout.tokens * self.model.hidden_size

    # ---- the model ---------------------------------------------------------------------------------------------------

    @property
    def is_first_stage(self) -> bool:
        return self.place["pp"] == 0

    @property
    def is_last_stage(self) -> bool:
        return self.place["pp"] == self.sizes["pp"] - 1

    @property
    def num_stages(self) -> int:
        return self.sizes["pp"] * self.layout.virtual_stages

    @cached_property
    def stages(self) -> dict[int, int]:
        """The number of layers in each stage of this rank."""
        layers = stage_layers(self.model.num_hidden_layers, self.num_stages)
        return {stage: len(layers[stage]) for stage in range(self.place["pp"], self.num_stages, self.sizes["pp"])}

    @property
    def num_layers(self) -> int:
        """The number of layers of this rank."""
        return sum(self.stages.values())

    @cached_property
    def layers(self) -> list[UnitSizes]:
        return [layer_unit(self.model, self.sizes["tp"], self.config.strategy.ep)] * self.num_layers

    def layers_of(self, experts: bool) -> list[UnitSizes]:
        """Return the experts of each layer of this rank, or the rest of each layer."""
        rows = [row for row in self.model.layer_parameters() if (row.kind == "expert") == experts]
        return [unit(self.model, rows, self.sizes["tp"], self.config.strategy.ep)] * self.num_layers

    @cached_property
    def root(self) -> UnitSizes:
        return root_unit(self.model, self.sizes["tp"], first=self.is_first_stage, last=self.is_last_stage)

    @cached_property
    def whole(self) -> UnitSizes:
        """All parameters of this rank before data parallelism shards them."""
        return join([self.root, *self.layers])

    @property
    def parameter_bytes(self) -> int:
        """P: bytes of the parameters with which one data rank computes."""
        return FLOAT_BYTES * self.whole.numel

    @property
    def partition_bytes(self) -> float:
        """The bytes of P that a rank keeps if zero shards it; experts split by `ep` are sharded over fewer ranks."""
        experts = FLOAT_BYTES * join(self.layers_of(experts=True)).numel if self.layout.ep > 1 else 0
        return self.layout.split(self.parameter_bytes - experts, experts)

    @property
    def kept_bytes(self) -> float:
        """Bytes that a strategy keeps in addition to parameters, gradients and moments.

        With separate replicas: the weights of the round's start and the outer momentum, 2 P. In 8 bits: both rounding
        errors, P and P/n.
        """
        strategy, whole = self.config.strategy, self.parameter_bytes
        rounded = strategy.compression == "int8" and self.layout.data > 1
        return 2 * whole * strategy.entry.trains_locally + (whole + whole / self.layout.data) * rounded
