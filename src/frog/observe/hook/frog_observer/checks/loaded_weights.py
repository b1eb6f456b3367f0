"""What becomes of the weights that a program loads: whether they are those of the file, and those that it trains.

`torch.load` gives the bits of a file's tensors, `load_state_dict` those of the module before and after it, and the next
step of an optimizer those that training begins with.
"""

from __future__ import annotations

import weakref
from typing import Any

from . import fingerprints, module_facts
from .program_objects import ProgramObjects, parameters_of

_MOST_FILES, _MOST_LOADS, _MOST_TENSORS = 8, 8, 4096
_MOST_NAMES = 4
_LEAST_ELEMENTS = 4
"""Fewer elements may be equal, or stay the same, by chance."""

Tensors = dict[str, list[Any]]
"""By plain name: shape, type and bits."""


class LoadedWeights:
    """Follows the weights of files into the modules that an optimizer trains."""

    def __init__(self, objects: ProgramObjects) -> None:
        self._objects = objects
        self._files: list[Tensors] = []
        self._loads: list[tuple[Any, Tensors, Any]] = []
        """Modules that were loaded since the last step, as weak references, with their weights then and the line."""

    def on_file(self, held: Any) -> None:
        """Take what was read from a file."""
        for state in _states_of(held):
            own = _described(state)
            parts = {name.partition(".")[0] for name in own}
            # a prefix of all names may be that of a wrapper or of a larger model
            inner = {name.partition(".")[2]: each for name, each in own.items()} if len(parts) == 1 else {}
            self._files = [*self._files, own, inner][-_MOST_FILES:]

    def before_load(self, module: Any) -> Tensors:
        """Return a module's weights before a state is loaded into it."""
        return _weights_of(module)

    def after_load(self, module: Any, before: Tensors, line: Any) -> dict[str, Any]:
        """Take a load of a module; return what differs from the file."""
        after = _weights_of(module)
        for each in module.parameters():
            self._objects.drawn_last.pop(id(each), None)
        self._loads = [*self._loads, (weakref.ref(module), after, line)][-_MOST_LOADS:]
        fitting = [each for each in self._files if _fit(each, after)]
        # those that are in a module now are of no further use; what all models begin with, such as ones, says nothing
        self._files = [each for each in self._files if not _shares_a_matrix(each, after)]
        if not fitting or not after:
            return {}
        file = fitting[-1]
        if before == after and file in self._files:
            return {"ignored": sorted(file)[:_MOST_NAMES]}
        of_file = {each[2]: name for name, each in file.items()}
        moved = [
            [name, of_file[each[2]]]
            for name, each in after.items()
            if set(file) == set(after) and each[2] != file[name][2] and each[2] in of_file
        ]
        return {"moved": moved[:_MOST_NAMES]} if moved else {}

    def at_step(self) -> list[dict[str, Any]]:
        """Return what became of the loads since the last step, now that an optimizer is about to step."""
        self._files = []
        loads, self._loads = [(reference(), *each) for reference, *each in self._loads], []
        if not loads:
            return []
        trained = {id(each) for _, optimizer in self._objects.optimizers for each in parameters_of(optimizer)}
        called = {id(part) for _, root in self._objects.roots for part in root.modules()}
        loaded = {id(each) for module, *_ in loads if module is not None for each in module.parameters()}
        found: list[dict[str, Any]] = []
        later: set[int] = set()
        """Parameters into which a later one of the loads has written."""
        for module, weights, line in reversed(loads):
            own = list(module.named_parameters()) if module is not None else []
            if any(id(each) in trained for _, each in own):
                lost = [(name, each) for name, each in own if id(each) not in later and _differs(weights, name, each)]
                drawn = (self._objects.drawn_last.get(id(each)) for _, each in lost)
                line = next((each for each in drawn if each is not None), line)
                found.append({"call": "loaded", "line": line, **_part([name for name, _ in lost], weights)})
            elif id(module) not in called:
                others = [(name, each) for name, each in self._trained(trained) if id(each) not in loaded]
                lost = [(name, each) for name, each in others if _differs(weights, name, each)]
                part = _part([name for name, _ in lost], weights)
                found.append({"call": "loaded_aside", "line": line, "gone": module is None, **part})
            else:
                lost = self._copies_that_differ([each for each in own if id(each[1]) not in later])
                part = _part([name for name, _ in lost], weights)
                found.extend([{"call": "loaded_masters", "line": line, **part}] if lost else [])
            later |= {id(each) for _, each in own}
        return found

    def _copies_that_differ(self, own: list[tuple[str, Any]]) -> list[tuple[str, Any]]:
        """Return the parameters of a module of which an optimizer holds copies with other numbers, as master weights.

        Copies are in no module, and have the parameters' shapes in the same order.
        """
        members = {id(each) for _, root in self._objects.roots for each in root.parameters()}
        held = [each for _, optimizer in self._objects.optimizers for each in parameters_of(optimizer)]
        copies = [each for each in held if id(each) not in members]
        learning = [(name, each) for name, each in own if each.requires_grad]
        if [each.shape for each in copies] != [each.shape for _, each in learning]:
            return []
        pairs = zip(learning, copies)  # noqa: B905 Python 3.9
        return [each for each, copy in pairs if fingerprints.bits(copy.to(each[1].dtype)) != fingerprints.bits(each[1])]

    def _trained(self, trained: set[int]) -> list[tuple[str, Any]]:
        named = [each for _, root in self._objects.roots for each in root.named_parameters()]
        return [(name, each) for name, each in named if id(each) in trained]


def _part(lost: list[str], weights: Tensors) -> dict[str, Any]:
    """Return names of weights that are lost, and how many of the matrices they are: norms and biases look alike."""
    names = [module_facts.plain_name(name) for name in lost]
    matrices = [name for name, each in weights.items() if len(each[0]) > 1] or list(weights)
    return {"lost": names[:_MOST_NAMES], "part": len(set(names) & set(matrices)) / max(1, len(matrices))}


def _states_of(held: Any, depth: int = 0) -> list[dict[str, Any]]:
    """Return the mappings of names to tensors in what was read from a file."""
    if not isinstance(held, dict) or depth > 2:
        return []
    own = {str(name): each for name, each in held.items() if hasattr(each, "is_floating_point")}
    inner = [state for each in list(held.values())[:40] for state in _states_of(each, depth + 1)]
    return [own, *inner] if own else inner


def _weights_of(module: Any) -> Tensors:
    named = dict(module.named_parameters())
    if len(named) > _MOST_TENSORS or any(each.is_meta for each in named.values()):
        return {}
    return _described(named)


def _described(named: dict[str, Any]) -> Tensors:
    """Return what stands for tensors in floating point, or for this rank's shards of them, by their plain names."""
    kept = [(name, each) for name, each in named.items() if _is_weight(each)][:_MOST_TENSORS]
    bits = fingerprints.bits_of([each for _, each in kept])
    return {
        module_facts.plain_name(name): [*_kind_of(each), own]
        for (name, each), own in zip(kept, bits)  # noqa: B905 Python 3.9
    }


def _kind_of(tensor: Any) -> list[Any]:
    local = fingerprints.local_of(tensor)
    return [list(local.shape), str(local.dtype)]


def _is_weight(tensor: Any) -> bool:
    return bool(tensor.is_floating_point() and tensor.numel() >= _LEAST_ELEMENTS and tensor.dim() > 0)


def _shares_a_matrix(file: Tensors, weights: Tensors) -> bool:
    bits = {each[2] for each in file.values() if len(each[0]) > 1}
    return any(each[2] in bits for each in weights.values() if len(each[0]) > 1)


def _fit(file: Tensors, weights: Tensors) -> bool:
    """True if most tensors of a module have the names, shapes and types of a file's."""
    fit = sum(name in file and file[name][:2] == each[:2] for name, each in weights.items())
    return 2 * fit > len(weights)


def _differs(weights: Tensors, name: str, tensor: Any) -> bool:
    """True if a tensor has the name, the shape and the type of a weight that was loaded, and other numbers."""
    known = weights.get(module_facts.plain_name(name))
    if known is None or known[:2] != _kind_of(tensor):
        return False
    return bool(fingerprints.bits(tensor) != known[2])
