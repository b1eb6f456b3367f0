"""The list of pictures, with their sliders."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tools.site.pictures import divided, failing, memories, rings, schedules
from tools.site.pictures.scene import Scene


@dataclass(frozen=True)
class Slider:
    """A setting: its values in the slider's order. Words are a list to choose from."""

    name: str
    values: tuple[Any, ...]
    initial: Any
    labels: tuple[str, ...] = ()

    def label(self, value: Any) -> str:
        return self.labels[self.values.index(value)] if self.labels else str(value)


@dataclass(frozen=True)
class Picture:
    """A function that draws, and its sliders, in the order of its arguments."""

    draw: Callable[..., Scene]
    sliders: tuple[Slider, ...] = ()

    def initial(self) -> Scene:
        return self.draw(*(slider.initial for slider in self.sliders))

    def variants(self) -> Iterator[tuple[str, Scene]]:
        """Yield the scene of each setting, under the indices of its sliders' values: "3-0"."""
        for places in itertools.product(*(range(len(slider.values)) for slider in self.sliders)):
            values = [slider.values[place] for slider, place in zip(self.sliders, places, strict=True)]
            yield "-".join(map(str, places)), self.draw(*values)


def script_of(name: str) -> str:
    """Return the script with all scenes of a picture, which the site's player loads."""
    picture = PICTURES[name]
    sliders = [
        {
            "name": slider.name,
            "labels": [slider.label(value) for value in slider.values],
            "initial": slider.values.index(slider.initial),
        }
        for slider in picture.sliders
    ]
    scenes = {key: scene.svg() for key, scene in picture.variants()}
    return f"frogPicture({json.dumps(name)}, {json.dumps({'sliders': sliders, 'scenes': scenes})})\n"


_RANKS = Slider("ranks", tuple(range(2, 9)), 4)
_FAULT = Slider("fault", ("no fault", rings.STOPPED), "no fault")

PICTURES: Mapping[str, Picture] = {
    "ring-all-reduce": Picture(rings.ring, (_RANKS, _FAULT)),
    "tree-all-reduce": Picture(rings.tree, (_RANKS, _FAULT)),
    "ddp-buckets": Picture(schedules.buckets, (Slider("buckets", schedules.BUCKETS, 4),)),
    "zero-memory": Picture(
        memories.zero,
        (
            Slider("parameters", memories.SIZES, 7e9, tuple(f"{size / 1e9:g} B" for size in memories.SIZES)),
            Slider("ranks", memories.RANKS, 8),
            Slider("precision", memories.PRECISIONS, memories.PRECISIONS[0]),
        ),
    ),
    "fsdp-gather-free": Picture(memories.fsdp, (Slider("ranks", (2, 4, 8, 16), 8),)),
    "tensor-parallel": Picture(divided.tensor),
    "pipelines": Picture(
        schedules.pipelines,
        (Slider("stages", (2, 3, 4), 4), Slider("micro-batches", (4, 6, 8, 12, 16), 8)),
    ),
    "expert-dispatch": Picture(divided.experts, (Slider("router", divided.ROUTERS, divided.ROUTERS[0]),)),
    "ring-attention": Picture(divided.ring_attention, (Slider("ranks", (2, 3, 4), 4),)),
    "rendezvous-restart": Picture(failing.rendezvous),
    "hang": Picture(failing.hang, (Slider("mistake", failing.MISTAKES, failing.MISTAKES[0]),)),
}
