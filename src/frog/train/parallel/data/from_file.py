"""A strategy of one's own, from a file in plain torch: docs/train/own-strategy.md describes its interface.

The file does its own communication. Frog calls the object that its `build` returned, and gives the tensors that this
object owns to the optimizer. The ranges that all ranks own tell which elements are copies: the norm, the checkpoints
and the proof need that.
"""

from __future__ import annotations

import inspect
import sys
import time
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import HashStore

from frog.core.env import bind_loopback
from frog.core.errors import FrogError, OwnStrategyError
from frog.train.comm import Axis
from frog.train.comm.axis import failed
from frog.train.optim.tensors import Slice, UpdatedTensor
from frog.train.parallel.data.data_parallel import DataParallel, GroupSpec
from frog.train.parallel.data.ownership import Owned, WrongOwnership, find_sharing, read_owned, unowned_names

_MODULE = "frog_strategy_file"
_METHODS = ("owned", "reduce", "gather")
_ARGUMENTS = dict.fromkeys((*_METHODS, "zero"), ()) | dict.fromkeys(("before_backward", "after_backward"), ("last",))
_PAGE = "docs/train/own-strategy.md has the interface on one page"


def build(spec: GroupSpec) -> DataParallel:
    """Return the strategy in `strategy.file`."""
    return FromFile(spec)


class OwnTensor:
    """One tensor that this rank updates; to Frog, a partition."""

    def __init__(self, owned: Owned, shape: tuple[int, ...]) -> None:
        self.name, self.count = owned.name, owned.tensor.numel()
        self.tensor = owned.tensor
        run = Slice(owned.name, shape, owned.start, 0, self.count)
        self.tensors = [UpdatedTensor(self.tensor, (run,), decayed=len(shape) >= 2)]

    @property
    def grad(self) -> Any:
        return self.tensor.grad


class NoTensor:
    """The partition of a rank that owns nothing: torch's optimizers need at least one tensor."""

    def __init__(self, like: Tensor) -> None:
        tensor = nn.Parameter(like.new_empty(0))
        self.grad = tensor.grad = torch.zeros_like(tensor)
        self.tensors = [UpdatedTensor(tensor, (), decayed=False)]


class FromFile(DataParallel):
    """The object that the file's `build` returned, behind Frog's interface."""

    partitions: list[Any]

    def __init__(self, spec: GroupSpec) -> None:
        assert spec.config.file is not None
        self._path, self._axis, self._parameters = Path(spec.config.file), spec.shard, spec.trained
        self._frozen = {name: p for name, p in spec.parameters.items() if not p.requires_grad}
        self._shapes = {name: tuple(p.shape) for name, p in spec.parameters.items()}  # `build` may change them
        self._unowned = unowned_names(spec.model)
        self._last = False
        group = process_group(self._axis)
        self._own = self._make(spec.model, group)
        owned = self._agree(group)
        self._tensors = [OwnTensor(claim, self._shapes[claim.name]) for claim in owned if claim.tensor.numel()]
        self.partitions = self._tensors or [NoTensor(next(iter(self._parameters.values())))]

    def _make(self, model: nn.Module, group: dist.ProcessGroup) -> Any:
        """Run the file and its `build`."""
        make = getattr(load(self._path), "build", None)
        if not callable(make):
            raise OwnStrategyError(f"{self._path}: has no function build(model, group)", _PAGE)
        self._check_arguments(make, "build", ("model", "group"))
        own = make(model, group)
        for name in _METHODS:
            if not callable(getattr(own, name, None)):
                kind = "None" if own is None else f"a {type(own).__name__} without the method {name}"
                raise OwnStrategyError(f"{self._path}:{_line_of(make)}: build returns {kind}", _PAGE)
        for name, arguments in _ARGUMENTS.items():
            method = getattr(own, name, None)
            if callable(method):
                self._check_arguments(method, name, arguments)
        return own

    def _check_arguments(self, made: Any, name: str, arguments: tuple[str, ...]) -> None:
        """Raise OwnStrategyError if a function of the file does not take what Frog passes."""
        given = (made.__self__, *arguments) if inspect.ismethod(made) else arguments
        try:
            signature = inspect.signature(made.__func__ if inspect.ismethod(made) else made)
        except (TypeError, ValueError):  # a callable without a signature
            return
        try:
            signature.bind(*given)
        except TypeError as error:
            called = f"Frog calls {name}({', '.join(arguments)})"
            raise OwnStrategyError(f"{self._path}:{_line_of(made)}: {name}: {called}: {error}", _PAGE) from None

    def _agree(self, group: dist.ProcessGroup) -> list[Owned]:
        """Exchange the ranges that each rank owns; return this rank's. All ranks raise the same error."""
        owned: list[Owned] = []
        try:
            owned = read_owned(self._own.owned(), self._parameters, self._axis.device, self._unowned)
            mine: Any = [tuple(tensor.range) for tensor in owned]
        except WrongOwnership as error:
            mine = f"on rank {self._axis.rank}, {error}"
        everyone: list[Any] = [mine] * self._axis.size
        if self._axis.size > 1:
            dist.all_gather_object(everyone, mine, group=group)
        try:
            self.is_sharded = find_sharing({name: self._shapes[name] for name in self._parameters}, everyone)
        except WrongOwnership as error:
            misread = any(isinstance(claim, str) for claim in everyone)
            raise OwnStrategyError(
                f"{self._path}:{_line_of(self._own.owned)}: owned: {error}",
                "docs/train/own-strategy.md has the rules for `owned`"
                if misread
                else "either every rank owns every trained parameter, or exactly one rank owns each element",
            ) from None
        return owned

    # ---- one step ----------------------------------------------------------------------------------------------------

    def before_backward(self, last: bool) -> None:
        self._last = last
        if hasattr(self._own, "before_backward"):
            self._own.before_backward(last)

    def after_backward(self) -> None:
        if hasattr(self._own, "after_backward"):
            self._own.after_backward(self._last)

    def finish(self, tail: Tensor | None = None) -> bool:
        self._own.reduce()
        for own in self._tensors:
            if own.grad is None:
                raise OwnStrategyError(
                    f"{self._path}:{_line_of(self._own.reduce)}: reduce: rank {self._axis.rank} has no gradient for "
                    f"the tensor of {own.name} that it owns",
                    "after reduce, each owned tensor's .grad must be the mean over the ranks",
                )
        return False

    def gather(self) -> None:
        self._own.gather()

    def zero(self) -> None:
        if hasattr(self._own, "zero"):
            self._own.zero()
            return
        for tensor in (*(own.tensor for own in self._tensors), *self._parameters.values()):
            tensor.grad = None

    def loaded(self) -> None:
        self._own.gather()

    # ---- what this rank holds ----------------------------------------------------------------------------------------

    def check_owned(self) -> None:
        """Raise OwnStrategyError if an owned tensor has lost its elements, as a parameter does that is gathered."""
        for own in self._tensors:
            if own.tensor.numel() != own.count or not own.tensor.untyped_storage().nbytes():
                raise OwnStrategyError(
                    f"{self._path}:{_line_of(self._own.owned)}: owned: the tensor of {own.name} had {own.count} "
                    f"elements and now has {own.tensor.numel()}",
                    "between two steps, an owned tensor holds exactly the elements that this rank owns",
                )

    def frozen(self) -> dict[str, Tensor]:
        """Return the frozen parameters, which every rank keeps whole."""
        for name, parameter in self._frozen.items():
            if tuple(parameter.shape) != self._shapes[name] or not parameter.untyped_storage().nbytes():
                raise OwnStrategyError(
                    f"{self._path}: the frozen parameter {name} is no longer whole",
                    "shard only parameters with requires_grad",
                )
        return {name: parameter.detach() for name, parameter in self._frozen.items()}

    def held(self) -> tuple[list[Tensor | None], list[Tensor | None]]:
        """Return the parameters and the gradients that this rank holds now, both the model's and the owned ones."""
        kept: list[Tensor | None] = [
            *self._parameters.values(),
            *self._frozen.values(),
            *(own.tensor for own in self._tensors),
        ]
        return kept, [tensor.grad for tensor in kept if tensor is not None]


def process_group(axis: Axis) -> Any:
    """Return torch's group of an axis. A world of one has none until a strategy of one's own asks for it."""
    warnings.filterwarnings("ignore", r"`torch\.distributed\.\w+` is deprecated", FutureWarning)  # names since 2.13
    if not dist.is_initialized():
        bind_loopback("127.0.0.1")
        dist.init_process_group(store=HashStore(), rank=0, world_size=1)
    return axis.group or dist.group.WORLD


def load(path: Path) -> ModuleType:
    """Run a Python file as a module. It may import modules of its own folder."""
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.append(folder)
    spec = spec_from_file_location(_MODULE, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[_MODULE] = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@contextmanager
def explained(path: Path, axis: Axis) -> Iterator[None]:
    """Name the file and the line of an error in a strategy of one's own, wherever it was called from.

    Raises:  CommError if a collective failed; OwnStrategyError for any other error from within the file.
    """
    start_ns = time.monotonic_ns()
    try:
        yield
    except FrogError:
        raise
    except (Exception, SystemExit) as error:  # exit() in the file would end this rank without a word
        where = _place_in(path, error)
        if isinstance(error, RuntimeError) and axis.backend.cause_of(error) is not None:
            rank = f"rank {axis.ranks[axis.rank]} of {axis.size}"
            raise failed(
                axis.backend, error, f"a collective of {where or path}", rank, start_ns, axis=axis.name
            ) from error
        if where is None:
            raise
        text = axis.backend.shorten(error) if isinstance(error, RuntimeError) else error
        raise OwnStrategyError(f"{where}: {type(error).__name__}: {text}") from error


def _place_in(path: Path, error: BaseException) -> str | None:
    """Return the file, the line and the function of the last frame in the file; None if there is none."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename) == path.absolute()]
    return f"{path}:{frames[-1].lineno}, in {frames[-1].name}" if frames else None


def _line_of(made: Any) -> str:
    """Return the line where a function or a class of the file begins; a question mark for anything else."""
    try:
        return str(inspect.getsourcelines(inspect.unwrap(made))[1])
    except (OSError, TypeError):
        return "?"
