"""What a run folder holds of a run: what ranks, heartbeats and the launcher said, sorted into worlds.

A world is one start of all ranks. A run that was restarted or resumed has several; each rank has a life in each.
Nothing here raises for a torn or missing file: what cannot be read is counted or absent.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from frog.core.env import host_name
from frog.core.errors import RunError
from frog.core.processes import is_alive
from frog.core.runfolder import RunFolder, find_run
from frog.events import read_rank
from frog.events.heartbeat import read_heartbeat

Fields = dict[str, Any]

FRESH_S = 5.0
"""A heartbeat comes twice a second: one older than this has stopped, also on a busy machine."""


_QUIET_S = 120.0
"""Ranks and their launcher together are silent for so long only while they start, and then for less."""


@dataclass
class Life:
    """One start of one rank: what it said from its beginning to its end."""

    rank: int
    events: list[Fields] = field(default_factory=list)

    def of(self, kind: str) -> list[Fields]:
        return [event for event in self.events if event["event"] == kind]

    def last(self, kind: str) -> Fields | None:
        return next((event for event in reversed(self.events) if event["event"] == kind), None)

    @cached_property
    def start(self) -> Fields | None:
        return self.last("start")

    @property
    def error(self) -> Fields | None:
        return self.last("error")

    @property
    def status(self) -> str | None:
        """How it ended: "completed", "interrupted", "failed", or None if it never said."""
        end = self.last("end")
        return str(end["status"]) if end else None

    @property
    def last_step(self) -> int:
        """The last step it took; where it began, if none."""
        taken = self.last("step")
        return int(taken["step"]) if taken else int(self.start["step"]) if self.start else 0

    @property
    def last_ns(self) -> int | None:
        """When it last said something, on its machine's monotonic clock."""
        ends = [event[key] for event in self.events[-50:] for key in ("end_ns", "mono_ns") if key in event]
        return max(ends) if ends else None


@dataclass
class World:
    """One start of all ranks."""

    attempt: int | None
    """What the launcher calls it: how often it had restarted. None without a launcher."""
    launch: Fields | None
    """The launcher's own beginning."""
    began_ns: int | None = None
    lives: dict[int, Life] = field(default_factory=dict)
    beats: dict[int, Fields] = field(default_factory=dict)
    """Each rank's last heartbeat, where no later launch has written over it; `file` says where it is."""
    launched: list[Fields] = field(default_factory=list)
    """The launcher's `world` events: one a node."""
    exits: list[Fields] = field(default_factory=list)
    hangs: list[Fields] = field(default_factory=list)
    nodes: list[Fields] = field(default_factory=list)
    end: Fields | None = None
    """The launcher's end, if this was its last world."""

    @property
    def pids(self) -> set[int]:
        found: set[int] = set()
        for event in self.launched:
            pids = event.get("pids") or []
            found |= set(pids.values() if isinstance(pids, dict) else pids)
        return found

    @property
    def ranks(self) -> list[int]:
        """All ranks that this world has or should have."""
        sizes = [event.get("world_size", 0) for event in self.launched]
        sizes += [life.start["world_size"] for life in self.lives.values() if life.start]
        sizes += [beat.get("world_size", 0) for beat in self.beats.values()]
        known = {*self.lives, *self.beats, *(event["rank"] for event in self.exits)}
        return sorted(known | set(range(max(sizes, default=0))))

    def node_of(self, rank: int) -> int | None:
        """The node that a rank is on."""
        for event in self.launched:
            if rank in (event.get("ranks") or []):
                return int(event["node_rank"])
        life, beat = self.lives.get(rank), self.beats.get(rank)
        said = (life.start if life else None) or beat or {}
        return said.get("node_rank")

    def unix_ns(self, rank: int, mono_ns: int | None) -> int | None:
        """A time of a rank's monotonic clock as time of day."""
        life, beat = self.lives.get(rank), self.beats.get(rank)
        if mono_ns is None:
            return None
        if life and life.start:
            return int(mono_ns - life.start["mono_ns"] + life.start["unix_ns"])
        return int(mono_ns - beat["beat_ns"] + beat["unix_ns"]) if beat else None

    def last_sign_ns(self, rank: int) -> int | None:
        """When a rank was last heard of, as time of day."""
        life, beat = self.lives.get(rank), self.beats.get(rank)
        said = self.unix_ns(rank, life.last_ns) if life else None
        return max((ns for ns in (said, beat["unix_ns"] if beat else None) if ns is not None), default=None)


@dataclass
class Evidence:
    """All that a run folder says."""

    folder: RunFolder
    run: Fields
    """run.json; empty if it cannot be read."""
    record: Fields | None
    worlds: list[World]
    problems: list[str]
    """What could not be read."""

    @property
    def last(self) -> World | None:
        return self.worlds[-1] if self.worlds else None

    def setting(self, *keys: str, default: Any = None) -> Any:
        """A field of the run's configuration."""
        value: Any = self.run.get("config")
        for key in keys:
            value = value.get(key) if isinstance(value, dict) else None
        return default if value is None else value


def find_folder(text: str) -> RunFolder:
    """The run that a user names, also one that failed before its run.json was written.

    Raises:  RunError if there is none.
    """
    try:
        return find_run(text)
    except RunError:
        for candidate in (Path(text), Path("runs") / text):
            folder = RunFolder(candidate)
            if any(part.is_dir() for part in (folder.events, folder.heartbeats, folder.logs)):
                return folder
        raise


def gather(folder: RunFolder) -> Evidence:
    """Read everything."""
    problems: list[str] = []
    run, record = _read(folder.run_json, problems) or {}, _read(folder.record_json, problems)
    if not folder.run_json.exists():
        problems.append(f"{folder.run_json}: missing, so the run never came to its first step")
    launcher = read_launcher(folder, problems)
    worlds = _launched_worlds(launcher)
    _add_lives(worlds, _read_lives(folder, problems))
    _add_beats(worlds, folder)
    return Evidence(folder, run, record, worlds, problems)


def is_under_way(folder: RunFolder) -> bool:
    """Whether the run still goes on: its launcher lives, or a rank's heart has just beaten.

    The launcher's process id alone does not say: it may be another's by now, or of another machine.
    """
    launcher = read_launcher(folder)
    last = next((event for event in reversed(launcher) if event["event"] in ("launch", "end")), None)
    beats = [beat for rank in heartbeat_ranks(folder) if (beat := read_heartbeat(folder.heartbeat(rank)))]
    if last is not None and last["event"] == "launch" and is_alive(int(last["pid"])):
        sign_ns = max(said["unix_ns"] for said in (launcher[-1], *beats))
        if time.time_ns() - sign_ns < _QUIET_S * 1e9:
            return True
    since_ns = last["unix_ns"] if last is not None else 0
    return any(
        beat["status"] == "running" and beat["unix_ns"] > since_ns and is_fresh(beat) and not _is_dead(beat)
        for beat in beats
    )


def _is_dead(beat: Fields) -> bool:
    """Whether a heartbeat is of a process that is no more; of another machine nobody can say."""
    return bool(beat["host"] == host_name()) and not is_alive(int(beat["pid"]))


def is_fresh(beat: Fields, now_ns: int | None = None) -> bool:
    """Whether a heartbeat is of just now."""
    return (now_ns or time.time_ns()) - int(beat["unix_ns"]) < FRESH_S * 1e9


def heartbeat_ranks(folder: RunFolder) -> list[int]:
    """Ranks that left a heartbeat, in order."""
    if not folder.heartbeats.is_dir():
        return []
    names = (re.fullmatch(r"rank_(\d+)\.json", entry.name) for entry in folder.heartbeats.iterdir())
    return sorted(int(match[1]) for match in names if match)


def read_launcher(folder: RunFolder, problems: list[str] | None = None) -> list[Fields]:
    """The launcher's events, in order; torn lines are counted into `problems`."""
    found: list[Fields] = []
    num_torn = 0
    with contextlib.suppress(OSError):
        for line in folder.launcher_events.read_text(errors="replace").splitlines():
            try:
                event = json.loads(line)
            except json.JSONDecodeError:
                num_torn += bool(line.strip())
                continue
            if isinstance(event, dict) and "event" in event and "unix_ns" in event:
                found.append(event)
    if num_torn and problems is not None:
        problems.append(f"{folder.launcher_events}: {num_torn} torn lines passed over")
    return found


def _read(path: Path, problems: list[str]) -> Fields | None:
    try:
        value = json.loads(path.read_text())
    except FileNotFoundError:
        return None
    except (OSError, json.JSONDecodeError, UnicodeDecodeError) as error:
        problems.append(f"{path}: cannot be read: {error}")
        return None
    return value if isinstance(value, dict) else None


def _launched_worlds(launcher: list[Fields]) -> list[World]:
    """The worlds that the launcher reports, each with what it said of it."""
    worlds: list[World] = []
    launch: Fields | None = None
    for event in launcher:
        kind = event["event"]
        if kind == "launch":
            launch = event
            worlds.append(World(None, launch, event["unix_ns"]))  # until its first world is reported
            continue
        attempt = event.get("attempt")
        if not worlds or worlds[-1].launch is not launch:
            worlds.append(World(attempt, launch, event["unix_ns"]))
        elif attempt is not None and worlds[-1].attempt is None:
            worlds[-1].attempt = attempt
        elif attempt is not None and attempt > worlds[-1].attempt:
            worlds.append(World(attempt, launch, event["unix_ns"]))
        own = next((w for w in reversed(worlds) if w.launch is launch and w.attempt == attempt), worlds[-1])
        if kind == "end":
            own.end = event
        else:
            {"world": own.launched, "exit": own.exits, "hang": own.hangs, "node": own.nodes}.get(kind, []).append(event)
    return worlds


def _read_lives(folder: RunFolder, problems: list[str]) -> list[Life]:
    lives: list[Life] = []
    for rank in folder.event_ranks():
        try:
            events = read_rank(folder, rank)
        except OSError as error:
            problems.append(f"{folder.rank_events(rank)}: cannot be read: {error}")
            continue
        if events.num_torn_lines:
            problems.append(f"{folder.rank_events(rank)}: {events.num_torn_lines} torn lines passed over")
        lives += _cut(rank, events.events)
    return lives


def _cut(rank: int, events: list[Fields]) -> Iterator[Life]:
    """Cut a rank's events into lives. A resumed rank has collectives before its `start`; they count from 0 again."""
    life = Life(rank)
    for event in events:
        kind = event["event"]
        again = kind == "start" and any(e["event"] == "start" for e in life.events)
        if kind == "collective" and event["seq"] == 0:
            again = event["start_ns"] >= (life.last_ns or 0) and bool(life.of("collective"))
        if again or (life.events and life.events[-1]["event"] == "end"):
            yield life
            life = Life(rank)
        life.events.append(event)
    if life.events:
        yield life


def _add_lives(worlds: list[World], lives: list[Life]) -> None:
    """Give every life to its world; lives that no launcher reported make worlds of their own."""
    begun = [(life, life.start) for life in lives if life.start is not None]
    for life, start in sorted(begun, key=lambda pair: pair[1]["unix_ns"]):
        own = _world_of(worlds, life.rank, start)
        if own is None:
            own = World(None, None, start["unix_ns"])
            worlds.append(own)
        own.lives[life.rank] = life
    worlds.sort(key=lambda world: world.began_ns or 0)
    for _, of_rank in itertools.groupby(lives, lambda life: life.rank):
        _add_refused(worlds, list(of_rank))


def _add_refused(worlds: list[World], lives: list[Life]) -> None:
    """Lives that ended before their `start` know no time: each is of the last world before its rank's next life."""
    before = len(worlds)
    for life in reversed(lives):
        if life.start is not None:
            before = next(number for number, world in enumerate(worlds) if world.lives.get(life.rank) is life)
            continue
        if before and life.rank not in worlds[before - 1].lives:
            before -= 1
        else:
            worlds.insert(before, World(None, None))
        worlds[before].lives[life.rank] = life


def _world_of(worlds: list[World], rank: int, start: Fields) -> World | None:
    free = [world for world in reversed(worlds) if rank not in world.lives]
    for world in free:
        if world.launch is not None and start["pid"] in world.pids:
            return world
    for world in free:
        since_ns = start["unix_ns"] - (world.began_ns or 0)
        if world.launch is None:
            others = [other.start for other in world.lives.values() if other.start]
            if all(o["world_size"] == start["world_size"] and o["step"] == start["step"] for o in others):
                return world
        elif not world.pids and since_ns >= 0 and (world.end is None or start["unix_ns"] <= world.end["unix_ns"]):
            return world
    return None


def _add_beats(worlds: list[World], folder: RunFolder) -> None:
    """Sort the heartbeats into their worlds: the last ones, and those that the launcher put aside at a restart."""
    for path in (*folder.heartbeats.glob("attempt_*/rank_*.json"), *folder.heartbeats.glob("rank_*.json")):
        beat = read_heartbeat(path)
        if beat is None or not {"rank", "pid", "unix_ns", "beat_ns", "status", "step"} <= beat.keys():
            continue
        rank, beat = beat["rank"], {**beat, "file": str(path.relative_to(folder.path))}
        own = next((world for world in reversed(worlds) if _is_of(beat, world, rank)), None)
        if own is None and path.parent != folder.heartbeats:
            continue
        if own is None:
            if worlds and (worlds[-1].began_ns or 0) <= beat["unix_ns"]:
                own = worlds[-1]
            else:
                own = World(beat.get("attempt"), None, beat["unix_ns"])
                worlds.append(own)
        own.beats[rank] = beat


def _is_of(beat: Fields, world: World, rank: int) -> bool:
    life = world.lives.get(rank)
    if life is not None and life.start is not None:
        return bool(life.start["pid"] == beat["pid"])
    return beat["pid"] in world.pids
