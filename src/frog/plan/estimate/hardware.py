"""GPUs and clusters: profiles in TOML, whose numbers have units and sources, shipped with Frog or the user's own."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from importlib.resources import files
from pathlib import Path
from typing import Any

from frog.core.config.load import list_problems, unknown_keys
from frog.core.errors import ConfigError
from frog.core.schema import parse_toml, read_toml, shortened
from frog.core.user_input import did_you_mean
from frog.plan.estimate.constants import Constants
from frog.plan.links import Links
from frog.plan.machine.costs import Machine
from frog.plan.machine.profile import read_machine
from frog.plan.quantities import Price, parse_price, read_quantity

_MOST = 10**6
"""Most GPUs in a node, and most multiprocessors of a GPU: above it, a typing mistake."""


@dataclass(frozen=True)
class Gpu:
    """One GPU. Rates are per second; `link_bandwidth` is one direction over all its links inside a node."""

    name: str
    memory: float
    """Bytes that programs can use: torch's `total_memory`."""
    memory_bandwidth: float
    link_bandwidth: float
    num_sms: int
    power: float
    peak_bf16: float
    sustained_bf16: float
    attention: float
    attention_fused: float
    peak_fp8: float = 0.0
    """Also of MXFP8."""
    sustained_fp8: float = 0.0
    sustained_mxfp8: float = 0.0
    peak_nvfp4: float = 0.0
    sustained_nvfp4: float = 0.0

    def sustained_narrow(self, precision: str) -> float:
        """Return the rate of products in 8 or 4 bits; 0 if they run at that of 16 bits, as float8 scaled by rows."""
        return {"fp8": self.sustained_fp8, "mxfp8": self.sustained_mxfp8, "nvfp4": self.sustained_nvfp4}.get(
            precision, 0
        )

    def peak_narrow(self, precision: str) -> float:
        """Return the peak of products in 8 or 4 bits; 0 if the GPU has none."""
        return self.peak_nvfp4 if precision == "nvfp4" else self.peak_fp8


@dataclass(frozen=True)
class Cluster:
    """Equal nodes. `node_bandwidth` is one node's to the network, in bytes per second and direction.

    What a profile does not give is None.
    """

    gpu: Gpu
    gpus_per_node: int
    nvlink_domain: int
    node_bandwidth: float
    node_power: float | None = None
    """Watts that one node draws at most, with everything in it."""
    node_mtbf_s: float | None = None
    """Mean time between failures of one node."""
    storage: float | None = None
    """Bytes per second that one node writes to storage while all others do."""
    host_link: float | None = None
    """Bytes per second from one GPU to its host, in one direction, while all GPUs of the node send."""
    host_memory: float | None = None
    """Bytes per second of the memory of one node's processors."""
    price: Price | None = None
    nodes_per_leaf: int | None = None
    """Nodes below one leaf switch (with rails: below one rail switch); None: the network has full bandwidth."""
    oversubscription: float = 1.0
    """Bandwidth of the nodes below a leaf switch, of its links to the other leaf switches."""
    machine: Machine | None = field(default=None, compare=False)
    """What `frog plan calibrate` measured, if this is the machine of its profile."""
    source: str = ""

    @property
    def network_bandwidth_per_gpu(self) -> float:
        return self.node_bandwidth / self.gpus_per_node

    @property
    def gpus_per_leaf(self) -> int | None:
        """GPUs below one leaf switch."""
        return None if self.nodes_per_leaf is None else self.nodes_per_leaf * self.gpus_per_node

    def links(self, constants: Constants) -> Links:
        """Return the links as collectives use them, at the fitted parts of their data sheets' bandwidth."""
        return Links(
            self.gpu.link_bandwidth * constants.link,
            self.network_bandwidth_per_gpu * constants.network,
            constants.link_latency_s,
            constants.network_latency_s,
            self.nvlink_domain,
            self.gpus_per_leaf,
            self.oversubscription,
        )


@functools.cache
def gpus() -> dict[str, Gpu]:
    """Return the GPUs that Frog knows, by name."""
    return {name: _gpu(name, table) for name, table in _shipped("gpus.toml").items()}


_GPU_UNITS = {"memory": "B", "power": "W"} | dict.fromkeys(("memory_bandwidth", "link_bandwidth"), "B/s")
_GPU_KEYS = [column.name for column in fields(Gpu) if column.name != "name"]
_GPU_REQUIRED = [column.name for column in fields(Gpu) if column.name != "name" and column.default is MISSING]


def _gpu(name: str, table: Mapping[str, Any], prefix: str = "") -> Gpu:
    """Return the GPU of a table; each value is alone, or in a table with its source.

    Raises:  ConfigError listing every mistake.
    """
    problems = unknown_keys(table, _GPU_KEYS, prefix)
    problems += [f"{prefix}{key} is missing" for key in _GPU_REQUIRED if key not in table]
    values: dict[str, Any] = {}
    for key in _GPU_KEYS:
        if key in table:
            value, place = _value(table[key]), f"{prefix}{key}"
            if key == "num_sms":
                values[key] = _whole(value, place, problems)
            else:
                values[key] = read_quantity(value, _GPU_UNITS.get(key, "FLOP/s"), place, problems)
    if problems:
        raise ConfigError("\n".join(problems))
    return Gpu(name, **values)


def _value(entry: Any) -> Any:
    """Return the value of an entry that may be a table of a value and its source."""
    return entry["value"] if isinstance(entry, dict) and set(entry) == {"value", "source"} else entry


def _whole(value: Any, place: str, problems: list[str]) -> int:
    if type(value) is int and 1 <= value <= _MOST:
        return value
    problems.append(f"{place}={shortened(repr(value))}: must be a whole number of at least 1")
    return 1


def gpu_named(name: str) -> Gpu:
    """Return a GPU by its name.

    Raises:  ConfigError if it is unknown.
    """
    if name not in gpus():
        raise ConfigError(f"gpu={name!r}: no profile of this GPU", did_you_mean(name, gpus()))
    return gpus()[name]


def similar_gpu(name: str, memory_gb: float = 0) -> Gpu:
    """Return the GPU of this name, or the most similar of the same model: B200-192GB means B200-180GB.

    Names are MODEL-VARIANT-MEMORY, or as nvidia-smi prints them. Of several variants the one with most parts in common
    is meant, then the one with the nearest memory, `memory_gb` if the name does not state it, then the largest.

    Raises:  ConfigError if no GPU of that model has a profile.
    """
    model, *parts = re.split(r"[-_\s]+", name.lower().removeprefix("nvidia").strip())
    same = [gpu for gpu in gpus().values() if gpu.name.split("-")[0].lower() == model]
    if name in gpus() or not same:
        return gpu_named(name)
    memory = next((float(part[:-2]) for part in parts if re.fullmatch(r"[0-9]+gb", part)), memory_gb)

    def distance(gpu: Gpu) -> tuple[int, float]:
        variant = set(gpu.name.lower().split("-")[1:-1]) ^ {part for part in parts if not part.endswith("gb")}
        return len(variant), abs(gpu.memory / 2**30 - memory) if memory else -gpu.memory

    return min(same, key=distance)


@functools.cache
def clusters() -> dict[str, Cluster]:
    """Return the clusters that Frog knows, by name."""
    return {name: _cluster(table) for name, table in _shipped("clusters.toml").items()}


_QUANTITIES = {
    "network": ("node_bandwidth", "B/s"),
    "node_power": ("node_power", "W"),
    "node_mtbf": ("node_mtbf_s", "h"),
    "storage": ("storage", "B/s"),
    "host_link": ("host_link", "B/s"),
    "host_memory": ("host_memory", "B/s"),
}
"""Keys of a cluster file, their fields, and their units."""
_REQUIRED = ("gpu", "gpus_per_node", "nvlink_domain", "network")
FAT_TREE = ("nodes_per_leaf", "oversubscription")
_KEYS = (*_REQUIRED, *FAT_TREE, *list(_QUANTITIES)[1:], "price", "source", "machine")


def find_cluster(name: str) -> Cluster:
    """Return a cluster that Frog knows, or the one that a file PATH.toml describes.

    Raises:  ConfigError if the name is unknown, or listing every mistake in the file.
    """
    if not name.endswith(".toml"):
        if name not in clusters():
            hint = f"{did_you_mean(name, clusters())} Or name your own file, PATH.toml: docs/plan/plan.md"
            raise ConfigError(f"{shortened(name)}: no cluster of this name", hint)
        return clusters()[name]
    hint = "docs/plan/plan.md shows a cluster file"
    try:
        table = read_toml(Path(name), ConfigError, hint)
    except FileNotFoundError:
        raise ConfigError(f"{shortened(name)}: no such cluster file", hint) from None
    try:
        return _cluster(table)
    except ConfigError as problem:
        raise ConfigError(list_problems(Path(name), problem.what.split("\n")), hint) from None


def _cluster(table: Mapping[str, Any]) -> Cluster:
    """Return the cluster of a table. `gpu` names a GPU that Frog knows, or is a table of its own numbers.

    Raises:  ConfigError listing every mistake.
    """
    problems = unknown_keys(table, _KEYS)
    problems += [f"{key} is missing" for key in _REQUIRED if key not in table]
    values: dict[str, Any] = {
        key: _whole(table[key], key, problems) for key in ("gpus_per_node", "nvlink_domain") if key in table
    }
    values |= _fat_tree(table, problems)
    for key, (name, unit) in _QUANTITIES.items():
        if key in table:
            values[name] = read_quantity(_value(table[key]), unit, key, problems)
    tables: dict[str, Callable[[Any], Any]] = {"gpu": _gpu_of, "price": lambda value: parse_price(_value(value))}
    for key, read in {**tables, "machine": read_machine}.items():
        if key in table:
            try:
                values[key] = read(table[key])
            except ConfigError as problem:
                problems += problem.what.split("\n") if problem.hint is None else [f"{problem.what}; {problem.hint}"]
    if problems:
        raise ConfigError("\n".join(problems))
    return Cluster(**values, source=str(table.get("source", "")))


def _fat_tree(table: Mapping[str, Any], problems: list[str]) -> dict[str, Any]:
    """Return the nodes below a leaf switch, and the oversubscription above it: both, or none."""
    stated = {key: _value(table[key]) for key in FAT_TREE if key in table}
    if len(stated) == 1:
        missing = next(key for key in FAT_TREE if key not in stated)
        problems.append(f"{missing} is missing: {next(iter(stated))} needs it")
    if "nodes_per_leaf" in stated:
        stated["nodes_per_leaf"] = _whole(stated["nodes_per_leaf"], "nodes_per_leaf", problems)
    factor = stated.get("oversubscription", 1.0)
    if type(factor) not in (int, float) or not 1 <= factor <= _MOST:
        problems.append(
            f"oversubscription={shortened(repr(factor))}: must be a number of at least 1, such as 2 for 2:1"
        )
    return stated


def fat_tree(cells: Mapping[str, float]) -> dict[str, Any]:
    """Return the fat tree that the cells of a table's row state.

    Raises:  ConfigError if one of them is missing or wrong.
    """
    problems: list[str] = []
    numbers = {name: int(number) if number.is_integer() else number for name, number in cells.items()}
    tree = _fat_tree(numbers, problems)
    if problems:
        raise ConfigError("; ".join(problems))
    return tree


def _gpu_of(entry: Any) -> Gpu:
    if isinstance(entry, dict):
        return _gpu("own", entry, "gpu.")
    return gpu_named(str(entry))


def default_cluster(gpu: Gpu) -> Cluster:
    """Return the first cluster with this GPU, for runs whose network is not stated."""
    for cluster in clusters().values():
        if cluster.gpu == gpu:
            return cluster
    return Cluster(gpu, 8, 8, 8 * 50e9)


def _shipped(name: str) -> dict[str, Any]:
    return parse_toml(files("frog.plan.estimate").joinpath(name).read_text())
