"""The best layouts of a grid, the front of time, memory and cost, and what binds the fastest layout."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np

from frog.plan.columns import Column
from frog.plan.estimate.adapters import Adapters
from frog.plan.estimate.constants import FITTED, Constants
from frog.plan.estimate.hardware import Cluster, Gpu
from frog.plan.estimate.packing import PackedModel
from frog.plan.estimate.rows import PlannedRun
from frog.plan.estimate.utilization import utilization
from frog.plan.layout import Layout
from frog.plan.memory import USABLE
from frog.plan.model import PlannedModel
from frog.plan.search.coarse import Coarse, KnownLayers, evaluate, evaluate_each, evaluate_memory
from frog.plan.search.grid import ALL_ZEROS, CHOICES, Grid, fewest_layers, joined, layout_grid

_BEST = 10
_LESS_MEMORY, _SLOWER = 0.8, 2.0
"""A point of the front needs at most this fraction of the memory of the next faster one, and at most so many times the
time of the fastest on as many GPUs."""
_ALIKE = 0.001
"""Relative difference of times that count as equal: then less memory wins."""


@dataclass(frozen=True)
class Candidate:
    """A layout with its exact step time, memory and utilization."""

    run: PlannedRun
    step_s: float
    memory: float
    mfu: float

    @property
    def gpu_s(self) -> float:
        """GPU-seconds of a step, to which cost is proportional."""
        return self.step_s * self.run.layout.num_gpus


@dataclass(frozen=True)
class SearchResult:
    """The result of a search."""

    num_layouts: int
    num_fitting: int
    best: list[Candidate]
    """The fastest layout of each mesh on the most GPUs, at most ten."""
    front: list[Candidate]
    """Layouts on any number of nodes that no other beats in time, memory and GPU-seconds."""
    ranked: _Ranked | None

    def others(self) -> Iterator[Candidate]:
        """Yield all fitting layouts on the most GPUs, fastest first."""
        return iter(()) if self.ranked is None else (self.ranked.candidate(place) for place in self.ranked.order())


@dataclass(frozen=True)
class _Ranked:
    """The fitting layouts of one number of GPUs."""

    model: PlannedModel
    cluster: Cluster
    base: Layout
    constants: Constants
    adapters: Adapters | None
    grid: Grid
    step_s: np.ndarray
    memory: np.ndarray

    def order(self) -> np.ndarray:
        """Return the places from the fastest to the slowest; of equally fast ones, the one with less memory first."""
        return np.lexsort((self.memory, np.round(np.log(self.step_s) / _ALIKE)))

    def candidate(self, place: int) -> Candidate:
        layout = self.grid.layout(place, self.base)
        run = PlannedRun(self.model, layout, self.cluster, constants=self.constants, adapters=self.adapters)
        return Candidate(run, run.step.step.total, run.step.memory.total, utilization(run.step))

    def of_each_mesh(self) -> Iterator[int]:
        """Yield the place of the fastest layout of each mesh."""
        seen = set()
        grid = self.grid
        for place in self.order():
            mesh = tuple(int(column[place]) for column in (grid.dp, grid.tp, grid.pp, grid.cp, grid.ep))
            if mesh not in seen:
                seen.add(mesh)
                yield place

    def front(self) -> Iterator[int]:
        """Yield the places that no other beats in time and memory, fastest first."""
        least, order = np.inf, self.order()
        for place in order:
            if self.step_s[place] > _SLOWER * self.step_s[order[0]]:
                return
            if self.memory[place] < least * _LESS_MEMORY:
                least = self.memory[place]
                yield place


def search(
    model: PlannedModel,
    cluster: Cluster,
    nums_gpus: Sequence[int],
    base: Layout,
    zeros: Sequence[int] = ALL_ZEROS,
    constants: Constants = FITTED,
    axes: Sequence[str] = CHOICES,
    adapters: Adapters | None = None,
) -> SearchResult:
    """Return the best layouts on the first number of GPUs, and the front over all of them.

    zeros, axes: kinds of sharding, and those of CHOICES, that the program has. Time and memory are those of `estimate`:
    the coarse search only ranks. Layouts with adapters or packed documents are estimated one by one, 1 ms each, and
    all or none of their layers are computed again.
    """
    grid = joined([layout_grid(model, cluster, num_gpus, base, zeros, axes) for num_gpus in nums_gpus])
    if adapters is not None or isinstance(model, PackedModel):
        coarse = evaluate_each(
            PlannedRun(model, grid.layout(place, base), cluster, constants=constants, adapters=adapters)
            for place in range(len(grid))
        )
    else:
        grid, coarse = _evaluated(grid, KnownLayers(model, cluster, constants), base, "recompute_layers" in axes)
    fits = coarse.memory <= USABLE * cluster.gpu.memory
    ranked = {}
    for num_gpus in nums_gpus:
        places = np.flatnonzero(fits & (grid.num_gpus == num_gpus))
        if places.size:
            columns = grid[places], coarse.step_s[places], coarse.memory[places]
            ranked[num_gpus] = _Ranked(model, cluster, base, constants, adapters, *columns)
    points = [ranking.candidate(place) for ranking in ranked.values() for place in ranking.front()]
    most = ranked.get(nums_gpus[0])
    best = [most.candidate(place) for place in islice(most.of_each_mesh(), _BEST)] if most else []
    num_fitting = int(fits.sum())
    best.sort(key=lambda candidate: candidate.step_s)
    return SearchResult(len(grid), num_fitting, best, _undominated(points), most)


def _evaluated(grid: Grid, layers: KnownLayers, base: Layout, some_again: bool) -> tuple[Grid, Coarse]:
    """Return the layouts of a grid, and if `some_again` also those that compute some layers again in order to fit, with
    their time and memory.
    """
    usable = USABLE * layers.cluster.gpu.memory
    coarse = evaluate(base, grid, layers)
    if not some_again:
        return grid, coarse

    def fitting(tried: Grid) -> Column:
        return evaluate_memory(base, tried, layers) <= usable

    more = fewest_layers(grid, coarse.memory <= usable, layers.model.layers, fitting)
    of_more = evaluate(base, more, layers)
    columns = (np.concatenate(pair) for pair in zip(vars(coarse).values(), vars(of_more).values(), strict=True))
    return joined([grid, more]), Coarse(*columns)


def _undominated(points: Sequence[Candidate]) -> list[Candidate]:
    """Return the points that no other beats or equals in time, memory and GPU-seconds, fastest first."""
    sizes = [(point.step_s, point.memory, point.gpu_s) for point in points]

    def is_beaten(mine: tuple[float, ...]) -> bool:
        return any(other != mine and all(a <= b for a, b in zip(other, mine, strict=True)) for other in sizes)

    kept = [candidate for candidate, mine in zip(points, sizes, strict=True) if not is_beaten(mine)]
    return sorted(kept, key=lambda candidate: candidate.step_s)


def base_of(layout: Layout) -> Layout:
    """Return the batch, sequence, precision and traits of a layout, for a search."""
    return Layout(layout.seq_len, layout.global_batch, precision=layout.precision, traits=layout.traits)


def what_binds(
    result: SearchResult, zeros: Sequence[int] = ALL_ZEROS, axes: Sequence[str] = CHOICES
) -> dict[str, float]:
    """Return how much faster the best layout would be, as a fraction of its time, with twice as much of each resource.

    With twice the memory another layout may be the fastest; a batch twice as large counts per token.
    """
    best = result.best[0]
    run = best.run
    clusters = {
        "the arithmetic of a GPU": _faster(run.cluster, _ARITHMETIC),
        "the bandwidth of its memory": _faster(run.cluster, ("memory_bandwidth",)),
        "the bandwidth inside a node": _faster(run.cluster, ("link_bandwidth",)),
        "the network": replace(run.cluster, node_bandwidth=2 * run.cluster.node_bandwidth),
    }
    if run.cluster.oversubscription > 1:
        wider = replace(run.cluster, oversubscription=max(1.0, run.cluster.oversubscription / 2))
        clusters["the network above leaf switches"] = wider
    times = {name: replace(run, cluster=cluster).step.step.total for name, cluster in clusters.items()}
    layout = run.layout
    larger = replace(layout, global_batch=2 * layout.global_batch)
    times["the global batch"] = replace(run, layout=larger).step.step.total / 2
    roomy = _faster(run.cluster, ("memory",))
    base = base_of(layout)
    with_room = search(run.model, roomy, [layout.num_gpus], base, zeros, run.constants, axes, run.adapters).best
    times["the memory of a GPU"] = min(best.step_s, with_room[0].step_s) if with_room else best.step_s
    gains = {name: 1 - seconds / best.step_s for name, seconds in times.items()}
    return dict(sorted(gains.items(), key=lambda pair: -pair[1]))


_ARITHMETIC = ("sustained_bf16", "sustained_fp8", "sustained_mxfp8", "sustained_nvfp4", "attention", "attention_fused")


def _faster(cluster: Cluster, names: Sequence[str]) -> Cluster:
    gpu: Gpu = replace(cluster.gpu, **{name: 2 * getattr(cluster.gpu, name) for name in names})
    return replace(cluster, gpu=gpu)
