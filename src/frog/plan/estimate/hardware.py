"""GPUs and clusters: profiles in TOML, whose numbers have units and sources."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from frog.core.errors import ConfigError
from frog.core.schema import parse_toml
from frog.core.suggest import did_you_mean

_SCALES = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
_UNITS = {"B": 1.0, "B/s": 1.0, "bit/s": 1 / 8, "FLOP/s": 1.0, "W": 1.0}
_QUANTITY = re.compile(r"^\s*([0-9.]+(?:e[0-9]+)?)\s*([kMGTP]?)(B/s|bit/s|FLOP/s|B|W)\s*$")


@dataclass(frozen=True)
class Gpu:
    """One GPU. Rates are per second; `link_bandwidth` is one direction over all its links inside a node."""

    name: str
    memory: float
    memory_bandwidth: float
    link_bandwidth: float
    num_sms: int
    power: float
    peak_bf16: float
    sustained_bf16: float
    attention: float
    attention_fused: float
    peak_fp8: float = 0.0
    sustained_fp8: float = 0.0


@dataclass(frozen=True)
class Cluster:
    """Equal nodes. `node_bandwidth` is one node's to the network, in bytes per second and direction."""

    gpu: Gpu
    gpus_per_node: int
    nvlink_domain: int
    node_bandwidth: float

    @property
    def network_bandwidth_per_gpu(self) -> float:
        return self.node_bandwidth / self.gpus_per_node


def parse_quantity(text: Any, unit: str, place: str) -> float:
    """Parse a number with its unit, such as "3200 Gbit/s", to bytes, bytes per second, FLOP/s or watts.

    Raises:  ConfigError if the unit is missing or measures something else.
    """
    kinds = {"B/s": ("B/s", "bit/s")}.get(unit, (unit,))
    found = _QUANTITY.match(text) if isinstance(text, str) else None
    if found is None or found[3] not in kinds:
        raise ConfigError(f"{place}={text!r}: must be a number with a unit", f'write it like "400 G{kinds[-1]}"')
    return float(found[1]) * _SCALES[found[2]] * _UNITS[found[3]]


@functools.cache
def gpus() -> dict[str, Gpu]:
    """Return the GPUs that Frog knows, by name."""
    return {name: _gpu(name, table) for name, table in _shipped("gpus.toml").items()}


def _gpu(name: str, table: dict[str, Any]) -> Gpu:
    units = {"memory": "B", "power": "W"} | dict.fromkeys(("memory_bandwidth", "link_bandwidth"), "B/s")
    values: dict[str, Any] = {
        key: entry["value"] if key == "num_sms" else parse_quantity(entry["value"], units.get(key, "FLOP/s"), key)
        for key, entry in table.items()
    }
    return Gpu(name, **values)


def gpu_named(name: str) -> Gpu:
    """Return a GPU by its name.

    Raises:  ConfigError if it is unknown.
    """
    if name not in gpus():
        raise ConfigError(f"gpu={name!r}: no profile of this GPU", did_you_mean(name, gpus()))
    return gpus()[name]


def similar_gpu(name: str) -> Gpu:
    """Return the GPU of this name, or the most similar of the same model: B200-192GB means B200-180GB.

    Names are MODEL-VARIANT-MEMORY. Of several variants the one with most parts in common is meant, then the one with
    the nearest memory.

    Raises:  ConfigError if no GPU of that model has a profile.
    """
    model, *parts = name.split("-")
    same = [gpu for gpu in gpus().values() if gpu.name.split("-")[0].lower() == model.lower()]
    if name in gpus() or not same:
        return gpu_named(name)
    memory = next((int(part[:-2]) for part in parts if re.fullmatch(r"[0-9]+GB", part)), 0)

    def distance(gpu: Gpu) -> tuple[int, float]:
        variant = set(gpu.name.split("-")[1:-1]) ^ {part for part in parts if not part.endswith("GB")}
        return len(variant), abs(gpu.memory / 1e9 - memory)

    return min(same, key=distance)


@functools.cache
def clusters() -> dict[str, Cluster]:
    """Return the clusters that Frog knows, by name."""
    return {
        name: Cluster(
            gpu_named(table["gpu"]),
            table["gpus_per_node"],
            table["nvlink_domain"],
            parse_quantity(table["network"], "B/s", "network"),
        )
        for name, table in _shipped("clusters.toml").items()
    }


def default_cluster(gpu: Gpu) -> Cluster:
    """Return the first cluster with this GPU, for runs whose network is not stated."""
    for cluster in clusters().values():
        if cluster.gpu == gpu:
            return cluster
    return Cluster(gpu, 8, 8, 8 * 50e9)


def _shipped(name: str) -> dict[str, Any]:
    return parse_toml(files("frog.plan.estimate").joinpath(name).read_text())
