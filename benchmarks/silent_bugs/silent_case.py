"""What a program with a silent bug is, and the parts that several of them share.

    torchrun --nproc-per-node N silent_case.py FOLDER NAME ...

runs the named programs in one world, each with its bug and without it; the records go to FOLDER/NAME/bug and
FOLDER/NAME/right. `--alone NAME bug` or `--alone NAME right` runs one of them. `../silent_bugs.py` calls both.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

STEPS = 6
EARLIER = "earlier"
"""The folder with the records of a program's first run."""


@dataclass(frozen=True)
class Case:
    """A program after a public bug, and the answer that would be right."""

    program: Callable[[bool, Path], None]
    source: str
    rule: str
    """The rule of `frog check` that the bug breaks; "" if none can without a reference."""
    published: str
    """What the paper says of it, or the kind of mistake."""
    first_try: str
    """What `frog check` said when it saw the program first."""
    world: int = 2
    hangs: bool = False
    """True if the bug hangs or fails: the program runs alone, and `frog diagnose` answers."""
    also: tuple[str, ...] = ()
    """Other rules that would be right."""
    against_one: bool = False
    """True if one run cannot show it: the program runs under `frog check --against-one`."""
    twice: bool = False
    """True if the bug is in a resume: the program runs twice, and finds what its first run has left in its folder."""
    needs: str = ""
    """What the bug itself needs and this machine lacks; the program is then a simulation and is not counted."""

    @property
    def name(self) -> str:
        return self.program.__name__


def rank() -> int:
    return dist.get_rank()


def size() -> int:
    return dist.get_world_size()


def batches(steps: int = STEPS, seed: int | None = None) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield batches of the rank's own, or of a seed that ranks share."""
    generator = torch.Generator().manual_seed(100 + rank() if seed is None else seed)
    for _ in range(steps):
        x = torch.randn(8, 6, generator=generator)
        yield x, x[:, :1] * 2


def update(optimizer: torch.optim.Optimizer) -> None:
    optimizer.step()
    optimizer.zero_grad()


def average(parameters: list[nn.Parameter]) -> None:
    for each in parameters:
        assert each.grad is not None
        dist.all_reduce(each.grad)
        each.grad /= size()


# ---- tensor and sequence parallelism by hand -------------------------------------------------------------------------


class Copied(torch.autograd.Function):
    """The same tensor on all ranks; the gradients of the ranks' parts are added."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, slope: torch.Tensor) -> torch.Tensor:
        slope = slope.clone()
        dist.all_reduce(slope)
        return slope


class Added(torch.autograd.Function):
    """The sum of the ranks' parts."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        x = x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx: Any, slope: torch.Tensor) -> torch.Tensor:
        return slope


class Gathered(torch.autograd.Function):
    """The ranks' parts of a sequence one after the other; the gradients of all ranks are added and split again."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        whole = x.new_empty(size() * len(x), *x.shape[1:])
        dist.all_gather_into_tensor(whole, x.contiguous())
        return whole

    @staticmethod
    def backward(ctx: Any, slope: torch.Tensor) -> torch.Tensor:
        slope = slope.clone()
        dist.all_reduce(slope)
        return slope.chunk(size())[rank()]


class Split(torch.autograd.Function):
    """This rank's part of the sum of all ranks' sequences."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        x = x.clone()
        dist.all_reduce(x)
        return x.chunk(size())[rank()].clone()

    @staticmethod
    def backward(ctx: Any, slope: torch.Tensor) -> torch.Tensor:
        whole = slope.new_empty(size() * len(slope), *slope.shape[1:])
        dist.all_gather_into_tensor(whole, slope.contiguous())
        return whole


def part_of(seed: int) -> None:
    """Seed what each rank has for itself."""
    torch.manual_seed(1000 * seed + rank())


class ColumnsAndRows(nn.Module):
    """Two linear layers, of which each rank has a part of the columns and of the rows."""

    def __init__(self, width: int = 6, inner: int = 8) -> None:
        super().__init__()
        part_of(1)
        self.columns, self.rows = nn.Linear(width, inner // size()), nn.Linear(inner // size(), width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.rows(self.columns(x).relu())


def main() -> None:
    """Run the named programs with and without their bugs."""
    import kept_and_rounded
    import kept_aside_ends
    import kept_aside_inputs
    import kept_aside_state
    import resumed_epochs
    import ttrace
    from observe.check.planted_programs import recorded
    from traincheck import CASES

    every = [
        *CASES,
        *ttrace.CASES,
        *kept_aside_state.CASES,
        *kept_and_rounded.CASES,
        *kept_aside_ends.CASES,
        *kept_aside_ends.LATER,
        *resumed_epochs.CASES,
        *kept_aside_inputs.CASES,
    ]
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    if sys.argv[1] == "--alone":
        case = next(case for case in every if case.name == sys.argv[2])
        case.program(sys.argv[3] == "bug", Path())
        every = []
    folder, names = Path(sys.argv[1]), sys.argv[2:]
    for case in every:
        for bug in (True, False) if case.name in names else ():
            own = folder / case.name / ("bug" if bug else "right")
            for place in (own / EARLIER, own) if case.twice else (own,):
                with recorded(place):
                    torch.manual_seed(0)
                    case.program(bug, own)
            print(case.name, bug, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))
    main()
