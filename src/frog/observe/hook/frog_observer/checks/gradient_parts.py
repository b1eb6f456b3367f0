"""What each backward pass brings to a parameter's gradient, before anything reduces, scales or clears it.

A hook on the parameter takes the gradient as it comes. Of at most `_MOST` parameters of an optimizer four dot products
of sampled elements are kept. They add up as gradients do, so that the gradient which the optimizer uses can be compared
with the sum of what all backward passes on all ranks have brought, whatever buckets or buffers it went through.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterable
from typing import Any

from . import fingerprints

_MOST, _MOST_SAMPLES = 48, 16
"""Most parameters of an optimizer whose gradients are taken, evenly spaced among all, and most gradients of each in a
backward pass: with reentrant checkpoints several come."""


_LEAST_NUMBERS = 32
"""Fewest elements that tell in which type gradients were: few may have few digits by chance."""


class GradientParts:
    """Takes gradients between the beginning and the end of a backward pass."""

    def __init__(self) -> None:
        self._handles: list[Any] = []
        self._taken: dict[tuple[int, int], list[Any] | None] = {}
        """Samples of the gradients that came, by optimizer and place in it; None if one could not be read."""

    def begin(self, optimizers: Iterable[tuple[int, Any]]) -> None:
        """Hook the parameters of some optimizers, numbered, for one backward pass."""
        self.forget()
        for number, optimizer in optimizers:
            for index, parameter in watched(optimizer):
                take = functools.partial(self._take, (number, index))
                self._handles.append(parameter.register_hook(take))

    def _take(self, key: tuple[int, int], gradient: Any) -> None:
        # within autograd: an error here would be one of the program
        try:
            with sys.modules["torch"].no_grad():
                sample = None if gradient.is_sparse else fingerprints.sampled(gradient)
        except Exception:  # a tensor of another kind
            sample = None
        earlier = self._taken.get(key, [])
        is_known = sample is not None and earlier is not None and len(earlier) < _MOST_SAMPLES
        self._taken[key] = [*(earlier or ()), sample] if is_known else None

    def end(self, optimizers: Iterable[tuple[int, Any]]) -> dict[str, dict[int, dict[int, list[float]]]]:
        """Remove the hooks; return the parts of what came, and of gradients that are there although none came.

        Those are of parameters that a wrapper gathers for the forward: it leaves the reduced gradient of the rank's
        shard. Each is given by optimizer and place in it.
        """
        kinds: dict[str, list[tuple[int, int, Any]]] = {"brought": [], "left": []}
        for number, optimizer in optimizers:
            for index, parameter in watched(optimizer):
                samples = self._taken.get((number, index), [])
                if samples:
                    kinds["brought"] += [(number, index, sample) for sample in samples]
                elif samples is not None and parameter.grad is not None and not parameter.grad.is_sparse:
                    kinds["left"].append((number, index, fingerprints.sampled(parameter.grad)))
        self.forget()
        return {name: _by_optimizer(each) for name, each in kinds.items() if each}

    def forget(self) -> None:
        """Remove the hooks, and what they have taken."""
        for handle in self._handles:
            handle.remove()
        self._handles, self._taken = [], {}


def watched(optimizer: Any) -> list[tuple[int, Any]]:
    """Return the parameters of an optimizer whose gradients are taken, each with its place in it."""
    if getattr(optimizer, "named_parts", None) is not None:
        return []  # it holds flat tensors, and not the module's parameters
    parameters = [each for group in getattr(optimizer, "param_groups", ()) for each in group["params"]]
    own = [(index, each) for index, each in enumerate(parameters) if each.requires_grad and each.is_leaf]
    own = [(index, each) for index, each in own if not each.is_meta]
    return own[:: max(1, -(-len(own) // _MOST))]


def of_step(optimizer: Any) -> dict[int, list[float]]:
    """Return the parts of the gradients that an optimizer is about to use."""
    held = [(index, each.grad) for index, each in watched(optimizer)]
    samples = [
        (0, index, fingerprints.sampled(each)) for index, each in held if each is not None and not each.is_sparse
    ]
    return _by_optimizer(samples).get(0, {})


def digits_of(optimizer: Any) -> str | None:
    """Return the type in half precision that can hold each sampled element of an optimizer's gradients in float32.

    None if none can, or too few elements are not zero.
    """
    torch: Any = sys.modules["torch"]
    kinds, count = [torch.bfloat16, torch.float16], 0
    for _, parameter in watched(optimizer):
        gradient = parameter.grad
        if gradient is None or gradient.is_sparse or gradient.dtype != torch.float32:
            continue
        sample = fingerprints.sampled(gradient)
        kinds = [kind for kind in kinds if bool((sample.to(kind).to(sample.dtype) == sample).all())]
        if not kinds:  # as a rule at the first parameter
            return None
        count += int((sample != 0).sum())
    return str(kinds[0]).rpartition(".")[2] if count >= _LEAST_NUMBERS else None


def _by_optimizer(samples: list[tuple[int, int, Any]]) -> dict[int, dict[int, list[float]]]:
    """Return the sums of four dot products of samples, with ten digits, by optimizer and place in it."""
    totals: dict[int, dict[int, list[float]]] = {}
    for (number, index, _), parts in zip(samples, fingerprints.parts_of([each for *_, each in samples])):  # noqa: B905
        known = totals.setdefault(number, {}).get(index, [0.0] * 4)
        totals[number][index] = [one + other for one, other in zip(known, parts)]  # noqa: B905
    return {number: {index: _rounded(each) for index, each in sums.items()} for number, sums in totals.items()}


def _rounded(numbers: list[float]) -> list[float]:
    return [float(f"{each:.10g}") if each - each == 0 else 0.0 for each in numbers]
