"""What one rank did in each step of its optimizers, written to `checks.jsonl` line by line.

A step ends when an optimizer has changed its parameters. In a sampled step the tensors are read too.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
import weakref
from collections.abc import Iterator
from typing import Any

from .. import frames  # noqa: TID252 its absolute name differs below a launcher
from ..place import Place  # noqa: TID252 its absolute name differs below a launcher
from . import fingerprints, gradient_parts, module_facts, module_sums

NAME = "checks.jsonl"
_FIRST_STEPS = 3
"""Steps at the beginning that are always sampled."""
_MOST_BYTES = 64 << 20
_MOST_CALLS, _MOST_FORWARDS, _MOST_BATCHES, _MOST_PARAMETERS = 64, 64, 4096, 20_000
_MOST_GRAPH_NODES, _MOST_OUTSIDE, _MOST_WRITERS = 6, 200, 8


class StepRecorder:
    """Collects what happens between two steps and writes it at their end."""

    def __init__(self, place: Place, every: int) -> None:
        self.is_on = True
        self._place, self._every, self._pid = place, every, os.getpid()
        self._thread = threading.main_thread().ident
        self._file: Any = None
        self._bytes = 0
        self._roots = _Known()
        self._optimizers = _Known()
        self._made: dict[int, Any] = {}
        """The line that created a parameter or an optimizer, by id: torch swaps no tensor that has a weak reference."""
        self._ddp: list[tuple[Any, Any]] = []
        """Weak references to DDP's wrappers, and the ranks of their groups."""
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
        self._tables: dict[int, list[Any]] = {}
        self._parts = gradient_parts.GradientParts()
        self._masks: dict[int, dict[int, Any]] = {}
        """The random states with which each layer that drops was called in a forward, and the line, by its id."""
        self.pending: list[tuple[Any, dict[str, Any]]] = []
        """What the program reduces asynchronously and has not waited for, with the records of the calls."""
        self._before: tuple[int, dict[str, Any]] | None = None
        self._saw_nan = False
        self._outside: dict[tuple[int, str], dict[str, Any]] = {}
        """Parameters with a gradient before a step that no optimizer held."""
        self.has_messages = False
        """True if the program has sent or received a message between two ranks."""
        self.has_exchanges = False
        """True if the program has called a collective that gives ranks parts of each other's activations."""
        self.modes_set: Any = weakref.WeakSet()
        """The modules that were set to training or evaluation mode."""
        self.initialized: dict[int, dict[tuple[Any, ...], int]] = {}
        """How often each line has drawn the elements of a parameter, by id, before the first step."""
        self._has_learned, self._asked_modes = False, False
        self._begun = 0
        """The outermost module that was called last, by id."""
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
        self.until_learning: list[tuple[Any, str]] = []
        """Functions that are watched until the first forward that learns, with their class."""
        self.writers: list[tuple[Any, str, Any]] = []
        """Methods that change a parameter, with the class that gets them for sampled steps."""
        self.gradient_writers: list[tuple[str, Any]] = []
        """Methods of torch.Tensor that change a gradient, watched between a backward pass and the step."""
        self._unwatched: dict[str, Any] = {}
        """What torch.Tensor itself has under their names while they are watched."""
        self._gradient_storages: set[Any] = set()
        self._written: set[Any] = set()
        """Lines of the user's that have changed a parameter since the last step."""
        self._schedules: dict[int, Any] = {}
        """The line that made an optimizer's scheduler, by the optimizer's id."""
        self._by_framework = False
        """True while the outermost module was called by a library, and no user's line inside it is known."""
        self._members: set[int] = set()
        """Modules that are part of an outermost one, by id."""
        self._strangers = _Known()
        """Modules that were called inside of an outermost one and are no part of it, as those in a list."""
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
        if not self.is_on:
            return
        try:
            if self._file is None:
                os.makedirs(self._place.folder, exist_ok=True)
                path = os.path.join(self._place.folder, NAME)
                self._file = open(path, "w", encoding="ascii")  # noqa: SIM115 it lives as long as the process
                self._put(self._header())
            if self._bytes > _MOST_BYTES:
                self._put({"kind": "stopped", "why": f"the file has reached {_MOST_BYTES >> 20} MiB"})
                self.is_on = False
                return
            self._put(line)
            if line["kind"] != "step" or "gradients" in line:
                self._file.flush()
        except OSError as error:
            self.is_on = False
            print(f"frog check records nothing more on rank {self._place.rank}: {error}", file=sys.stderr)

    def _put(self, line: dict[str, Any]) -> None:
        text = json.dumps(line, separators=(",", ":"))
        self._bytes += len(text) + 1
        self._file.write(text + "\n")

    def _header(self) -> dict[str, Any]:
        return {
            "kind": "start",
            "format": 1,
            "rank": self._place.rank,
            "world_size": self._place.world_size,
            "pid": self._pid,
            "every": self._every,
            "torch": str(getattr(sys.modules.get("torch"), "__version__", "")),
        }

    def hook_modules(self) -> None:
        """Hook the modules for a step that is sampled, and no longer for others: hooks cost time in every module."""
        module: Any = sys.modules["torch.nn.modules.module"]
        if self.is_sampled and self.is_on and not self._handles:
            self._handles = [
                module.register_module_forward_pre_hook(self.on_forward),
                module.register_module_forward_hook(self.after_forward, always_call=True),
            ]
            for owner, name, method in self.writers:
                setattr(owner, name, method)
        elif self._handles and not (self.is_sampled and self.is_on):
            for handle in self._handles:
                handle.remove()
            self._handles, self._depth, self._ids = [], 0, None
            self._ignore_gradient_writers()
            _remove([(owner, name) for owner, name, _ in self.writers])

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
                "module": self._root(module),
                "training": bool(module_facts.inside(module).training),
                "grad": learns,
                "line": line_of(sys._getframe(2)),
            }
            wrapper = self._wrapper_of(module)
            if wrapper is not None:
                record["sync"] = bool(getattr(wrapper, "require_backward_grad_sync", True))
            if self.is_sampled:
                record["rows"] = fingerprints.rows([args, _kwargs_of(sys._getframe(2))])
                record["random"] = module_facts.random_state()
                self._note_facts(module, record)
                if self._modules is not None:
                    self._modules.begin(record["module"], module, [each for _, each in self._optimizers])
            self._begun = id(module)
            self._by_framework = not _is_called_by_user(sys._getframe(2))
            self._forwards.append(record)

    def _note_mask(self, module: Any) -> None:
        """Note with which random numbers a layer drops; in a backward pass, whether it did so in the forward."""
        with self.reading():
            state, known = module_facts.random_state(), self._masks.setdefault(id(module), {})
            if not self.in_backward:
                known[state] = line_of(sys._getframe(3))
            elif known and state not in known:
                line = next(iter(known.values()))
                self.on_call({"call": "redrawn", "module": self._module_name(module), "line": line})

    def _note_inner(self, module: Any) -> None:
        """Take the beginning of a module inside the outermost one: where the user calls it, and whether it belongs."""
        # Lightning calls the wrapper, and that the user's training step
        if self._by_framework and self._forwards and _is_called_by_user(sys._getframe(3)):
            self._forwards[-1]["line"] = line_of(sys._getframe(3))
            self._by_framework = False
        if self.is_sampled and id(module) not in self._members and module._parameters:
            with self.reading():
                self._members |= {id(each) for _, root in self._roots for each in root.modules()}
                if id(module) not in self._members:
                    self._members.add(id(module))
                    self._strangers.number(module)

    def _note_facts(self, module: Any, record: dict[str, Any]) -> None:
        """Note what an outermost forward begins with."""
        learns = record["training"] and record["grad"]
        if not learns and not record["training"] and not self._has_learned:
            record["early"] = module_facts.estimates_norms(module)
        if not record["training"] and not record["grad"] and not any("buffers" in each for each in self._forwards):
            buffers = module_facts.own_statistics(module, self._wrapper_of(module))
            record.update({"buffers": buffers} if buffers else {})
        if learns and not self._asked_modes:
            record["unset"] = module_facts.unset_mode(module, self.modes_set)
            self._asked_modes = True
        if learns and not any(forward["grad"] for forward in self._forwards):
            others = module_facts.weights_of_others(module, self._optimizers)
            record.update({"others": others} if others else {})
        if learns:
            _remove(self.until_learning)
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
                self._note_end(module, output if multiplies and isinstance(output, torch.Tensor) else None)
        if self._modules is not None and torch.is_grad_enabled():
            with self.reading():
                self._modules.output(module, output, line_of(sys._getframe(2)))
        if self._saw_nan or not isinstance(output, torch.Tensor) or not output.is_floating_point():
            return
        with self.reading():
            if not fingerprints.is_finite(output):
                self._saw_nan = True
                self._calls.append(
                    {"call": "not_finite", "module": self._module_name(module), "line": line_of(sys._getframe(2))}
                )

    def _note_end(self, module: Any, product: Any) -> None:
        """Note what a module's forward, the outermost one or one inside of it, ends with.

        product: the output of a layer that autocast computes in half precision.
        """
        record = self._forwards[-1]
        size = product.element_size() if product is not None else 0
        if size in (2, 4):  # autocast leaves float64 as it is
            record["lowered"] = record.get("lowered", False) or size == 2
        is_same = self._begun == id(module) and "random" in record
        if self._depth == 0 and is_same:
            record["draws"] = module_facts.random_state() != record["random"]
            if not record["training"] and not _in_training(module):
                record["noisy"] = record["draws"]

    def on_backward(self, loss: Any, line: Any) -> None:
        """Take the beginning of a backward pass."""
        self.in_backward = True
        self._num_backwards += 1
        self._ignore_gradient_writers()
        record: dict[str, Any] = {"line": line}
        if len(self._backwards) < _MOST_FORWARDS:
            self._backwards.append(record)
        if not self.is_sampled:
            return
        with self.reading():
            record["graph"] = _graph_of(loss)
            if loss is not None and loss.numel() == 1 and not hasattr(loss, "_local_tensor"):
                record["loss"] = finite_or_none(float(loss.detach()))
            self._parts.begin(self._optimizers)
            gradients = [each for _, optimizer in self._optimizers for each in _gradients(optimizer)]
            record["adds"] = any(_bits_of(each) for each in gradients)
            for number, (optimizer, before) in list(self._stale.items()):
                now = [_bits_of(each) for each in _gradients(optimizer())] if optimizer() is not None else []
                # later micro-batches of a step begin with what the first one has added
                if not any(now) or (number not in self._added and not any(map(_same, before, now))):
                    self._stale.pop(number)
                    self._added.discard(number)

    def after_backward(self) -> None:
        """Take the end of a backward pass: remember the gradients' bits, to see whether they change before the step."""
        self.in_backward = False
        if not self.is_sampled or not self._backwards:
            self._parts.forget()
            return
        with self.reading():
            now = {number: [_bits_of(each) for each in _gradients(optimizer)] for number, optimizer in self._optimizers}
            self._backwards[-1]["bits"] = now
            parts = self._parts.end(self._optimizers)
            if self._num_backwards <= _MOST_FORWARDS:
                self._backwards[-1].update(parts)
            else:  # more than are kept: what they brought together is not known
                self._backwards[-1].pop("brought", None)
            for number, (_, before) in self._stale.items():
                if any(map(_grew, before, now.get(number, ()))):
                    self._added.add(number)
            self._watch_gradient_writers()

    def _watch_gradient_writers(self) -> None:
        """Watch what changes the gradients that are there now."""
        gradients = [each for _, optimizer in self._optimizers for each in _gradients(optimizer)]
        self._gradient_storages = {_storage_of(each) for each in gradients if each is not None} - {None}
        kind = sys.modules["torch"].Tensor
        for name, method in self.gradient_writers:
            self._unwatched[name] = vars(kind).get(name)
            setattr(kind, name, method)

    def _ignore_gradient_writers(self) -> None:
        kind = sys.modules["torch"].Tensor
        for name, own in self._unwatched.items():
            if own is not None:
                setattr(kind, name, own)
            elif name in vars(kind):
                delattr(kind, name)
        self._unwatched.clear()

    def on_gradient_written(self, tensor: Any, frame: Any) -> None:
        """Take a line of the user's that changes a gradient between a backward pass and the step."""
        if not self._unwatched or not frames.is_user_file(frame.f_code.co_filename):
            return
        line = line_of(frame)
        key = ("gradient", *(line or ()))
        if (
            key in self._written
            or len(self._written) >= _MOST_WRITERS
            or _storage_of(tensor) not in self._gradient_storages
        ):
            return
        self._written.add(key)
        self.on_call({"call": "gradient_written", "line": line})

    def on_call(self, record: dict[str, Any]) -> None:
        """Take a call of a watched function."""
        if len(self._calls) < _MOST_CALLS:
            self._calls.append(record)

    def on_save_beside(self, held: Any, path: Any, line: Any) -> None:
        """Take what another thread is about to save, if it has tensors that an optimizer of the rank changes."""
        changed = {_storage_of(each) for _, optimizer in self._optimizers for each in _parameters(optimizer)}
        if changed & {_storage_of(each) for each in fingerprints.tensors_of(held)} - {None}:
            where = os.path.abspath(path) if isinstance(path, (str, os.PathLike)) else None
            self.on_call({"call": "save", "live": True, "path": where, "line": line})

    def on_batch(self, record: dict[str, Any]) -> None:
        """Take a batch of a DataLoader."""
        self._num_batches += 1
        if self._num_batches <= _MOST_BATCHES:
            self.write({"kind": "batch", "step": self._num_steps, **record})

    def on_made(self, thing: Any, line: Any, is_optimizer: bool = False) -> None:
        """Take the line that made a parameter or an optimizer."""
        if is_optimizer:
            self._optimizers.number(thing)
        self._made.pop(id(thing), None)  # an earlier thing had the same address
        self.initialized.pop(id(thing), None)
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

    def on_written(self, parameter: Any, frame: Any) -> None:
        """Take a line of the user's that changes a parameter outside of an optimizer's step."""
        if self._before is not None or not frames.is_user_file(frame.f_code.co_filename):
            return
        line = line_of(frame)
        if line is not None and tuple(line) not in self._written and len(self._written) < _MOST_WRITERS:
            self._written.add(tuple(line))
            self.on_call({"call": "written", "line": line, "elements": parameter.numel()})

    def selected_at(self, parameter: Any) -> Any:
        """Return the line that chose which parameters need a gradient, and this one with them; None if none chose."""
        line = self._selected.get(id(parameter))
        return line if line is not None and len(self._selections[tuple(line)]) > 1 else None

    def on_schedule(self, optimizer: Any, line: Any) -> None:
        """Take the line that made a scheduler of an optimizer's learning rate."""
        if line is not None:
            self._schedules[id(optimizer)] = line

    def number_of(self, optimizer: Any) -> int:
        """Return the number of an optimizer."""
        return self._optimizers.number(optimizer)

    def on_ddp(self, wrapper: Any, line: Any) -> None:
        """Take a new wrapper of DDP, and the line that made it."""
        self._made[id(wrapper)] = line
        group = wrapper.process_group
        distributed: Any = sys.modules["torch.distributed"]
        self._ddp.append((weakref.ref(wrapper), distributed.get_process_group_ranks(group)))

    def on_drawn(self, parameter: Any, line: Any) -> None:
        """Take a line that draws the elements of a parameter."""
        if line is not None and len(self.initialized) < _MOST_PARAMETERS:
            counts = self.initialized.setdefault(id(parameter), {})
            counts[tuple(line)] = counts.get(tuple(line), 0) + 1

    def on_waited(self, work: Any) -> None:
        """Take the end of a collective for which the program waits."""
        for place, (each, record) in enumerate(self.pending):
            if each is work:
                record["waited"] = True
                del self.pending[place]
                return

    def clipped(self, parameters: list[Any]) -> dict[str, Any]:
        """Return which optimizers' parameters are all clipped."""
        held, covers = {id(each) for each in parameters}, []
        for number, optimizer in self._optimizers:
            own = _parameters(optimizer)
            if any(id(each) in held for each in own) and all(id(each) in held for each in own if each.grad is not None):
                covers.append(number)
        return {"covers": covers}

    def uses_added_gradients(self) -> bool:
        """True if the gradients are those that the last of several backward passes left."""
        if not self.is_sampled or len(self._backwards) < 2:
            return False
        with self.reading():
            bits = self._backwards[-1].get("bits")
            now = {number: [_bits_of(each) for each in _gradients(optimizer)] for number, optimizer in self._optimizers}
            return bits is not None and now == bits
        return False

    @property
    def has_stepped(self) -> bool:
        """True after the first step."""
        return self._num_steps > 0

    def left_out(self, held: Any) -> tuple[list[str], bool]:
        """Return the parameters that are missing in what is saved of a module, and whether a layer is cut."""
        return module_facts.left_out(held, self._roots)

    def words_without_vector(self, total: Any) -> list[int]:
        """Return the words whose row in a sum over ranks is zero, if it is the first sum in a module of words."""
        if self._ids is None or self.in_backward:
            return []
        (_, ids), self._ids = self._ids, None
        return module_facts.zero_rows(ids, total)

    def kinds_in_ddp(self, module: Any) -> list[tuple[str, str]]:
        """Return types and devices of a module's parameters if DDP has wrapped it, or a part of it."""
        wrappers = [reference() for reference, _ in self._ddp]
        if not any(each is not None and module in (each, each.module) for each in wrappers):
            return []
        return [(str(each.dtype), str(each.device)) for each in module.parameters()]

    def made_at(self, thing: Any) -> Any:
        """Return the line that made a parameter or an optimizer; None if unknown."""
        return self._made.get(id(thing))

    # ---- the optimizer's step ----------------------------------------------------------------------------------------

    def before_step(self, optimizer: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Read what the optimizer is about to use: of an optimizer with a closure, when that has computed it."""
        if not self.is_here():
            return None
        line = line_of(sys._getframe(2))
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
        self._ignore_gradient_writers()
        with self.reading():
            number = self._optimizers.number(optimizer)
            self._update_table(number, optimizer)
            record: dict[str, Any] = {"line": line, "lr": _learning_rates(optimizer)}
            clipped = vars(optimizer).pop("clipped", None)
            if clipped is not None:
                self.on_call({"call": "clip", "line": None, "norm": finite_or_none(clipped[0]), "limit": clipped[1]})
            if self.is_sampled:
                parameters, gradients, places = _held(optimizer)
                record["gradients"] = _fingerprints(gradients)
                record["before"] = [_bits_of(each) for each in parameters]
                record["parts"] = gradient_parts.of_step(optimizer)
                if self._modules is not None:
                    record["gradient_sums"] = module_sums.of_tensors(gradients, places)
                    record["before_sums"] = module_sums.of_tensors(parameters, places)
                record["stale"] = number in self._stale and number in self._added
                self._note_outside()
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
        if not self.is_here() or not self._before or self._before[0] != self._optimizers.number(optimizer):
            return
        number, record = self._before
        self._before = None
        with self.reading():
            step = self._steps[number] = self._steps.get(number, 0) + 1
            if "samples" in record:
                parameters, _, places = _held(optimizer)
                record["weights"] = _fingerprints(parameters)
                if self._modules is not None:
                    record["weight_sums"] = module_sums.of_tensors(parameters, places)
                record["changed"] = list(map(_changed, record.pop("samples"), parameters, record.pop("used")))
                record["state"] = _state_types(optimizer)
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
            self._forwards, self._backwards, self._calls = [], [], []
            self.pending.clear()
            self._num_backwards = 0
            self._masks.clear()
            self._written.clear()
            _remove(self.until_learning)
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
                        "outside": list(self._outside.values()),
                        "messages": self.has_messages,
                        "exchanges": self.has_exchanges,
                        "backwards": len(self._backwards),
                    }
                )

    # ---- modules and parameters --------------------------------------------------------------------------------------

    def _root(self, module: Any) -> int:
        """Return the number of an outermost module; write what it is when it is new."""
        is_new = not self._roots.has(module)
        number = self._roots.number(module)
        if is_new:
            wrapper = self._wrapper_of(module)
            self.write(
                {
                    "kind": "module",
                    "module": number,
                    "class": type(module).__name__,
                    "wrapper": module_facts.kind_of(module),
                    "inside": type(wrapper).__name__ if wrapper is not None and wrapper is not module else None,
                    "broadcasts": None if wrapper is None else bool(wrapper.broadcast_buffers),
                    "made": self.made_at(wrapper) if wrapper is not None else None,
                    "shards": any(module_facts.kind_of(each) == "fsdp2" for each in module.modules()),
                    "modes": any(map(_has_modes, module.modules())),
                    "untied": self._untied(module),
                    "adapters": module_facts.adapters(module),
                    "adapters_selected": self._adapters_selected(module),
                    "lowered": module_facts.lowered_buffers(module),
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

    def _wrapper_of(self, module: Any) -> Any:
        """Return the DDP wrapper that a module is, or whose module it is; None if there is none."""
        for reference, _ in self._ddp:
            wrapper = reference()
            if wrapper is not None and (wrapper is module or wrapper.module is module):
                return wrapper
        return None

    def _module_name(self, module: Any) -> str:
        for _, root in self._roots:
            for name, each in root.named_modules():
                if each is module:
                    return f"{module_facts.plain_name(name) or 'the model'} ({type(module).__name__})"
        return type(module).__name__

    def _names(self) -> dict[int, tuple[int, list[str]]]:
        """Return the outermost module and the names of each parameter, by id."""
        found: dict[int, tuple[int, list[str]]] = {}
        for number, root in self._roots:
            for name, parameter in root.named_parameters(remove_duplicate=False):
                names = found.setdefault(id(parameter), (number, []))[1]
                if module_facts.plain_name(name) not in names:
                    names.append(module_facts.plain_name(name))
        return found

    def _owners(self) -> dict[int, str]:
        """Return the class of the module that has each parameter, by the parameter's id."""
        modules = [module for _, root in self._roots for module in root.modules()]
        return {id(each): type(module).__name__ for module in modules for each in module.parameters(recurse=False)}

    def _update_table(self, number: int, optimizer: Any) -> None:
        """Write which parameters an optimizer has, if they have changed; of flat tensors, in sampled steps."""
        if not self.is_sampled and number in self._tables and hasattr(optimizer, "named_parts"):
            return
        parts = _parts_of(optimizer)
        parameters = _parameters(optimizer) if parts is None else [each[3] for each in parts]
        now = [id(each) for each in parameters] if parts is None else [[each[:3], each[3].shape] for each in parts]
        if self._tables.get(number) == now:
            return
        self._tables[number] = now
        names, replicas, owners = self._names(), self._replicas(), self._owners()
        described = [
            {**self._described(each, names, replicas), "owner": owners.get(id(each), "")} for each in parameters
        ]
        if parts is not None:
            for each, (name, offset, whole, _, _) in zip(described, parts):  # noqa: B905 Python 3.9
                each.update(names=[name], offset=list(offset), whole=list(whole), trained=True)
        self.write(
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
        found = {
            "names": own,
            "module": root,
            "shape": list(parameter.shape),
            "dtype": str(parameter.dtype).rpartition(".")[2],
            "trained": bool(parameter.requires_grad),
            "made": self.made_at(parameter),
            "ddp": replicas.get(id(parameter)),
            "constant": _is_constant(parameter),
            "seed": self._seeds.get(id(parameter)),
            "selected": self.selected_at(parameter),
        }
        counts = self.initialized.get(id(parameter), {})
        if max(counts.values(), default=0) > 1:
            line = max(counts, key=lambda line: counts[line])
            found["drawn"], found["drawn_at"] = counts[line], list(line)
        mesh = getattr(parameter, "device_mesh", None)
        if mesh is not None:
            found["placements"] = [str(each) for each in parameter.placements]
            found["mesh"] = mesh.mesh.tolist()
        return found

    def _replicas(self) -> dict[int, list[int]]:
        """Return the ranks on which DDP keeps each parameter equal, by the parameter's id."""
        found = {}
        for reference, ranks in self._ddp:
            wrapper = reference()
            ignored = getattr(wrapper, "parameters_to_ignore", ()) if wrapper is not None else ()
            for name, parameter in wrapper.module.named_parameters() if wrapper is not None else ():
                if name not in ignored:
                    found[id(parameter)] = ranks
        return found

    def _note_outside(self) -> None:
        """Remember the parameters that have a gradient now and that no optimizer holds."""
        optimizers = [optimizer for _, optimizer in self._optimizers]
        if any(getattr(optimizer, "named_parts", None) is not None for optimizer in optimizers):
            return  # it holds flat tensors, and not the module's parameters
        held = {id(each) for optimizer in optimizers for each in _parameters(optimizer)}
        for number, root in self._roots:
            for name, parameter in root.named_parameters():
                if parameter.grad is None or id(parameter) in held or len(self._outside) >= _MOST_OUTSIDE:
                    continue
                made = self.made_at(parameter)
                self._outside[number, name] = {"module": number, "name": module_facts.plain_name(name), "made": made}
        for number, stranger in self._strangers:
            for name, parameter in stranger._parameters.items():
                if parameter is None or parameter.grad is None or id(parameter) in held:
                    continue
                whole = f"{name} of a {type(stranger).__name__}"
                self._outside[-1 - number, whole] = {
                    "module": self._forwards[-1]["module"] if self._forwards else 0,
                    "name": whole,
                    "made": self.made_at(parameter),
                    "stranger": True,
                }


def _remove(methods: list[tuple[Any, str]]) -> None:
    """Remove methods from classes that have them only to be watched: the classes inherit what they do."""
    while methods:
        owner, name = methods.pop()
        if name in vars(owner):
            delattr(owner, name)


class _Known:
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


def _is_called_by_user(frame: Any) -> bool:
    """True if the user's code called a module, past torch's own functions that call it."""
    return frames.is_user_file(frames.file_past(frame, (os.path.join("nn", "modules", "module.py"),)))


def line_of(frame: Any) -> list[Any] | None:
    """Return file, line and function of the innermost frame in the user's code."""
    while frame is not None:
        if frames.is_user_file(frame.f_code.co_filename):
            place = frames.place_of(frame)
            return [place["file"], place["line"], place["function"]]
        frame = frame.f_back
    return None


def _kwargs_of(frame: Any) -> Any:
    """Return the keyword arguments of the forward that torch's own function is about to call: hooks do not get them."""
    for _ in range(3):
        if frame is None:
            return None
        if frame.f_code.co_filename.endswith(os.path.join("nn", "modules", "module.py")) and "kwargs" in frame.f_locals:
            return frame.f_locals["kwargs"]
        frame = frame.f_back
    return None


def _is_constant(tensor: Any) -> bool:
    """True if all elements are equal, as those of a new bias or norm are."""
    if tensor.is_meta:
        return True
    elements = fingerprints.sampled(tensor)  # a rank's shard of a DTensor may be empty
    return elements.numel() == 0 or bool((elements == elements[0]).all())


def _parts_of(optimizer: Any) -> list[Any] | None:
    """Return the parts of parameters of which an optimizer's flat tensors consist, if it tells; None if it does not.

    Each is a name, the place of its first element in the whole parameter, the whole's shape, the part, its gradient.
    """
    named_parts = getattr(optimizer, "named_parts", None)
    return None if named_parts is None else list(named_parts())


def _parameters(optimizer: Any) -> list[Any]:
    parts = _parts_of(optimizer)
    if parts is not None:
        return [part for _, _, _, part, _ in parts]
    return [each for group in getattr(optimizer, "param_groups", ()) for each in group["params"]]


def _gradients(optimizer: Any) -> list[Any]:
    return _held(optimizer)[1]


def _held(optimizer: Any) -> tuple[list[Any], list[Any], list[Any] | None]:
    """Return parameters, gradients and, of parts, the place of each in its whole parameter and the whole's shape."""
    parts = _parts_of(optimizer)
    if parts is None:
        parameters = _parameters(optimizer)
        return parameters, [each.grad for each in parameters], None
    places = [(offset, whole) for _, offset, whole, _, _ in parts]
    return [part for _, _, _, part, _ in parts], [gradient for *_, gradient in parts], places


def _learning_rates(optimizer: Any) -> list[float | None]:
    return [finite_or_none(float(group["lr"])) if "lr" in group else None for group in optimizer.param_groups]


def _storage_of(tensor: Any) -> int | None:
    """Return the address of the memory that a tensor is in; None if it has none."""
    try:
        return fingerprints.local_of(tensor).untyped_storage().data_ptr() or None
    except (RuntimeError, NotImplementedError):  # a tensor without memory
        return None


def _bits_of(tensor: Any) -> int | None:
    return None if tensor is None or tensor.is_meta else int(fingerprints.bits(tensor))


def _fingerprints(tensors: list[Any]) -> list[Any]:
    """Return bits, sketch and norm of each tensor; None for no tensor, and no sketch if it is not finite."""
    found: list[Any] = []
    for tensor in tensors:
        if tensor is None or tensor.is_meta:
            found.append(None)
            continue
        sketch, square = fingerprints.sketch_and_norm(tensor)
        found.append(
            [int(fingerprints.bits(tensor)), finite_or_none(float(sketch)), finite_or_none(float(square) ** 0.5)]
        )
    return found


def _changed(before: Any, parameter: Any, used: Any) -> float | None:
    """Return which part of the sampled elements with a gradient a step has changed; None if none has one."""
    after = fingerprints.sampled(parameter)
    if after.shape != before.shape or used is None or used.shape != after.shape or not bool(used.any()):
        return None
    return float((after != before)[used].double().mean())


def _in_training(module: Any) -> bool:
    """True if some part of a module is in training mode, as dropout is that shall draw in an evaluation."""
    return any(each.training for each in module.modules())


def _has_modes(module: Any) -> bool:
    """True if a module computes something else in evaluation mode than in training mode."""
    names = {kind.__name__ for kind in type(module).__mro__}
    return "_BatchNorm" in names or ("_DropoutNd" in names and getattr(module, "p", 0) > 0)


def _state_types(optimizer: Any) -> list[list[str]]:
    """Return the types of each parameter's moments."""
    torch: Any = sys.modules["torch"]
    found = []
    for parameter in _parameters(optimizer):
        state = optimizer.state.get(parameter) or {}
        kinds = {
            str(each.dtype).rpartition(".")[2]
            for each in state.values()
            if isinstance(each, torch.Tensor) and each.numel() > 1
        }
        found.append(sorted(kinds))
    return found


def _same(one: Any, other: Any) -> bool:
    """True if a gradient is there, is not zero, and has the same bits."""
    return one is not None and one != 0 and one == other


def _grew(old: Any, new: Any) -> bool:
    """True if a backward pass has added to a gradient that was not zero."""
    return bool(old) and new is not None and old != new


def finite_or_none(number: float) -> float | None:
    return number if number - number == 0 else None


def _factor_of(node: Any) -> float | None:
    """Return the number by which an operation multiplies or divides; None for another operation."""
    if not node.name().startswith(("MulBackward", "DivBackward")):
        return None
    known = [getattr(node, name, None) for name in ("_saved_other", "_saved_self")]
    numbers = [each for each in known if each is not None]
    if len(numbers) != 1 or getattr(numbers[0], "numel", lambda: 0)() != 1:
        return None
    return finite_or_none(float(numbers[0]))


def _graph_of(loss: Any) -> list[list[Any]]:
    """Return the last operations that made a loss: name, what a loss function reduced over, and its total weight."""
    node = getattr(loss, "grad_fn", None)
    found: list[list[Any]] = []
    while node is not None and len(found) < _MOST_GRAPH_NODES:
        weight = getattr(node, "_saved_total_weight", None)
        total = finite_or_none(float(weight)) if weight is not None and weight.numel() == 1 else None
        found.append([node.name(), getattr(node, "_saved_reduction", None), total, _factor_of(node)])
        parents = [parent for parent, _ in node.next_functions if parent is not None]
        node = parents[0] if len(parents) == 1 else None
    return found
