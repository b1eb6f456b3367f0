"""The part of a cluster file that describes a measured machine: its costs with units, written and read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from frog.core.config.load import unknown_keys
from frog.core.errors import ConfigError
from frog.core.schema import shortened
from frog.plan.machine.costs import Cost, Curve, Machine, WorldCosts
from frog.plan.quantities import read_quantity

_RATES = {"products": ("products_s", "FLOP/s"), "attention": ("attention_s", "FLOP/s"), "memory": ("byte_s", "B/s")}
"""Keys of a cost, with their fields and units; `fixed` is in seconds. A part without a key takes no time."""
_MOST_CORES, _MOST_RANKS, _MOST_ENTRIES = 4096, 1024, 64
_OPERATIONS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv", "tensor", "sequence")
_PRECISIONS = ("fp32", "bf16")


def machine_lines(machine: Machine) -> Iterator[str]:
    """Yield the lines of the table [machine]."""
    yield from ("[machine]", f"cores = {machine.cores:g}")
    for size, costs in machine.worlds.items():
        yield from ("", f"[machine.worlds.{size}]", f"threads = {costs.threads}")
        yield f'product = "{rate_text(1 / costs.product_s, "FLOP/s")}"'
        yield f'launch = "{_seconds(costs.launch_s)}"'
        yield f'memory = "{rate_text(1 / costs.memory_s, "B/s")}"'
        yield f"optimizer = {_curve_text(costs.optimizer)}"
        for name, table in (("layer", costs.layer), ("head", costs.head)):
            yield from (f"{name}.{precision} = {_cost_text(cost)}" for precision, cost in table.items())
        yield from (f"links.{op} = {_curve_text(curve)}" for op, curve in costs.links.items())


def rate_text(value: float, unit: str) -> str:
    """Return a rate with its unit: 1.2e9 -> "1.2 GB/s"."""
    for scale, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M")):
        if value >= scale:
            return f"{value / scale:.4g} {prefix}{unit}"
    return f"{value:.0f} {unit}"


def _seconds(value: float) -> str:
    return f"{value * 1e3:.5g} ms" if value >= 1e-3 else f"{max(value, 1e-9) * 1e6:.4g} us"


def _cost_text(cost: Cost) -> str:
    parts = [f'fixed = "{_seconds(cost.fixed_s)}"'] if cost.fixed_s >= 1e-9 else []
    for key, (name, unit) in _RATES.items():
        if per_unit := getattr(cost, name):
            parts.append(f'{key} = "{rate_text(1 / per_unit, unit)}"')
    return f"{{ {', '.join(parts)} }}"


def _curve_text(curve: Curve) -> str:
    points = [f'"{num_bytes:.0f} B" = "{_seconds(seconds)}"' for num_bytes, seconds in curve.points]
    return f"{{ {', '.join(points)} }}"


def read_machine(table: Any) -> Machine:
    """Return the machine of a table.

    Raises:  ConfigError listing every mistake.
    """
    problems: list[str] = []
    content = _table(table, "machine", ("cores", "worlds"), problems)
    cores: Any = content.get("cores")
    if type(cores) not in (int, float) or not 0 < cores <= _MOST_CORES:
        problems.append(f"machine.cores={shortened(repr(cores))}: must be above 0 and at most {_MOST_CORES}")
    worlds = {}
    given = content.get("worlds")
    for name, world in _entries(given, "machine.worlds", problems):
        size = int(name) if name.isascii() and name.isdecimal() and len(name) < 5 else 0
        if not 1 <= size <= _MOST_RANKS:
            problems.append(f"machine.worlds.{shortened(name)}: must be a number of ranks, at most {_MOST_RANKS}")
        worlds[size] = _read_world(world, f"machine.worlds.{shortened(name)}", size, problems)
    if not any(size > 1 for size in worlds):
        problems.append("machine.worlds: must have a world of several ranks")
    if problems:
        raise ConfigError("\n".join(problems))
    return Machine(float(cores), dict(sorted(worlds.items())))


def _read_world(table: Any, place: str, size: int, problems: list[str]) -> WorldCosts:
    keys = ("threads", "product", "launch", "memory", "optimizer", "layer", "head", *(("links",) if size > 1 else ()))
    content = _table(table, place, keys, problems)
    threads: Any = content.get("threads")
    if type(threads) is not int or not 1 <= threads <= _MOST_CORES:
        problems.append(f"{place}.threads={shortened(repr(threads))}: must be a whole number of at least 1")
    links = _table(content.get("links", {}), f"{place}.links", _OPERATIONS if size > 1 else (), problems)
    precisions = {
        name: {
            precision: _read_cost(cost, f"{place}.{name}.{precision}", problems)
            for precision, cost in _entries(content.get(name), f"{place}.{name}", problems, _PRECISIONS)
        }
        for name in ("layer", "head")
    }
    if any("fp32" not in costs for costs in precisions.values()):
        problems.append(f"{place}: layer.fp32 and head.fp32 must be there")
    return WorldCosts(
        threads=threads if type(threads) is int else 1,
        product_s=1 / read_quantity(content.get("product"), "FLOP/s", f"{place}.product", problems),
        launch_s=read_quantity(content.get("launch"), "s", f"{place}.launch", problems),
        memory_s=1 / read_quantity(content.get("memory"), "B/s", f"{place}.memory", problems),
        optimizer=_read_curve(content.get("optimizer"), f"{place}.optimizer", problems),
        layer=precisions["layer"],
        head=precisions["head"],
        links={op: _read_curve(curve, f"{place}.links.{op}", problems) for op, curve in links.items()},
    )


def _read_cost(table: Any, place: str, problems: list[str]) -> Cost:
    values = {}
    for key, value in _entries(table, place, problems, ("fixed", *_RATES)):
        if key == "fixed":
            values["fixed_s"] = read_quantity(value, "s", f"{place}.fixed", problems)
        elif key in _RATES:
            name, unit = _RATES[key]
            values[name] = 1 / read_quantity(value, unit, f"{place}.{key}", problems)
    return Cost(**values)


def _read_curve(table: Any, place: str, problems: list[str]) -> Curve:
    points = [
        (read_quantity(size, "B", place, problems), read_quantity(value, "s", f"{place}.{shortened(size)}", problems))
        for size, value in _entries(table, place, problems)
    ]
    return Curve.of(points or [(1.0, 1.0)])


def _table(value: Any, place: str, keys: tuple[str, ...], problems: list[str]) -> Mapping[str, Any]:
    """Return a table with exactly these keys; report others and missing ones."""
    if not isinstance(value, dict):
        problems.append(f"{place}: must be a table")
        return {}
    problems += unknown_keys(value, keys, f"{place}.")
    problems += [f"{place}.{key} is missing" for key in keys if key not in value]
    return {key: value[key] for key in keys if key in value}


def _entries(
    value: Any, place: str, problems: list[str], keys: tuple[str, ...] | None = None
) -> Iterator[tuple[str, Any]]:
    """Yield the entries of a table that is not empty; report keys that are not among `keys`."""
    if not isinstance(value, dict) or not 0 < len(value) <= _MOST_ENTRIES:
        problems.append(f"{place}: must be a table of 1 to {_MOST_ENTRIES} entries")
        return
    if keys is not None:
        problems += unknown_keys(value, keys, f"{place}.")
    yield from ((key, entry) for key, entry in value.items() if keys is None or key in keys)
