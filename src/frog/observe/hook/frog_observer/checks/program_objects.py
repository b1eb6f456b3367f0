"""The modules, optimizers and parameters of a program: their numbers, their names, and the lines that made them."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from . import fingerprints, module_facts

_MOST_PARAMETERS, _MOST_OUTSIDE = 20_000, 200


class ProgramObjects:
    """What the program has made so far; writes what is new of it."""

    def __init__(self, write: Callable[[dict[str, Any]], None]) -> None:
        self._write = write
        self.roots = Known()
        """The outermost modules."""
        self.optimizers = Known()
        self.has_stepped = False
        """True after the first step."""
        self._made: dict[int, Any] = {}
        """The line that created a parameter or an optimizer, by id: torch swaps no tensor that has a weak reference."""
        self._ddp: list[tuple[Any, Any]] = []
        """Weak references to DDP's wrappers, and the ranks of their groups."""
        self._tables: dict[int, list[Any]] = {}
        self.outside: dict[tuple[int, str], dict[str, Any]] = {}
        """Parameters with a gradient before a step that no optimizer held."""
        self.modes_set: Any = weakref.WeakSet()
        """The modules that were set to training or evaluation mode."""
        self._drawn: dict[int, dict[tuple[Any, ...], int]] = {}
        """How often each line has drawn the elements of a parameter, by id, before the first step."""
        self.drawn_last: dict[int, Any] = {}
        """The line that has drawn a parameter last, by id, since a state was loaded into it."""
        self.lowered: Any = None
        """The line that moved a module to half precision last."""
        self.seed: Any = None
        """The seed that the program set last before the first step, and the line that did."""
        self._seeds: dict[int, Any] = {}
        """The seed that was set when a parameter was made, by the parameter's id."""
        self._selected: dict[int, Any] = {}
        """The line that decided last whether a parameter needs a gradient, by id."""
        self._selections: dict[Any, set[bool]] = {}
        """What each such line decided."""
        self._frozen: dict[int, Any] = {}
        """The line that made DDP's wrapper, by the id of each parameter that needed no gradient then."""
        self._schedules: dict[int, Any] = {}
        """The line that made an optimizer's scheduler, by the optimizer's id."""
        self._members: set[int] = set()
        """Modules that are part of an outermost one, by id."""
        self._strangers = Known()
        """Modules that were called inside of an outermost one and are no part of it, as those in a list."""

    def on_made(self, thing: Any, line: Any, is_optimizer: bool = False) -> None:
        """Take the line that made a parameter or an optimizer."""
        if is_optimizer:
            self.optimizers.number(thing)
        self._made.pop(id(thing), None)  # an earlier thing had the same address
        for known in (self._drawn, self.drawn_last, self._frozen):
            known.pop(id(thing), None)
        if line is not None and len(self._made) < _MOST_PARAMETERS:
            self._made[id(thing)] = line
        self._selected.pop(id(thing), None)
        if not is_optimizer and not self.has_stepped and len(self._seeds) < _MOST_PARAMETERS:
            self._seeds[id(thing)] = self.seed

    def on_selected(self, parameter: Any, line: Any) -> None:
        """Take a line that decides whether a parameter needs a gradient."""
        if line is not None and len(self._selected) < _MOST_PARAMETERS:
            self._selected[id(parameter)] = line
            self._selections.setdefault(tuple(line), set()).add(bool(parameter.requires_grad))

    def selected_at(self, parameter: Any) -> Any:
        """Return the line that chose which parameters need a gradient, and this one with them; None if none chose."""
        line = self._selected.get(id(parameter))
        return line if line is not None and len(self._selections[tuple(line)]) > 1 else None

    def on_schedule(self, optimizer: Any, line: Any) -> None:
        """Take the line that made a scheduler of an optimizer's learning rate."""
        if line is not None:
            self._schedules[id(optimizer)] = line

    def on_ddp(self, wrapper: Any, line: Any) -> None:
        """Take a new wrapper of DDP, and the line that made it."""
        self._made[id(wrapper)] = line
        for each in wrapper.module.parameters():
            self._frozen.pop(id(each), None)
            if line is not None and not each.requires_grad:
                self._frozen[id(each)] = line
        group = wrapper.process_group
        distributed: Any = sys.modules["torch.distributed"]
        self._ddp.append((weakref.ref(wrapper), distributed.get_process_group_ranks(group)))

    def on_drawn(self, parameter: Any, line: Any) -> None:
        """Take a line that draws the elements of a parameter."""
        if line is not None and len(self._drawn) < _MOST_PARAMETERS:
            counts = self._drawn.setdefault(id(parameter), {})
            counts[tuple(line)] = counts.get(tuple(line), 0) + 1
            self.drawn_last[id(parameter)] = line

    def gradients(self) -> list[Any]:
        """Return the gradients of all optimizers' parameters; None for a parameter without."""
        return [each for _, optimizer in self.optimizers for each in gradients_of(optimizer)]

    def kinds_in_ddp(self, module: Any) -> list[tuple[str, str]]:
        """Return types and devices of a module's parameters if DDP has wrapped it, or a part of it."""
        wrappers = [reference() for reference, _ in self._ddp]
        if not any(each is not None and module in (each, each.module) for each in wrappers):
            return []
        return [(str(each.dtype), str(each.device)) for each in module.parameters()]

    def made_at(self, thing: Any) -> Any:
        """Return the line that made a parameter or an optimizer; None if unknown."""
        return self._made.get(id(thing))

    def clipped(self, parameters: list[Any]) -> dict[str, Any]:
        """Return which optimizers' parameters are all clipped."""
        held, covers = {id(each) for each in parameters}, []
        for number, optimizer in self.optimizers:
            own = parameters_of(optimizer)
            if any(id(each) in held for each in own) and all(id(each) in held for each in own if each.grad is not None):
                covers.append(number)
        return {"covers": covers}

    def on_inner(self, module: Any) -> None:
        """Take a module that was called inside an outermost one."""
        if id(module) in self._members:
            return
        self._members |= {id(each) for _, root in self.roots for each in root.modules()}
        if id(module) not in self._members:
            self._members.add(id(module))
            self._strangers.number(module)

    def root(self, module: Any) -> int:
        """Return the number of an outermost module; write what it is when it is new."""
        is_new = not self.roots.has(module)
        number = self.roots.number(module)
        if is_new:
            wrapper = self.wrapper_of(module)
            self._write(
                {
                    "kind": "module",
                    "module": number,
                    "class": type(module).__name__,
                    "wrapper": module_facts.kind_of(module),
                    "inside": type(wrapper).__name__ if wrapper is not None and wrapper is not module else None,
                    "broadcasts": None if wrapper is None else bool(wrapper.broadcast_buffers),
                    "made": self.made_at(wrapper) if wrapper is not None else None,
                    "shards": any(module_facts.kind_of(each) == "fsdp2" for each in module.modules()),
                    "modes": any(map(module_facts.has_modes, module.modules())),
                    "untied": self._untied(module),
                    "adapters": module_facts.adapters(module),
                    "adapters_selected": self._adapters_selected(module),
                    "lowered": module_facts.lowered_buffers(module),
                    "reduction": module_facts.reduction_of(module),
                }
            )
        return number

    def _untied(self, module: Any) -> Any:
        """Return the names of an embedding and a head that the model's configuration ties and that are two tensors."""
        head = module_facts.untied_head(module)
        names = {id(each): module_facts.plain_name(name) for name, each in module.named_parameters()}
        return None if head is None else [names.get(id(head), "the head"), self.made_at(head)]

    def _adapters_selected(self, module: Any) -> Any:
        """Return the line that decided last that the first adapter of a model needs a gradient, or that it needs none.

        A name that no adapter has chooses none of them: other parameters must be chosen at this line.
        """
        named = (each for name, each in module.named_parameters() if "lora_" in name)
        first = next(named, None)
        return None if first is None else self.selected_at(first)

    def wrapper_of(self, module: Any) -> Any:
        """Return the DDP wrapper that a module is, or whose module it is; None if there is none."""
        for reference, _ in self._ddp:
            wrapper = reference()
            if wrapper is not None and (wrapper is module or wrapper.module is module):
                return wrapper
        return None

    def module_name(self, module: Any) -> str:
        for _, root in self.roots:
            for name, each in root.named_modules():
                if each is module:
                    return f"{module_facts.plain_name(name) or 'the model'} ({type(module).__name__})"
        return type(module).__name__

    def _names(self) -> dict[int, tuple[int, list[str]]]:
        """Return the outermost module and the names of each parameter, by id."""
        by_parameter: dict[int, tuple[int, list[str]]] = {}
        for number, root in self.roots:
            for name, parameter in root.named_parameters(remove_duplicate=False):
                names = by_parameter.setdefault(id(parameter), (number, []))[1]
                if module_facts.plain_name(name) not in names:
                    names.append(module_facts.plain_name(name))
        return by_parameter

    def _owners(self) -> dict[int, str]:
        """Return the class of the module that has each parameter, by the parameter's id."""
        modules = [module for _, root in self.roots for module in root.modules()]
        return {id(each): type(module).__name__ for module in modules for each in module.parameters(recurse=False)}

    def update_table(self, number: int, optimizer: Any, is_sampled: bool) -> None:
        """Write which parameters an optimizer has, if they have changed; of flat tensors, in sampled steps."""
        if not is_sampled and number in self._tables and hasattr(optimizer, "named_parts"):
            return
        parts = parts_of(optimizer)
        parameters = parameters_of(optimizer) if parts is None else [each[3] for each in parts]
        now = [id(each) for each in parameters] if parts is None else [[each[:3], each[3].shape] for each in parts]
        if self._tables.get(number) == now:
            return
        self._tables[number] = now
        names, replicas, owners = self._names(), self._replicas(), self._owners()
        groups = {id(each): place for place, group in enumerate(optimizer.param_groups) for each in group["params"]}
        described = [
            {
                **self._described(each, names, replicas),
                "owner": owners.get(id(each), ""),
                "group": groups.get(id(each)),
                "frozen_in_ddp": self._frozen.get(id(each)),
            }
            for each in parameters
        ]
        if parts is not None:
            for each, (name, offset, whole, _, _) in zip(described, parts):  # noqa: B905 Python 3.9
                each.update(names=[name], offset=list(offset), whole=list(whole), trained=True)
        self._write(
            {
                "kind": "parameters",
                "optimizer": number,
                "class": type(optimizer).__name__,
                "made": self.made_at(optimizer),
                "schedule": self._schedules.get(id(optimizer)),
                "lowered": self.lowered,
                "parameters": described,
            }
        )

    def _described(self, parameter: Any, names: Any, replicas: Any) -> dict[str, Any]:
        root, own = names.get(id(parameter), (None, []))
        facts = {
            "names": own,
            "module": root,
            "shape": list(parameter.shape),
            "dtype": str(parameter.dtype).rpartition(".")[2],
            "trained": bool(parameter.requires_grad),
            "made": self.made_at(parameter),
            "ddp": replicas.get(id(parameter)),
            "constant": is_constant(parameter),
            "seed": self._seeds.get(id(parameter)),
            "selected": self.selected_at(parameter),
        }
        counts = self._drawn.get(id(parameter), {})
        if max(counts.values(), default=0) > 1:
            line = max(counts, key=lambda line: counts[line])
            facts["drawn"], facts["drawn_at"] = counts[line], list(line)
        mesh = getattr(parameter, "device_mesh", None)
        if mesh is not None:
            facts["placements"] = [str(each) for each in parameter.placements]
            facts["mesh"] = mesh.mesh.tolist()
        return facts

    def _replicas(self) -> dict[int, list[int]]:
        """Return the ranks on which DDP keeps each parameter equal, by the parameter's id."""
        ranks_by_parameter = {}
        for reference, ranks in self._ddp:
            wrapper = reference()
            ignored = getattr(wrapper, "parameters_to_ignore", ()) if wrapper is not None else ()
            for name, parameter in wrapper.module.named_parameters() if wrapper is not None else ():
                if name not in ignored:
                    ranks_by_parameter[id(parameter)] = ranks
        return ranks_by_parameter

    def note_outside(self, module: int) -> None:
        """Remember the parameters that have a gradient now and that no optimizer holds.

        module: the number of the outermost module that was called last.
        """
        optimizers = [optimizer for _, optimizer in self.optimizers]
        if any(getattr(optimizer, "named_parts", None) is not None for optimizer in optimizers):
            return  # it holds flat tensors, and not the module's parameters
        held = {id(each) for optimizer in optimizers for each in parameters_of(optimizer)}
        for number, root in self.roots:
            for name, parameter in root.named_parameters():
                if parameter.grad is None or id(parameter) in held or len(self.outside) >= _MOST_OUTSIDE:
                    continue
                made = self.made_at(parameter)
                self.outside[number, name] = {"module": number, "name": module_facts.plain_name(name), "made": made}
        for number, stranger in self._strangers:
            for name, parameter in stranger._parameters.items():
                if parameter is None or parameter.grad is None or id(parameter) in held:
                    continue
                whole = f"{name} of a {type(stranger).__name__}"
                self.outside[-1 - number, whole] = {
                    "module": module,
                    "name": whole,
                    "made": self.made_at(parameter),
                    "stranger": True,
                }


class Known:
    """Objects of the program, numbered in the order in which they were seen, without keeping them alive."""

    def __init__(self) -> None:
        self._numbers: dict[int, tuple[Any, int]] = {}

    def has(self, thing: Any) -> bool:
        reference, _ = self._numbers.get(id(thing), (None, 0))
        return reference is not None and reference() is thing

    def number(self, thing: Any) -> int:
        if not self.has(thing):
            number = 1 + max((number for _, number in self._numbers.values()), default=-1)
            self._numbers[id(thing)] = weakref.ref(thing), number
        return self._numbers[id(thing)][1]

    def __iter__(self) -> Iterator[tuple[int, Any]]:
        for reference, number in list(self._numbers.values()):
            thing = reference()
            if thing is not None:
                yield number, thing


def parts_of(optimizer: Any) -> list[Any] | None:
    """Return the parts of parameters of which an optimizer's flat tensors consist, if it tells; None if it does not.

    Each is a name, the place of its first element in the whole parameter, the whole's shape, the part, its gradient.
    """
    named_parts = getattr(optimizer, "named_parts", None)
    return None if named_parts is None else list(named_parts())


def parameters_of(optimizer: Any) -> list[Any]:
    parts = parts_of(optimizer)
    if parts is not None:
        return [part for _, _, _, part, _ in parts]
    return [each for group in getattr(optimizer, "param_groups", ()) for each in group["params"]]


def gradients_of(optimizer: Any) -> list[Any]:
    return held(optimizer)[1]


def held(optimizer: Any) -> tuple[list[Any], list[Any], list[Any] | None]:
    """Return parameters, gradients and, of parts, the place of each in its whole parameter and the whole's shape."""
    parts = parts_of(optimizer)
    if parts is None:
        parameters = parameters_of(optimizer)
        return parameters, [each.grad for each in parameters], None
    places = [(offset, whole) for _, offset, whole, _, _ in parts]
    return [part for _, _, _, part, _ in parts], [gradient for *_, gradient in parts], places


def learning_rates(optimizer: Any) -> list[float | None]:
    return [
        fingerprints.finite_or_none(float(group["lr"])) if "lr" in group else None for group in optimizer.param_groups
    ]


def state_types(optimizer: Any) -> list[list[str]]:
    """Return the types of each parameter's moments."""
    torch: Any = sys.modules["torch"]
    types = []
    for parameter in parameters_of(optimizer):
        state = optimizer.state.get(parameter) or {}
        kinds = {
            str(each.dtype).rpartition(".")[2]
            for each in state.values()
            if isinstance(each, torch.Tensor) and each.numel() > 1
        }
        types.append(sorted(kinds))
    return types


def is_constant(tensor: Any) -> bool:
    """True if all elements are equal, as those of a new bias or norm are."""
    if tensor.is_meta:
        return True
    elements = fingerprints.sampled(tensor)  # a rank's shard of a DTensor may be empty
    return elements.numel() == 0 or bool((elements == elements[0]).all())
