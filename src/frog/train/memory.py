"""What a rank's memory is taken up by: parameters, gradients, optimizer state, activations. Measured, in bytes.

The first three are storages that can be asked for their size. Activations are what autograd saves in the forward pass
for the backward pass; they are counted as they come and go, so that their peak is known.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from frog.parallel.strategy import Strategy
from frog.runs import EventWriter


def storage_bytes(tensors: Iterable[Tensor | None]) -> int:
    """Bytes of the storages behind `tensors`. Views share one, which counts once, and whole."""
    storages = {}
    for tensor in tensors:
        if tensor is not None:
            storage = _plain(tensor).untyped_storage()
            storages[storage.data_ptr()] = storage.nbytes()
    return sum(storages.values())


def optimizer_bytes(optimizers: Iterable[torch.optim.Optimizer], further: Iterable[Tensor] = ()) -> int:
    """Bytes of what optimizers remember of every element; counts of steps, one number each, are left out."""
    remembered = (
        value
        for optimizer in optimizers
        for state in optimizer.state.values()
        for value in state.values()
        if isinstance(value, Tensor) and value.dim() > 0
    )
    return storage_bytes([*remembered, *further])


def memory_fields(strategy: Strategy, activations: int) -> dict[str, int]:
    """The sizes of a `memory` event: what a strategy holds after a backward pass, and the activations measured."""
    return {
        "parameters": storage_bytes(shard.tensor for shard in strategy.parameter_shards()),
        "gradients": storage_bytes(shard.tensor for shard in strategy.gradient_shards()),
        "optimizer": optimizer_bytes([strategy.optimizer], strategy.further_state()),
        "activations": activations,
    }


class ActivationMeter:
    """What autograd holds of the forward pass, as it holds it. A storage that is saved twice counts once."""

    def __init__(self, model: nn.Module) -> None:
        self.live_bytes, self.peak_bytes = 0, 0
        self._model = model
        self._savers: dict[int, int] = {}
        """How many saved tensors lie in a storage, by its address."""

    def pack(self, tensor: Tensor) -> _Saved:
        saved = _Saved(tensor)
        storage = _plain(tensor).untyped_storage()
        # Asked each time: a strategy may give its parameters another storage during a step.
        if tensor.is_floating_point() and storage.data_ptr() not in self._lasting():
            address, num_bytes = storage.data_ptr(), storage.nbytes()
            self._savers[address] = self._savers.get(address, 0) + 1
            if self._savers[address] == 1:
                self.live_bytes += num_bytes
                self.peak_bytes = max(self.peak_bytes, self.live_bytes)
            weakref.finalize(saved, self._release, address, num_bytes)
        return saved

    def _lasting(self) -> set[int]:
        """The storages of parameters and buffers."""
        lasting = (*self._model.parameters(), *self._model.buffers())
        return {_plain(tensor).untyped_storage().data_ptr() for tensor in lasting}

    def _release(self, address: int, num_bytes: int) -> None:
        self._savers[address] -= 1
        if self._savers[address] == 0:
            self.live_bytes -= num_bytes


class _Saved:
    """A saved tensor, wrapped so that its release can be seen."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor


@contextmanager
def measure_activations(model: nn.Module) -> Iterator[ActivationMeter]:
    """Count what autograd saves of the forward passes run inside; read `peak_bytes` afterwards.

    Left out: parameters and buffers, which stay; integers, which are token ids that the batch holds anyway; and with
    activation checkpointing the insides of the one layer that the backward pass is at, which it computes again.
    Assumes: plain eager training. torch.compile saves tensors that this does not see.
    """
    meter = ActivationMeter(model)
    with saved_tensors_hooks(meter.pack, lambda saved: saved.tensor):
        yield meter


@contextmanager
def watch_memory(strategy: Strategy, events: EventWriter, wanted: bool) -> Iterator[None]:
    """Around a step's forward and backward passes: emit what memory is taken up by. Costs a little time."""
    if not wanted:
        yield
        return
    with measure_activations(strategy.model) as meter:
        yield
    events.emit("memory", step=events.step, **memory_fields(strategy, meter.peak_bytes))


def _plain(tensor: Tensor) -> Tensor:
    """What a rank itself holds of a DTensor, or of a collective's result on its way; any other tensor as it is."""
    local: Tensor = getattr(tensor, "_local_tensor", tensor)
    return getattr(local, "elem", local)
