"""A rank's measured memory use, in bytes: parameters, gradients, optimizer state, activations.

The first three are storages with a known size. Activations are the tensors that autograd saves in the forward pass
for the backward pass; the meter counts each allocation and release to find their peak.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from frog.core.runs import EventWriter
from frog.train.parallel.strategy import Strategy


def storage_bytes(tensors: Iterable[Tensor | None]) -> int:
    """Return the bytes of the storages behind `tensors`. A storage shared by views counts once, at full size."""
    storages = {}
    for tensor in tensors:
        if tensor is not None:
            storage = _plain(tensor).untyped_storage()
            storages[storage.data_ptr()] = storage.nbytes()
    return sum(storages.values())


def optimizer_bytes(optimizers: Iterable[torch.optim.Optimizer], further: Iterable[Tensor] = ()) -> int:
    """Return the bytes of per-element optimizer state, without scalar step counts."""
    remembered = (
        value
        for optimizer in optimizers
        for state in optimizer.state.values()
        for value in state.values()
        if isinstance(value, Tensor) and value.dim() > 0
    )
    return storage_bytes([*remembered, *further])


def memory_fields(strategy: Strategy, activations: int) -> dict[str, int]:
    """Return the sizes for a `memory` event: the strategy's tensors after a backward pass, and the activations."""
    parameters, gradients = strategy.held()
    return {
        "parameters": storage_bytes(parameters),
        "gradients": storage_bytes(gradients),
        "optimizer": optimizer_bytes([strategy.optimizer], strategy.further_state()),
        "activations": activations,
    }


class ActivationMeter:
    """Tracks the bytes that autograd saves in the forward pass. A storage that is saved twice counts once."""

    def __init__(self, model: nn.Module) -> None:
        self.live_bytes, self.peak_bytes = 0, 0
        self._model = model
        self._savers: dict[int, int] = {}
        """Number of saved tensors per storage, by address."""

    def pack(self, tensor: Tensor) -> _Saved:
        saved = _Saved(tensor)
        storage = _plain(tensor).untyped_storage()
        # Look them up each time: a strategy may move its parameters to another storage during a step.
        if tensor.is_floating_point() and storage.data_ptr() not in self._parameter_storages():
            address, num_bytes = storage.data_ptr(), storage.nbytes()
            self._savers[address] = self._savers.get(address, 0) + 1
            if self._savers[address] == 1:
                self.live_bytes += num_bytes
                self.peak_bytes = max(self.peak_bytes, self.live_bytes)
            weakref.finalize(saved, self._release, address, num_bytes)
        return saved

    def _parameter_storages(self) -> set[int]:
        """Return the storage addresses of parameters and buffers."""
        lasting = (*self._model.parameters(), *self._model.buffers())
        return {_plain(tensor).untyped_storage().data_ptr() for tensor in lasting}

    def _release(self, address: int, num_bytes: int) -> None:
        self._savers[address] -= 1
        if self._savers[address] == 0:
            self.live_bytes -= num_bytes


class _Saved:
    """Wrapper of a saved tensor; a finalizer on it reports the release."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor


@contextmanager
def measure_activations(model: nn.Module) -> Iterator[ActivationMeter]:
    """Count the bytes that autograd saves in forward passes inside this block; read `peak_bytes` afterwards.

    Not counted: parameters and buffers, which are not activations; integers, which are token ids that the batch holds
    anyway; with activation checkpointing, the activations inside the one layer that the backward pass recomputes.
    Assumes: plain eager training. The meter does not see tensors that torch.compile saves.
    """
    meter = ActivationMeter(model)
    with saved_tensors_hooks(meter.pack, lambda saved: saved.tensor):
        yield meter


@contextmanager
def watch_memory(strategy: Strategy, events: EventWriter, wanted: bool) -> Iterator[None]:
    """Measure a step's forward and backward passes and emit a `memory` event. Costs a little time."""
    if not wanted:
        yield
        return
    with measure_activations(strategy.model) as meter:
        yield
    events.emit("memory", step=events.step, **memory_fields(strategy, meter.peak_bytes))


def _plain(tensor: Tensor) -> Tensor:
    """Return the local tensor of a DTensor or of an asynchronous collective; any other tensor unchanged."""
    local: Tensor = getattr(tensor, "_local_tensor", tensor)
    return getattr(local, "elem", local)
