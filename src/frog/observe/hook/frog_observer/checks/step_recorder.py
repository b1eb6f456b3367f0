"""What one rank does between two steps of its optimizers, and in them.

A step ends when an optimizer has changed its parameters. In a sampled step the tensors are read too.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import weakref
from collections.abc import Iterator
from typing import Any

from ..place import Place  # noqa: TID252 its absolute name differs below a launcher
from . import fingerprints, gradient_parts, kept_graphs, module_facts, module_sums, user_lines
from .loaded_weights import LoadedWeights
from .program_objects import ProgramObjects, gradients_of, held, learning_rates, parameters_of, state_types
from .record_file import RecordFile
from .user_lines import HandWriters

_FIRST_STEPS = 3
"""Steps at the beginning that are always sampled."""
_MOST_CALLS, _MOST_FORWARDS, _MOST_BATCHES = 64, 64, 4096


class StepRecorder:
    """Collects what happens between two steps and writes it at their end."""

    def __init__(self, place: Place, every: int) -> None:
        self.is_on = True
        self._every, self._pid = every, os.getpid()
        self._thread = threading.main_thread().ident
        self._file = RecordFile(place, every)
        self.objects = ProgramObjects(self.write)
        self.writers = HandWriters(self.on_call)
        self.loads = LoadedWeights(self.objects)
        self._depth, self.in_backward = 0, False
        self._handles: list[Any] = []
        self._num_steps, self._num_batches, self._num_backwards = 0, 0, 0
        self._steps: dict[int, int] = {}
        self._stale: dict[int, Any] = {}
        """Bits of the gradients with which each optimizer stepped last, while no look has found them cleared."""
        self._added: set[int] = set()
        """Optimizers of which a backward pass has added to such gradients."""
        self._forwards: list[dict[str, Any]] = []
        self._backwards: list[dict[str, Any]] = []
        self._calls: list[dict[str, Any]] = []
        self._parts = gradient_parts.GradientParts()
        self._graphs = kept_graphs.KeptGraphs()
        self._masks: dict[int, dict[int, Any]] = {}
        """The random states with which each layer that drops was called in a forward, and the line, by its id."""
        self.pending: list[tuple[Any, dict[str, Any]]] = []
        """What the program reduces asynchronously and has not waited for, with the records of the calls."""
        self._scaled: list[tuple[Any, Any]] = []
        """Losses that a GradScaler has multiplied since the last step, as weak references, and the scaler."""
        self._before: tuple[int, dict[str, Any]] | None = None
        self._saw_nan = False
        self.has_messages = False
        """True if the program has sent or received a message between two ranks."""
        self.has_exchanges = False
        """True if the program has called a collective that gives ranks parts of each other's activations."""
        self._has_learned, self._asked_modes = False, False
        self._begun = 0
        """The outermost module that was called last, by id."""
        self.until_learning: list[tuple[Any, str]] = []
        """Functions that are watched until the first forward that learns, with their class."""
        self._by_framework = False
        """True while the outermost module was called by a library, and no user's line inside it is known."""
        self._ids: tuple[int, Any] | None = None
        """The words that a module is looking up, and how deep it is among the modules."""
        self.iterations: dict[int, int] = {}
        """The last iteration over each DataLoader, by its number."""
        asked = module_sums.asked()
        self._modules = module_sums.ModuleSums(asked) if asked else None
        """What each module computes, for a comparison with a run on one rank."""

    # ---- when to read ------------------------------------------------------------------------------------------------

    @property
    def is_sampled(self) -> bool:
        """True if the step that is under way is one whose tensors are read."""
        return self._num_steps < _FIRST_STEPS or (self._num_steps + 1) % self._every == 0

    @property
    def _iteration(self) -> int:
        """The step that is under way, as the optimizer counts that has taken most: a program may have many."""
        return 1 + max(self._steps.values(), default=0)

    @property
    def is_after_backward(self) -> bool:
        """True between the end of a backward pass and the optimizer's step, outside of any module."""
        return bool(self._backwards) and not self.in_backward and self._depth == 0 and self._before is None

    @property
    def is_in_module(self) -> bool:
        """True while a module computes, as far as modules are hooked."""
        return self._depth > 0

    @property
    def learns(self) -> bool:
        """True in an outermost forward that builds a graph, as far as modules are hooked."""
        return self._depth > 0 and not self.in_backward and bool(self._forwards) and bool(self._forwards[-1]["grad"])

    @property
    def is_in_step(self) -> bool:
        """True while an optimizer changes its parameters."""
        return self._before is not None

    def is_here(self) -> bool:
        """True in the rank's main thread, outside of what a compiler traces."""
        compiler: Any = getattr(sys.modules.get("torch"), "compiler", None)
        if compiler is not None and compiler.is_compiling():  # first: the compiler follows nothing after it
            return False
        return self.is_on and os.getpid() == self._pid and threading.get_ident() == self._thread

    def is_beside(self) -> bool:
        """True in another thread of the rank than the main one."""
        return self.is_on and os.getpid() == self._pid and threading.get_ident() != self._thread

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """Read tensors without autograd, and without the program's dispatch modes; stop for good after an error."""
        torch: Any = sys.modules["torch"]
        try:
            with torch.no_grad(), torch.utils._python_dispatch._disable_current_modes():
                yield
        except Exception as error:  # another version of torch, a tensor of another kind, a full disk
            self.stop(f"{type(error).__name__}: {error}")

    def stop(self, why: str) -> None:
        """Record nothing from now on, and say so in the file."""
        self.write({"kind": "stopped", "why": why[:500]})
        self.is_on = False
        self.hook_modules()

    def write(self, line: dict[str, Any]) -> None:
        """Append a line to the rank's file."""
        self.is_on = self.is_on and self._file.write(line)

    def hook_modules(self) -> None:
        """Hook the modules for a step that is sampled, and no longer for others: hooks cost time in every module."""
        module: Any = sys.modules["torch.nn.modules.module"]
        if self.is_sampled and self.is_on and not self._handles:
            self._handles = [
                module.register_module_forward_pre_hook(self.on_forward),
                module.register_module_forward_hook(self.after_forward, always_call=True),
            ]
            self.writers.watch_parameters()
        elif self._handles and not (self.is_sampled and self.is_on):
            for handle in self._handles:
                handle.remove()
            self._handles, self._depth, self._ids = [], 0, None
            self.writers.ignore()

    # ---- what happens between two steps ------------------------------------------------------------------------------

    def on_forward(self, module: Any, args: Any) -> None:
        """Take the beginning of a module's forward. Only the outermost one counts."""
        if not self.is_here():
            return
        if self.is_sampled and module_facts.drops(module):
            self._note_mask(module)
        if self.in_backward:
            return
        self._depth += 1
        if self._ids is None and self.is_sampled and args and module_facts.are_ids(args[0]):
            self._ids = self._depth, args[0]
        if self._depth > 1:
            self._note_inner(module)
        if self._depth > 1 or len(self._forwards) >= _MOST_FORWARDS:
            return
        if next(module.parameters(), None) is None:
            return
        torch: Any = sys.modules["torch"]
        learns = bool(torch.is_grad_enabled())
        with self.reading():
            record: dict[str, Any] = {
                "module": self.objects.root(module),
                "training": bool(module_facts.inside(module).training),
                "grad": learns,
                "line": user_lines.line_of(sys._getframe(2)),
            }
            wrapper = self.objects.wrapper_of(module)
            if wrapper is not None:
                record["sync"] = bool(getattr(wrapper, "require_backward_grad_sync", True))
            if self.is_sampled:
                record["rows"] = fingerprints.rows([args, _kwargs_of(sys._getframe(2))])
                record["random"] = module_facts.random_state()
                self._note_facts(module, record)
                if self._modules is not None:
                    self._modules.begin(record["module"], module, [each for _, each in self.objects.optimizers])
            self._begun = id(module)
            self._by_framework = not user_lines.is_called_by_user(sys._getframe(2))
            self._forwards.append(record)

    def _note_mask(self, module: Any) -> None:
        """Note with which random numbers a layer drops; in a backward pass, whether it did so in the forward."""
        with self.reading():
            state, known = module_facts.random_state(), self._masks.setdefault(id(module), {})
            if not self.in_backward:
                known[state] = user_lines.line_of(sys._getframe(3))
            elif known and state not in known:
                line = next(iter(known.values()))
                self.on_call({"call": "redrawn", "module": self.objects.module_name(module), "line": line})

    def _note_inner(self, module: Any) -> None:
        """Take the beginning of a module inside the outermost one: where the user calls it, and whether it belongs."""
        # Lightning calls the wrapper, and that the user's training step
        if self._by_framework and self._forwards and user_lines.is_called_by_user(sys._getframe(3)):
            self._forwards[-1]["line"] = user_lines.line_of(sys._getframe(3))
            self._by_framework = False
        if self.is_sampled and module._parameters:
            with self.reading():
                self.objects.on_inner(module)

    def _note_facts(self, module: Any, record: dict[str, Any]) -> None:
        """Note what an outermost forward begins with."""
        learns = record["training"] and record["grad"]
        if not learns and not record["training"] and not self._has_learned:
            record["early"] = module_facts.estimates_norms(module)
        if not record["training"] and not record["grad"] and not any("buffers" in each for each in self._forwards):
            buffers = module_facts.own_statistics(module, self.objects.wrapper_of(module))
            record.update({"buffers": buffers} if buffers else {})
        if learns and not self._asked_modes:
            record["unset"] = module_facts.unset_mode(module, self.objects.modes_set)
            self._asked_modes = True
        if learns and not any(forward["grad"] for forward in self._forwards):
            others = module_facts.weights_of_others(module, self.objects.optimizers)
            record.update({"others": others} if others else {})
        if learns:
            user_lines.remove(self.until_learning)
        self._has_learned = self._has_learned or learns
        if module_facts.autocasts():
            record["autocast"] = True

    def after_forward(self, module: Any, args: Any, output: Any) -> None:
        """Take the end of a module's forward, also after an exception."""
        if self.in_backward or not self.is_here():
            return
        if self._ids is not None and self._ids[0] >= self._depth:
            self._ids = None
        self._depth = max(0, self._depth - 1)
        if not self._forwards or not self.is_sampled:
            return
        torch: Any = sys.modules["torch"]
        multiplies = self._forwards[-1].get("autocast") and module_facts.multiplies(module)
        if self._depth == 0 or multiplies:
            with self.reading():
                self._note_end(module, output, bool(multiplies))
        if self._modules is not None and torch.is_grad_enabled():
            with self.reading():
                self._modules.output(module, output, user_lines.line_of(sys._getframe(2)))
        if self._saw_nan or not isinstance(output, torch.Tensor) or not output.is_floating_point():
            return
        with self.reading():
            if not fingerprints.is_finite(output):
                self._saw_nan = True
                self._calls.append(
                    {
                        "call": "not_finite",
                        "module": self.objects.module_name(module),
                        "line": user_lines.line_of(sys._getframe(2)),
                    }
                )

    def _note_end(self, module: Any, output: Any, multiplies: bool) -> None:
        """Note what a module's forward, the outermost one or one inside of it, ends with.

        multiplies: True for a layer that autocast computes in half precision.
        """
        record = self._forwards[-1]
        size = output.element_size() if multiplies and hasattr(output, "element_size") else 0
        if size in (2, 4):  # autocast leaves float64 as it is
            record["lowered"] = record.get("lowered", False) or size == 2
        is_same = self._begun == id(module) and "random" in record
        if self._depth == 0:
            self._graphs.mark(output, self._iteration, "output", record["line"])
        if self._depth == 0 and is_same:
            record["draws"] = module_facts.random_state() != record["random"]
            if not record["training"] and not module_facts.in_training(module):
                record["noisy"] = record["draws"]

    def on_scaled(self, scaler: Any, loss: Any) -> None:
        """Take a loss that a GradScaler has multiplied."""
        if self.is_sampled and len(self._scaled) < _MOST_FORWARDS:
            self._scaled.extend((weakref.ref(each), scaler) for each in fingerprints.tensors_of(loss))

    def on_backward(self, loss: Any, line: Any, retains: bool = False) -> None:
        """Take the beginning of a backward pass."""
        self.in_backward = True
        self._num_backwards += 1
        self.writers.ignore_gradients()
        record: dict[str, Any] = {"line": line, **({"retains": True} if retains else {})}
        if len(self._backwards) < _MOST_FORWARDS:
            self._backwards.append(record)
        if not self.is_sampled:
            return
        with self.reading():
            self._graphs.mark(loss, self._iteration, "loss", line)
            record["graph"] = module_facts.graph_of(loss)
            scaler = next((scaler for reference, scaler in self._scaled if reference() is loss is not None), None)
            if scaler is not None:
                record["scale"] = float(scaler.get_scale())
            if loss is not None and loss.numel() == 1 and not hasattr(loss, "_local_tensor"):
                record["loss"] = fingerprints.finite_or_none(float(loss.detach()))
            self._parts.begin(self.objects.optimizers)
            # later micro-batches of a step begin with what the first one has added
            known = {number: self._bits_of_stale(number) for number in list(self._stale)}
            others = (each for number, each in self.objects.optimizers if number not in known)
            held_now = (gradient for each in others for gradient in gradients_of(each))
            record["adds"] = any(map(any, known.values())) or any(
                any(fingerprints.bits_of([each])) for each in held_now
            )

    def _bits_of_stale(self, number: int) -> list[int | None]:
        """Return the bits of the gradients that an optimizer's last step left, and forget them if they were cleared."""
        optimizer, before = self._stale[number]
        now = fingerprints.bits_of(gradients_of(optimizer())) if optimizer() is not None else []
        if not any(now) or (number not in self._added and not any(map(_same, before, now))):
            self._stale.pop(number)
            self._added.discard(number)
        return now

    def after_backward(self) -> None:
        """Take the end of a backward pass: remember the gradients' bits, to see whether they change before the step."""
        self.in_backward = False
        if not self.is_sampled or not self._backwards:
            self._parts.forget()
            return
        with self.reading():
            now = self._gradient_bits()
            self._backwards[-1]["bits"] = now
            known = {number: gradient_parts.digits_of(optimizer) for number, optimizer in self.objects.optimizers}
            digits = {number: kind for number, kind in known.items() if kind is not None}
            self._backwards[-1].update({"digits": digits} if digits else {})
            parts = self._parts.end(self.objects.optimizers)
            if self._num_backwards <= _MOST_FORWARDS:
                self._backwards[-1].update(parts)
            else:  # more than are kept: what they brought together is not known
                self._backwards[-1].pop("brought", None)
            for number, (_, before) in self._stale.items():
                if any(map(_grew, before, now.get(number, ()))):
                    self._added.add(number)
            self.writers.watch_gradients(self.objects.gradients())

    def on_call(self, record: dict[str, Any]) -> None:
        """Take a call of a watched function."""
        if len(self._calls) < _MOST_CALLS:
            self._calls.append(record)

    def on_save_beside(self, held: Any, path: Any, line: Any) -> None:
        """Take what another thread is about to save, if it has tensors that an optimizer of the rank changes."""
        optimizers = self.objects.optimizers
        changed = {fingerprints.storage_of(each) for _, optimizer in optimizers for each in parameters_of(optimizer)}
        if changed & {fingerprints.storage_of(each) for each in fingerprints.tensors_of(held)} - {None}:
            where = os.path.abspath(path) if isinstance(path, (str, os.PathLike)) else None
            self.on_call({"call": "save", "live": True, "path": where, "line": line})

    def on_batch(self, record: dict[str, Any]) -> None:
        """Take a batch of a DataLoader."""
        self._num_batches += 1
        if self._num_batches <= _MOST_BATCHES:
            self.write({"kind": "batch", "step": self._num_steps, **record})

    def on_waited(self, work: Any) -> None:
        """Take the end of a collective for which the program waits."""
        for place, (each, record) in enumerate(self.pending):
            if each is work:
                record["waited"] = True
                del self.pending[place]
                return

    def _gradient_bits(self) -> dict[int, list[int | None]]:
        """Return the bits of each optimizer's gradients, by its number."""
        optimizers = self.objects.optimizers
        return {number: fingerprints.bits_of(gradients_of(optimizer)) for number, optimizer in optimizers}

    def uses_added_gradients(self) -> bool:
        """True if the gradients are those that the last of several backward passes left."""
        if not self.is_sampled or len(self._backwards) < 2:
            return False
        with self.reading():
            bits = self._backwards[-1].get("bits")
            now = self._gradient_bits()
            return bits is not None and now == bits
        return False

    def words_without_vector(self, total: Any) -> list[int]:
        """Return the words whose row in a sum over ranks is zero, if it is the first sum in a module of words."""
        if self._ids is None or self.in_backward:
            return []
        (_, ids), self._ids = self._ids, None
        return module_facts.zero_rows(ids, total)

    # ---- the optimizer's step ----------------------------------------------------------------------------------------

    def before_step(self, optimizer: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Read what the optimizer is about to use: of an optimizer with a closure, when that has computed it."""
        if not self.is_here():
            return None
        line = user_lines.line_of(sys._getframe(2))
        closure = args[1] if len(args) > 1 else (kwargs or {}).get("closure")
        if not callable(closure):
            self._read_before(optimizer, line)
            return None
        self._before = None

        def then_read(*of_closure: Any) -> Any:
            loss = closure(*of_closure)
            if self._before is None and self.is_here():  # an optimizer may call it again, with other weights
                self._read_before(optimizer, line)
            return loss

        return ((args[0], then_read, *args[2:]), kwargs) if len(args) > 1 else (args, {**kwargs, "closure": then_read})

    def _read_before(self, optimizer: Any, line: Any) -> None:
        self.writers.ignore_gradients()
        with self.reading():
            number = self.objects.optimizers.number(optimizer)
            self.objects.update_table(number, optimizer, self.is_sampled)
            for load in self.loads.at_step():
                self.on_call(load)
            record: dict[str, Any] = {"line": line, "lr": learning_rates(optimizer)}
            clipped = vars(optimizer).pop("clipped", None)
            if clipped is not None:
                self.on_call(
                    {"call": "clip", "line": None, "norm": fingerprints.finite_or_none(clipped[0]), "limit": clipped[1]}
                )
            if self.is_sampled:
                parameters, gradients, places = held(optimizer)
                record["gradients"] = fingerprints.bits_and_norms(gradients)
                record["before"] = fingerprints.bits_of(parameters)
                record["parts"] = gradient_parts.of_step(optimizer)
                if self._modules is not None:
                    record["gradient_sums"] = module_sums.of_tensors(gradients, places)
                    record["before_sums"] = module_sums.of_tensors(parameters, places)
                record["stale"] = number in self._stale and number in self._added
                self.objects.note_outside(self._forwards[-1]["module"] if self._forwards else 0)
                record["samples"] = [fingerprints.sampled(each) for each in parameters]
                record["used"] = [None if each is None else fingerprints.sampled(each) != 0 for each in gradients]
                bits = [None if each is None else each[0] for each in record["gradients"]]
                self._stale[number] = weakref.ref(optimizer), bits
            else:
                self._stale.pop(number, None)
            self._added.discard(number)
            self._before = number, record

    def after_step(self, optimizer: Any, args: Any = (), kwargs: Any = None) -> None:
        """Read what the optimizer has changed, and write the step."""
        if not self.is_here() or not self._before or self._before[0] != self.objects.optimizers.number(optimizer):
            return
        number, record = self._before
        self._before = None
        with self.reading():
            step = self._steps[number] = self._steps.get(number, 0) + 1
            if "samples" in record:
                parameters, _, places = held(optimizer)
                record["weights"] = fingerprints.bits_and_norms(parameters)
                if self._modules is not None:
                    record["weight_sums"] = module_sums.of_tensors(parameters, places)
                record["changed"] = list(map(_changed, record.pop("samples"), parameters, record.pop("used")))
                record["state"] = state_types(optimizer)
                roots = [module for _, module in self.objects.roots]
                record["kept"] = self._graphs.look(self._iteration - 1, sys._getframe(1), roots)
            self.write(
                {
                    "kind": "step",
                    "optimizer": number,
                    "step": step,
                    "number": self._num_steps + 1,
                    **record,
                    **(self._modules.take() if self._modules is not None else {}),
                    "forwards": self._forwards,
                    "backwards": self._backwards,
                    "calls": self._calls,
                    "messages": self.has_messages,
                    "exchanges": self.has_exchanges,
                }
            )
            self._num_steps += 1
            self.objects.has_stepped = True
            self._forwards, self._backwards, self._calls = [], [], []
            self.pending.clear()
            self._num_backwards = 0
            self._masks.clear()
            self._scaled.clear()
            self.writers.forget()
            user_lines.remove(self.until_learning)
            self.hook_modules()

    def at_end(self) -> None:
        """Write what is known at the end of the program."""
        if os.getpid() == self._pid:
            with self.reading():
                self.write(
                    {
                        "kind": "end",
                        "steps": self._num_steps,
                        "calls": self._calls,
                        "outside": list(self.objects.outside.values()),
                        "messages": self.has_messages,
                        "exchanges": self.has_exchanges,
                        "backwards": len(self._backwards),
                    }
                )


def _kwargs_of(frame: Any) -> Any:
    """Return the keyword arguments of the forward that torch's own function is about to call: hooks do not get them."""
    for _ in range(3):
        if frame is None:
            return None
        if frame.f_code.co_filename.endswith(os.path.join("nn", "modules", "module.py")) and "kwargs" in frame.f_locals:
            return frame.f_locals["kwargs"]
        frame = frame.f_back
    return None


def _changed(before: Any, parameter: Any, used: Any) -> float | None:
    """Return which part of the sampled elements with a gradient a step has changed; None if none has one."""
    after = fingerprints.sampled(parameter)
    if after.shape != before.shape or used is None or used.shape != after.shape:
        return None
    num_used = int(used.sum())
    return int(((after != before) & used).sum()) / num_used if num_used else None


def _same(one: Any, other: Any) -> bool:
    """True if a gradient is there, is not zero, and has the same bits."""
    return one is not None and one != 0 and one == other


def _grew(old: Any, new: Any) -> bool:
    """True if a backward pass has added to a gradient that was not zero."""
    return bool(old) and new is not None and old != new
