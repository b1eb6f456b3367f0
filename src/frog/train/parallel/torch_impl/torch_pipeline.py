"""Pipeline parallelism with torch.distributed.pipelining: Frog's stages, torch's schedules and their executor.

The model is divided as in `stages.py`; each stage is a module, which torch's `PipelineStage` runs. Data ranks of a
stage average its gradient with FSDP2's `replicate`, once per step, when the stage's last backward pass is done; with
tensor parallelism the stage's weights are DTensors.
Comm:    as in `pipeline.py`: torch sends an output forward and a gradient back for each micro-batch and pair of
         neighbors, which are not in the events. The sum of a tied embedding's two gradients, which is Frog's own, is.
         Evaluation works differently: each stage's output is broadcast over `pp`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
)
from torch.distributed.pipelining.schedules import PipelineScheduleMulti

from frog.core.config import RunConfig
from frog.train.data import Batch
from frog.train.model.transformer import TinyTransformer
from frog.train.parallel.grid import Grid
from frog.train.parallel.model.stages import TIED, build_stages, make_tied_axis
from frog.train.parallel.schedules.schedule import stage_layers
from frog.train.parallel.strategy import Agreement, MakeOptimizer, Span, no_span
from frog.train.parallel.torch_impl.fsdp import reshard, spread
from frog.train.parallel.torch_impl.native import Native, explained, local
from frog.train.parallel.torch_impl.torch_tensor import loss_parallel_over, settle_gradients, split_model

SCHEDULES: dict[str, Any] = {
    "gpipe": ScheduleGPipe,
    "1f1b": Schedule1F1B,
    "interleaved": ScheduleInterleaved1F1B,
    "zero_bubble": ScheduleInterleavedZeroBubble,
}
"""torch's schedule classes. The last two take a list of stages; with one stage per rank the last is ZB1P."""

_step_parameters = inspect.signature(PipelineScheduleMulti.step).parameters
NO_OUTPUTS: dict[str, Any] = {"return_outputs": False} if "return_outputs" in _step_parameters else {}
"""Keeps a step from collecting the stages' outputs. torch 2.9 lacks the option and always collects them."""


class StageModule(nn.Module):
    """One stage's layers, under their names in the full model; at the ends also embedding, norm and head."""

    def __init__(
        self, model: TinyTransformer, layers: range, *, first: bool, last: bool, autocast: AbstractContextManager[Any]
    ) -> None:
        super().__init__()
        self._model, self._autocast = (model,), autocast  # a tuple keeps it from becoming a submodule
        self.layers = nn.ModuleDict({str(layer): model.layers.get_submodule(str(layer)) for layer in layers})
        if first:
            self.embed_tokens = model.embed_tokens
        if last:
            self.norm, self.lm_head = model.norm, model.lm_head

    def forward(self, x: Tensor, labels_BT: Tensor) -> Tensor:
        """Return hidden states, or after the last stage the mean loss.

        Shapes:  x: token ids (B, T) for the first stage, else (B, t, D), this rank's positions -> the latter; (1,)
        """
        (model,) = self._model
        with self._autocast:
            cos_TC, sin_TC = model.rotations(labels_BT.shape[1])
            if hasattr(self, "embed_tokens"):
                x = self.embed_tokens(x)
            for layer in self.layers.values():
                x = model.run_layer(layer, x, cos_TC, sin_TC)
            if hasattr(self, "norm"):
                x = torch.stack([model.token_loss(self.norm(x), self.lm_head.weight, labels_BT)])
        return x


class SpannedStage(PipelineStage):
    """A stage that reports when it computes."""

    span: Span = staticmethod(no_span)

    @property
    def module(self) -> StageModule:
        return self.submod  # type: ignore[return-value]

    def forward_one_chunk(self, fwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
        with self.span("forward", fwd_chunk_id):
            return super().forward_one_chunk(fwd_chunk_id, *args, **kwargs)

    def backward_one_chunk(self, bwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
        with self.span("backward", bwd_chunk_id):
            return super().backward_one_chunk(bwd_chunk_id, *args, **kwargs)

    def backward_weight_one_chunk(self, bwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
        with self.span("backward", bwd_chunk_id):
            return super().backward_weight_one_chunk(bwd_chunk_id, *args, **kwargs)

    def _get_init_p2p_neighbors_ops(self) -> list[dist.P2POp]:
        """Declare the messages between neighbors as float32: torch 2.9 sends an int64 to a float32 receiver."""
        operations = super()._get_init_p2p_neighbors_ops()
        for operation in operations:
            operation.tensor = operation.tensor.float()
        return operations


class TorchPipeline(Native):
    """torch's schedules over `pp`, `replicate` over the data ranks, DTensor over `tp`."""

    def _set_up(self, config: RunConfig, make_optimizer: MakeOptimizer) -> None:
        mesh, model = self.mesh, self.model
        grid = Grid(mesh, {"dp": mesh.data, "tp": mesh.tp})
        if (along_tp := grid.submesh("tp")) is not None:
            split_model(model, along_tp, self.config.sequence_parallel)
        self._tied = make_tied_axis(mesh) if model.config.tie_word_embeddings else None
        self.stages = self._cut(config, model)
        if (along_data := grid.submesh("dp")) is not None:
            for stage in self.stages:
                spread(stage.module, stage.module.layers.values(), along_data, "ddp")
        make_schedule = SCHEDULES[self.config.schedule]
        takes_list = issubclass(make_schedule, PipelineScheduleMulti)
        self.schedule = make_schedule(
            self.stages if takes_list else self.stages[0],
            config.train.grad_accum,
            loss_fn=self._weigh,
            scale_grads=False,
        )
        self._begin_optimizer(self._named(), make_optimizer)

    def _cut(self, config: RunConfig, model: TinyTransformer) -> list[SpannedStage]:
        """Reduce the model to this rank's stages."""
        pp = self.mesh.pp
        virtual = config.strategy.virtual_stages if config.strategy.schedule == "interleaved" else 1
        layers = stage_layers(model.config.num_hidden_layers, pp.size * virtual)
        modules = [
            StageModule(model, own, first=own == layers[0], last=own == layers[-1], autocast=self._autocast)
            for own in layers
        ]
        trained = [any(p.requires_grad for p in module.parameters()) for module in modules]
        build_stages(model, pp, virtual)
        x, between, loss = self._patterns(config)
        # Known shapes spare torch a trial run to find them out.
        return [
            SpannedStage(
                modules[number],
                number,
                len(layers),
                pp.device,
                input_args=between(any(trained[:number])) if number else x,
                output_args=(between if number < len(layers) - 1 else loss)(any(trained[: number + 1])),
                group=pp.group,
            )
            for number in range(pp.rank, len(layers), pp.size)
        ]

    def _patterns(self, config: RunConfig) -> tuple[Tensor, Callable[[bool], Tensor], Callable[[bool], Tensor]]:
        """Return sample tensors for one micro-batch: the input of the first stage, between stages, and the output.

        Shapes:  -> (B, T); (B, t, D) and (1,), with or without requires_grad
        """
        B, T, device = config.micro_batch_size(self.mesh.dp.size), config.data.sequence_length, self.mesh.pp.device
        shape = (B, self._positions(T), self.model.config.hidden_size)
        return (
            torch.zeros(B, T, dtype=torch.int64, device=device),
            lambda has_grad: torch.zeros(shape, device=device, requires_grad=has_grad),
            lambda has_grad: torch.zeros(1, device=device, requires_grad=has_grad),
        )

    def _positions(self, T: int) -> int:
        """Return the number of this rank's positions between blocks, of T."""
        return T // self.mesh.tp.size if self.config.sequence_parallel else T

    def _named(self) -> dict[str, nn.Parameter]:
        """Return the stages' parameters by their names in the full model."""
        is_tied = self.model.config.tie_word_embeddings
        return {
            TIED if is_tied and name == "lm_head.weight" else name: parameter
            for stage in self.stages
            for name, parameter in stage.module.named_parameters()
        }

    def forward_backward(self, batch: Batch, scale: Callable[[Tensor], Tensor], span: Span = no_span) -> Tensor:
        self._scale, self._total = scale, torch.zeros((), device=self.mesh.world.device)
        scale(self._total)  # a GradScaler must have scaled something before it unscales; only the last stage has a loss
        for stage in self.stages:
            stage.span = span
        tokens_NT, labels_NT = batch.tokens_ABT.flatten(0, 1), batch.labels_ABT.flatten(0, 1)
        loss_weights_A = torch.tensor(batch.loss_weight_A, device=tokens_NT.device)
        inputs = (tokens_NT,) if self.mesh.pp.rank == 0 else ()
        with loss_parallel_over(self.mesh.tp), explained(self.mesh.world, "the pipeline"):
            self.schedule.step(*inputs, target=loss_weights_A, labels_BT=labels_NT, **NO_OUTPUTS)
        settle_gradients(self.parameters.values())
        return self._total

    def _weigh(self, loss_1: Tensor, share_1: Tensor) -> Tensor:
        """Return the loss of a micro-batch, from which torch starts the backward pass."""
        loss = (loss_1 * share_1).sum()
        self._total += loss.detach()
        return self._scale(loss)

    def reduce(self, loss: Tensor, stop: bool) -> Agreement:
        weight = self.parameters.get(TIED)
        if self._tied is not None and self._tied.size > 1 and weight is not None and weight.requires_grad:
            assert weight.grad is not None
            self._tied.all_reduce(local(weight.grad))
        return super().reduce(loss, stop)

    @torch.no_grad()
    def loss(self, tokens_BT: Tensor, labels_BT: Tensor) -> Tensor:
        pp, (B, T) = self.mesh.pp, tokens_BT.shape
        x, num_stages = tokens_BT, self.stages[0].num_stages
        with loss_parallel_over(self.mesh.tp), explained(self.mesh.world, "the forward pass"):
            for number in range(num_stages):
                owner, own = number % pp.size, number // pp.size
                shape = (1,) if number == num_stages - 1 else (B, self._positions(T), self.model.config.hidden_size)
                y = torch.empty(shape, device=pp.device)
                if owner == pp.rank:
                    y.copy_(self.stages[own].module(x, labels_BT))
                pp.broadcast(y, owner)
                x = y
        reshard(stage.module for stage in self.stages)
        return x[0]

    def _counts(self, name: str) -> bool:
        return super()._counts(name) and not (name == TIED and self.mesh.pp.rank > 0)


build = TorchPipeline
"""The class that the entry in `frog.core.config.strategies` refers to."""
