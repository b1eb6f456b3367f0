"""ZeRO stages 1, 2 and 3 with DeepSpeed's engine, configured by its JSON file.

The engine owns the backward pass, the reduction, the clipping and the step; this file maps them to a step of Frog.
Every rank's partitions are slices of parameters (stages 1 and 2 divide a flat buffer of all, stage 3 divides every
parameter), exposed as shards like those of the strategies from scratch, so that checkpoints are interchangeable.
With bf16 the engine computes in bf16 weights and keeps a float32 partition of them, which is exposed and saved.
Comm:    as in zero1, zero2, zero3, inside DeepSpeed: none of it is in the events.
Source:  Rajbhandari et al. 2020.
"""

from __future__ import annotations

import importlib
import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from frog.core.config import RunConfig
from frog.core.config.deepspeed import deepspeed_path, fill_deepspeed, read_deepspeed
from frog.core.env import prepare_deepspeed
from frog.core.errors import ConfigError, UsageError
from frog.core.schema import shortened
from frog.train.comm import World
from frog.train.comm.local_shard import LocalShard, slice_shards
from frog.train.model.transformer import Attention, TinyTransformer, causal_attention
from frog.train.optim.build_optimizer import begin_state
from frog.train.optim.tensors import by_decay
from frog.train.parallel.mesh import Mesh
from frog.train.parallel.strategy import MakeOptimizer
from frog.train.parallel.torch_impl.native import Native, explained


@dataclass(frozen=True)
class EngineSlice:
    """The elements [first, first + count) of a parameter that this rank updates, or keeps if it is frozen."""

    name: str
    parameter: nn.Parameter
    first: int
    count: int
    flat: Tensor
    """The tensor with these elements, from element `start` on. For a trained parameter, the optimizer updates it."""
    start: int

    def of(self, like_flat: Tensor) -> Tensor:
        """Return these elements of a tensor that has the layout of `flat`."""
        return like_flat[self.start : self.start + self.count]


class DeepSpeed(Native):
    """DeepSpeed's engine over all ranks."""

    def __init__(
        self,
        config: RunConfig,
        mesh: Mesh,
        model: TinyTransformer,
        make_optimizer: MakeOptimizer,
        autocast: AbstractContextManager[Any] | None = None,
    ) -> None:
        if config.train.precision == "fp16":
            raise ConfigError(
                "train.precision='fp16' with strategy.implementation='deepspeed': both DeepSpeed and the trainer "
                "would scale the loss",
                "--set train.precision=bf16 needs no scaling",
            )
        super().__init__(config, mesh, model, make_optimizer)

    def _set_up(self, config: RunConfig, make_optimizer: MakeOptimizer) -> None:
        deepspeed, model = import_deepspeed(self.mesh.world), self.model
        self._fragments = importlib.import_module("deepspeed.utils")
        self.parameters = dict(model.named_parameters())
        given = self._given(config, make_optimizer)
        if self._is_stage_3:  # the loss reads this weight without calling the module that owns it
            deepspeed.zero.register_external_parameter(model, model.lm_head.weight)
        if config.train.precision == "bf16":
            _attend_in_one_precision(model)
        try:
            self._run = self.engine = deepspeed.initialize(model=model, dist_init_required=False, **given)[0]
        except ValueError as error:  # includes pydantic's, which validates DeepSpeed's file
            words = shortened(" ".join(str(error).split()), 400)
            raise ConfigError(f"{deepspeed_path(config)}: DeepSpeed rejects it: {words}", "correct it") from error
        self.zero_optimizer = self.engine.optimizer
        self.optimizer = self.zero_optimizer.optimizer
        self._runs = list(self._all_runs())
        for run in self._runs:
            if run.parameter.requires_grad:
                begin_state(self.optimizer, config.optimizer, run.flat)

    def _given(self, config: RunConfig, make_optimizer: MakeOptimizer) -> dict[str, Any]:
        """Return the filled file, and the optimizer or the parameter groups for the file's own optimizer."""
        kinds = by_decay(self.updated_tensors())
        # The first optimizer of each kind supplies the run's settings for it.
        pattern = make_optimizer([kind[0] for kind in kinds]).param_groups
        path = deepspeed_path(config)
        filled = fill_deepspeed(read_deepspeed(path), path, config, self.mesh.world.size, pattern[0])
        if "optimizer" not in filled:
            return {"config": filled, "optimizer": make_optimizer(self.updated_tensors())}
        groups = [
            {"params": [updated.tensor for updated in kind], "weight_decay": group["weight_decay"]}
            for group, kind in zip(pattern, kinds, strict=True)
        ]
        return {"config": filled, "model_parameters": groups}

    @property
    def _is_stage_3(self) -> bool:
        return self.config.name == "zero3"

    @property
    def _shards(self) -> bool:
        return True

    # ---- one step ----------------------------------------------------------------------------------------------------

    def _micro_batch(self, last: bool) -> AbstractContextManager[Any]:
        self.engine.set_gradient_accumulation_boundary(last)
        return nullcontext()

    def _backward(self, loss: Tensor) -> None:
        self.engine.backward(loss, scale_wrt_gas=False)

    def _own_gradients(self) -> list[Tensor]:
        return [gradient for _, gradient in self._gradients()]

    def clip(self, norm: float, max_norm: float) -> None:
        """Pass the limit to the engine, which clips when it takes the step, by the same formula."""
        self.zero_optimizer.clip_grad = max_norm

    def step(self, scaler: torch.amp.GradScaler) -> None:
        with explained(self.mesh.world, "the optimizer's step"):
            self.engine.step()

    def zero(self) -> None:
        """Do nothing: the engine has zeroed the gradient at the end of its step."""

    def train(self, mode: bool = True) -> None:
        self.engine.train(mode)

    # ---- local state -------------------------------------------------------------------------------------------------

    def _all_runs(self) -> Iterator[EngineSlice]:
        zero = self.zero_optimizer
        for name, parameter in self.parameters.items():
            kept: Any = parameter
            if self._is_stage_3:
                length = kept.ds_tensor.ds_numel
                first = self.mesh.data.rank * length
                count, flat, start = min(length, kept.ds_numel - first), kept.ds_tensor, 0
                if parameter.requires_grad:
                    group, start, _ = zero.grad_position[zero.get_param_id(parameter)]
                    flat = zero.fp32_partitioned_groups_flat[group]
            elif not parameter.requires_grad:
                first, count, flat, start = 0, parameter.numel(), parameter.detach().view(-1), 0
            elif kept._hp_mapping is not None:
                lies, at = kept._hp_mapping.lp_fragment_address, kept._hp_mapping.hp_fragment_address
                first, count, start = lies.start, lies.numel, at.start
                flat = zero.single_partition_of_fp32_groups[kept._hp_mapping.param_group_index]
            else:
                continue
            if count > 0:
                yield EngineSlice(name, parameter, first, count, flat, start)

    def _gradients(self) -> Iterator[tuple[EngineSlice, Tensor]]:
        for run in self._runs:
            if run.parameter.requires_grad:
                kept: Any = run.parameter
                if self._is_stage_3:
                    gradient = self._fragments.safe_get_local_grad(kept)
                else:
                    gradient = kept._hp_mapping.get_lp_grad_fragment(kept._index_in_param_group)
                yield run, gradient.flatten()[: run.count].float()

    def _shards_like(self, run: EngineSlice, values: Tensor, prefix: str = "") -> list[LocalShard]:
        whole, data = self.shapes[run.name], self.mesh.data
        is_repeated = run.count == run.parameter.numel() and not (run.parameter.requires_grad or self._is_stage_3)
        copies = (data.rank, data.size) if is_repeated else (0, 1)
        return slice_shards(prefix + run.name, values, run.first, whole, (0,) * len(whole), whole, copies)

    def parameter_shards(self) -> list[LocalShard]:
        return [shard for run in self._runs for shard in self._shards_like(run, run.of(run.flat.detach()))]

    def gradient_shards(self) -> list[LocalShard]:
        return [shard for run, gradient in self._gradients() for shard in self._shards_like(run, gradient)]

    def _shards_of_moment(self, moment: str) -> list[LocalShard]:
        state = self.optimizer.state
        trained = [run for run in self._runs if run.parameter.requires_grad]
        return [
            shard for run in trained for shard in self._shards_like(run, run.of(state[run.flat][moment]), f"{moment}/")
        ]

    def loaded(self, shards: Sequence[LocalShard]) -> None:
        """Refresh the engine's copies of the float32 partitions, as at the end of a step."""
        zero = self.zero_optimizer
        if not self._is_stage_3:
            zero.update_lp_params()
            return
        zero._partition_all_parameters()
        for group in range(len(zero.fp16_groups)):
            zero._reassign_or_swap_out_partitioned_parameters(group)
        if zero.persistent_parameters:
            zero.persistent_parameters[0].all_gather(zero.persistent_parameters)


build = DeepSpeed
"""The class that the entry in `frog.core.config.strategies` refers to."""


def _attend_in_one_precision(model: TinyTransformer) -> None:
    """Convert queries and keys to the values' dtype: with bf16 weights their float32 rotations return float32."""
    for module in model.modules():
        if isinstance(module, Attention):
            module.attend = lambda q, k, v: causal_attention(q.to(v.dtype), k.to(v.dtype), v)


def import_deepspeed(world: World) -> Any:
    """Import the package and prepare it for this world. Raises UsageError if it is not installed."""
    prepare_deepspeed(world.env.local_rank, on_cpu=world.device.type == "cpu")
    logging.disable(logging.INFO)  # it logs where it looked for a GPU
    try:
        deepspeed = importlib.import_module("deepspeed")
    except ImportError as error:
        raise UsageError(
            f"strategy.implementation='deepspeed': DeepSpeed cannot be imported: {error}",
            "pip install 'frog[deepspeed]'",
        ) from None
    finally:
        logging.disable(logging.NOTSET)
    logging.getLogger("DeepSpeed").setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", r"`torch\.distributed\.\w+_tensor` is deprecated", FutureWarning)  # its own calls
    # Otherwise DeepSpeed compiles its own collective for CPUs, which takes a compiler and minutes.
    importlib.import_module("deepspeed.ops").__compatible_ops__["deepspeed_shm_comm"] = False
    if not dist.is_initialized():
        store = dist.HashStore()  # type: ignore[attr-defined]
        world.backend.start(world.env, world.device, world.timeout_s, store)
    return deepspeed
