"""From a run folder to a film: once for a run that has ended, or again and again while it runs.

`film_of(folder)` is the whole run. A `FilmReader` reads only what is new since its last film. The ranks are not
slowed: it reads files that they write anyway. Only when they have stood still for some seconds it asks them, once, for
their stacks and collectives, as `frog observe` does, and diagnoses the run from the answer.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from pathlib import Path

import psutil

from frog.core.env import machine
from frog.core.errors import RunError, describe_exit
from frog.core.runs.event_schema import Beat
from frog.core.runs.folder import RunFolder
from frog.core.runs.heartbeat import read_heartbeat
from frog.core.runs.launcher_schema import (
    AnyLauncherEvent,
    ExitEvent,
    HangEvent,
    LauncherEndEvent,
    LaunchEvent,
    NodeEvent,
    ReplaceEvent,
    ReturnEvent,
    StallEvent,
    WorldEvent,
)
from frog.core.runs.observed import Observed, Status, read_observed, read_statuses, write_request
from frog.core.runs.positions import Changes, Moment, positions_path
from frog.core.runs.record import RunFile
from frog.core.runs.run import is_active, is_fresh
from frog.core.terminal import printable
from frog.core.units import count, format_seconds, span
from frog.observe.view.report_diagnosis import ShownDiagnosis, shown_diagnosis, source_roots
from frog.observe.view.runs import row_of_observed, status_of
from frog.observe.watch.film import Film, FilmEvent, FilmNode, Lane, Words, first_failure
from frog.observe.watch.program_lanes import (
    ProgramLanes,
    describe_observed,
    lane_of_last,
    observed_errors,
    program_folder,
    recorded_calls,
)
from frog.observe.watch.trained_lanes import (
    MOST_ROWS,
    Point,
    Tail,
    TrainedRank,
    curves,
    error_events,
    flat,
    steps_of,
)

STILL_S = 5.0
"""Ranks that wait for others this long, without a change on any rank, are asked what they know."""
_GOOD = ("completed", "ended")
_ANSWER_S = 5.0
"""Time to wait for the answers of all ranks."""
_STUCK_S = 10.0
"""A heartbeat that shows one collective for this long is worth a diagnosis."""
_LEAST_LANES = 4
_MOST_EVENTS = 400
_MOST_CALLS = 300
_TEXT = 300
_STILL = "no rank makes progress from here on"


def film_of(folder: RunFolder) -> Film:
    """Return the film of a run at this moment.

    Raises:  RunError if run.json cannot be read.
    """
    reader = FilmReader(folder, asks=False)
    film = reader.read()
    film.diagnosis = reader.diagnose(film)
    return film


class FilmReader:
    """Reads a run that may be in progress.

    asks: ask ranks that stand still for their stacks and collectives.
    """

    def __init__(self, folder: RunFolder, *, asks: bool = True, most_rows: int = MOST_ROWS) -> None:
        self.folder, self._asks, self._most_rows = folder, asks, most_rows
        self._words = Words()
        self._launcher = Tail(folder.launcher_events, AnyLauncherEvent)
        self._events: list[AnyLauncherEvent] = []
        self._trained: dict[int, TrainedRank] = {}
        self._points: dict[tuple[int, int], Point] = {}
        self._programs: dict[int, ProgramLanes] = {}
        """Lanes by attempt."""
        self._tails: dict[int, Tail] = {}
        self._changes: dict[int, Changes] = {}
        self._asked: set[object] = set()
        self._run: RunFile | None = None
        self._still_s = 0.0
        self._request = 0
        """Number of the last request to the ranks."""
        self._symptoms: tuple[object, ...] = ()
        self._diagnosis: ShownDiagnosis | None = None

    # ---- reading -----------------------------------------------------------------------------------------------------

    def read(self, now_ns: int | None = None) -> Film:
        """Return the film of this moment, with the diagnosis of `renew_diagnosis`, if there was one.

        Raises:  RunError if run.json cannot be read.
        """
        now_ns = now_ns or time.time_ns()
        self._run = self._run or self._read_run_json()
        self._events += self._launcher.read()
        observed = read_observed(self.folder.path)
        self._read_trained()
        beats = self._beats()
        status = self._status()
        is_live = status == "running"
        self._look_at_programs(observed, is_live)
        if is_live:
            self._measure(beats, now_ns)
        start_ns = self._start_ns(observed, beats) or now_ns
        end_ns = now_ns if is_live else self._last_ns(observed, beats, start_ns)
        film = Film(
            name=printable(self._run.name if self._run else self.folder.path.name),
            status=status,
            command=printable(" ".join(self._command())),
            created=self._run.created if self._run else "",
            start_unix_ns=start_ns,
            end=(end_ns - start_ns) // 1000,
            is_live=is_live,
            diagnosis=self._diagnosis,
        )
        film.lanes = self._lanes(observed, beats, start_ns, end_ns, is_live)
        film.words = self._words.rows
        film.series = curves(self._points.values(), start_ns)
        film.steps = steps_of(self._points.values(), start_ns)
        still_s = self._find_still_s(beats, end_ns) if is_live or status not in _GOOD else 0.0
        self._still_s = still_s if is_live else 0.0
        film.still_s = round(self._still_s, 1)
        film.events = self._film_events(
            observed, start_ns, end_ns - round(still_s * 1e9) if still_s >= STILL_S else None
        )
        film.failure = first_failure(film.events)
        film.nodes, film.network = self._nodes(film.lanes), self._network()
        film.notes = self._notes(observed, is_live)
        return film

    def _read_trained(self) -> None:
        """Read what Frog's trainer and `frog.record` have written on each rank."""
        ranks = self.folder.event_ranks()
        for rank in ranks:
            if rank not in self._trained:
                share = self._most_rows // max(_LEAST_LANES, len(ranks))
                self._trained[rank] = TrainedRank(rank, self.folder.rank_events(rank), self._words, share)
            self._trained[rank].read(self._points)

    def _read_run_json(self) -> RunFile | None:
        return self.folder.read_run_json() if self.folder.run_json.exists() else None

    def _command(self) -> list[str]:
        if self._run is None:
            return []
        if self._run.program is not None:
            return self._run.program.command
        first, *rest = self._run.argv or ["frog"]
        own = Path(first)
        return ["frog", own.parent.name, *rest] if own.name == "__main__.py" else [own.name, *rest]

    @property
    def _program_folder(self) -> str:
        program = self._run.program if self._run is not None else None
        return program_folder(program.command, program.cwd) if program is not None else str(Path.cwd())

    def _status(self) -> str:
        if self._run is None and (self.folder.path / "observed").is_dir():
            return row_of_observed(self.folder.path).status
        if self._run is None:
            return "running" if is_active(self.folder) else "died"
        try:
            record = self.folder.read_record()
        except RunError:
            record = None
        return status_of(self.folder, self._run, record)

    def _beats(self) -> dict[int, Beat]:
        beats = {rank: read_heartbeat(self.folder.heartbeat(rank)) for rank in self.folder.heartbeat_ranks()}
        return {rank: beat for rank, beat in beats.items() if beat is not None}

    def _look_at_programs(self, observed: Mapping[int, Mapping[int, Observed]], is_live: bool) -> None:
        """Add the moments that the launcher has written; without a launcher, those that this process sees."""
        for attempt, ranks in observed.items():
            lanes = self._programs.get(attempt)
            if lanes is None:
                most = self._most_rows // 2 // max(_LEAST_LANES, len(ranks))
                lanes = self._programs[attempt] = ProgramLanes(self._words, self._program_folder, most)
            path = positions_path(self.folder.path, attempt)
            moments = list(self._tails.setdefault(attempt, Tail(path, Moment)).read())
            if not path.exists() and is_live and attempt == max(observed):
                seen = read_statuses(self.folder.path, attempt)
                moment = self._changes.setdefault(attempt, Changes()).look(seen)
                moments = [moment] if moment is not None else []
            for moment in moments:
                if moment.unix_ns > lanes.last_ns:
                    lanes.add(moment)

    def _measure(self, beats: Mapping[int, Beat], now_ns: int) -> None:
        """Measure the processes of Frog's ranks on this machine, which record no processor time."""
        for rank, beat in beats.items():
            if rank not in self._trained or beat.status != "running" or beat.machine != machine():
                continue
            with contextlib.suppress(psutil.Error):
                process = psutil.Process(beat.pid)
                times = process.cpu_times()
                self._trained[rank].measure(now_ns, times.user + times.system, process.memory_info().rss)

    # ---- time --------------------------------------------------------------------------------------------------------

    def _start_ns(self, observed: Mapping[int, Mapping[int, Observed]], beats: Mapping[int, Beat]) -> int:
        """Return the earliest time that is known; 0 if there is none."""
        known = [event.unix_ns for event in self._events]
        known += [rank.first_ns for rank in self._trained.values() if rank.first_ns]
        known += [status.started_unix_ns for status in _statuses(observed)]
        known += [] if known else [beat.unix_ns for beat in beats.values()]
        return min(known, default=0)

    def _last_ns(self, observed: Mapping[int, Mapping[int, Observed]], beats: Mapping[int, Beat], start_ns: int) -> int:
        known = [start_ns, *(event.unix_ns for event in self._events)]
        known += [rank.last_ns for rank in self._trained.values()]
        known += [status.unix_ns for status in _statuses(observed)]
        known += [beat.unix_ns for beat in beats.values()]
        return max(known)

    def _find_still_s(self, beats: Mapping[int, Beat], now_ns: int) -> float:
        """Return how long ranks have waited for others without any change; 0 if none waits."""
        if self._programs:
            lanes = self._programs[max(self._programs)]
            return (now_ns - lanes.still_since_ns) / 1e9 if lanes.is_waiting else 0.0
        waits = [
            (beat.beat_ns - beat.open[0].start_ns) / 1e9
            for beat in beats.values()
            if beat.open and is_fresh(beat, now_ns)
        ]
        silent = [(now_ns - beat.unix_ns) / 1e9 for beat in beats.values() if beat.status == "running"]
        return max([wait for wait in waits if wait > _STUCK_S] + [age for age in silent if age > _STUCK_S], default=0.0)

    # ---- the parts of a film -----------------------------------------------------------------------------------------

    def _lanes(
        self,
        observed: Mapping[int, Mapping[int, Observed]],
        beats: Mapping[int, Beat],
        start_ns: int,
        end_ns: int,
        is_live: bool,
    ) -> list[Lane]:
        lanes: dict[int, Lane] = {}
        for rank, trained in self._trained.items():
            beat = beats.get(rank)
            until_ns = beat.unix_ns if beat is not None else 0
            if is_live and beat is not None and is_fresh(beat):
                until_ns = end_ns
            lanes[rank] = trained.lane(start_ns, beat, until_ns)
        for attempt in sorted(observed):
            for own in observed[attempt].values():
                self._add_observed(lanes, attempt, own, start_ns, end_ns if is_live else 0)
        exits = {event.rank: event for event in self._events if isinstance(event, ExitEvent)}
        for rank, event in exits.items():
            if rank in lanes and not lanes[rank].state.startswith("failed with") and not is_live:
                lanes[rank].state = describe_exit(event.code)
        if not is_live:
            for lane in lanes.values():
                lane.state = "stopped with the run" if lane.state == "running" else lane.state
        return [lanes[rank] for rank in sorted(lanes)]

    def _add_observed(
        self, lanes: dict[int, Lane], attempt: int, own: Observed, start_ns: int, live_until_ns: int
    ) -> None:
        """Add one attempt of an observed rank to its lane."""
        is_new = own.rank not in lanes
        lane = lanes.setdefault(own.rank, Lane(own.rank))
        if is_new or not lane.bars:
            lane.state = "running"
        of_attempt = self._programs[attempt]
        seen_ns = own.status.unix_ns if own.status is not None else of_attempt.last_ns
        is_last = attempt == max(self._programs)
        until_ns = live_until_ns if live_until_ns and is_last else max(seen_ns, of_attempt.last_ns)
        program = of_attempt.lanes.get(own.rank)
        if program is not None:
            lane.bars += flat(of_attempt.rows(own.rank, until_ns), start_ns)
            lane.use += [v for at, mib, percent in program.use for v in ((at - start_ns) // 1000, mib, percent)]
        elif own.status is not None:
            lane.bars += lane_of_last(own, self._words, self._program_folder, start_ns).bars
        most = _MOST_CALLS if len(lanes) <= 16 else _MOST_CALLS // 3
        lane.calls += flat(recorded_calls(own, self._words, self._program_folder, until_ns, most), start_ns)
        describe_observed(lane, own)

    def _film_events(
        self, observed: Mapping[int, Mapping[int, Observed]], start_ns: int, still_ns: int | None
    ) -> list[FilmEvent]:
        """Return what happened. still_ns: since when no rank made progress, if that lasted until the end."""
        stalls = [event.unix_ns for event in self._events if isinstance(event, StallEvent | HangEvent)]
        stalled_ns = min(stalls, default=None)
        events = [shown for event in self._events for shown in _shown_event(event, start_ns, stalled_ns)]
        for trained in self._trained.values():
            events += error_events(trained, start_ns)
            events += [FilmEvent((at - start_ns) // 1000, None, "note", text) for at, text in trained.notes[-100:]]
        for ranks in observed.values():
            events += observed_errors(ranks.values(), start_ns)
        events += self._not_finite(start_ns)
        if still_ns is not None and not any(event.kind == "failure" for event in events):
            events.append(FilmEvent((still_ns - start_ns) // 1000, None, "failure", _STILL))
        events.sort(key=lambda event: (event.at, event.rank or 0))
        events = [
            FilmEvent(max(0, event.at), event.rank, event.kind, printable(event.text)[:_TEXT]) for event in events
        ]
        if len(events) > _MOST_EVENTS:
            events = [*events[: _MOST_EVENTS // 2], *events[-_MOST_EVENTS // 2 :]]
        return events

    def _not_finite(self, start_ns: int) -> list[FilmEvent]:
        """Return the first step whose loss is not a finite number, if losses were recorded before."""
        has_loss = False
        for point in sorted(self._points.values(), key=lambda point: point.end_ns):
            if point.loss is not None:
                has_loss = True
            elif has_loss:
                text = f"the loss of step {point.step} is not a finite number"
                return [FilmEvent((point.end_ns - start_ns) // 1000, None, "failure", text)]
        return []

    def _nodes(self, lanes: list[Lane]) -> list[FilmNode]:
        """Return the nodes, of a run that has several."""
        by_node: dict[int, list[Lane]] = {}
        for lane in lanes:
            if lane.node is not None:
                by_node.setdefault(lane.node, []).append(lane)
        if len(by_node) < 2:
            return []
        return [FilmNode(node, own[0].host, [lane.rank for lane in own]) for node, own in sorted(by_node.items())]

    def _network(self) -> str:
        """Describe the simulated links between nodes; empty without any."""
        launch = next((event for event in reversed(self._events) if isinstance(event, LaunchEvent)), None)
        link = launch.network if launch is not None else None
        if link is None:
            return ""
        parts = [f"{link.rate_bits_per_s / 1e6:g} Mbit/s" if link.rate_bits_per_s else "", f"{link.delay_s * 1e3:g} ms"]
        end = next((event for event in reversed(self._events) if isinstance(event, LauncherEndEvent)), None)
        late = ""
        if end is not None and end.network is not None:
            late = f"; frames arrived {end.network.mean_late_s * 1e3:.2g} ms later than that on average"
        return f"simulated links of {' and '.join(filter(None, parts))} delay{late}"

    def _notes(self, observed: Mapping[int, Mapping[int, Observed]], is_live: bool) -> list[str]:
        notes = []
        every = max((rank.blocks.every for rank in self._trained.values()), default=1)
        if every > 1:
            notes.append(
                f"Each earlier block stands for up to {every} steps: a block has the sum of each phase's time, in the "
                f"order of a step. The last steps are whole."
            )
        if len(self._points) > 1500:
            notes.append(f"The curves have the means of neighboring steps ({len(self._points):,} steps in all).")
        if observed and not any(lanes.lanes for lanes in self._programs.values()) and not is_live:
            notes.append("Only the last position of each rank is known: nothing recorded where it was before.")
        if any(lanes.lanes for lanes in self._programs.values()):
            notes.append("The lines and waits of the program were looked at twice a second, not continuously.")
        if observed and not self._points:
            notes.append("No loss: the program does not call frog.record.")
        bad = sum(rank.num_bad for rank in self._trained.values()) + self._launcher.num_bad
        if bad:
            notes.append(f"{count(bad, 'damaged line')} of the events could not be read.")
        if not observed and not self._trained:
            notes.append("No rank has written anything yet." if is_live else "No rank wrote anything.")
        return notes

    # ---- the diagnosis -----------------------------------------------------------------------------------------------

    def renew_diagnosis(self, film: Film) -> bool:
        """Ask ranks that stand still, and diagnose the run if its symptoms changed. Return True if it was diagnosed."""
        self.ask_if_still()
        symptoms = self.symptoms()
        if symptoms == self._symptoms:
            return False
        self._symptoms = symptoms
        film.diagnosis = self._diagnosis = self.diagnose(film) if symptoms else None
        return True

    def ask_if_still(self) -> bool:
        """Ask the ranks for their evidence if they stand still and were not asked yet; return True if they were."""
        if not self._asks or self._still_s < STILL_S or not self._programs:
            return False
        lanes = self._programs[max(self._programs)]
        if lanes.still_since_ns in self._asked:
            return False
        self._asked.add(lanes.still_since_ns)
        self._request = write_request(self.folder.path, "watch")
        return True

    def symptoms(self) -> tuple[object, ...]:
        """Return what a diagnosis depends on: while it stays equal, so does the diagnosis. Empty: nothing is wrong."""
        exits = len([event for event in self._events if isinstance(event, ExitEvent | HangEvent | StallEvent)])
        ended = self.folder.record_json.exists() or self.folder.attempt_json.exists()
        errors = len(list((self.folder.path / "observed").glob("attempt_*/rank_*/error.json")))
        errors += sum(len(rank.errors) for rank in self._trained.values())
        still: tuple[object, ...] = ()
        if self._still_s >= STILL_S:
            statuses = _statuses(read_observed(self.folder.path))
            missing = any(status.answered < self._request and status.is_fresh(time.time_ns()) for status in statuses)
            answered = [status.answered for status in statuses]
            since = self._programs[max(self._programs)].still_since_ns if self._programs else 0
            if not missing or self._still_s > STILL_S + _ANSWER_S:  # else a part of the evidence is missing
                still = (since, tuple(answered), self._still_s > _STUCK_S)
        return (exits, errors, ended, still) if exits or errors or still or ended else ()

    def diagnose(self, film: Film) -> ShownDiagnosis | None:
        """Return what is wrong with the run, as the report shows it; None if nothing is known to be."""
        program = self._run.program if self._run is not None else None
        return shown_diagnosis(self.folder, source_roots(program), len(film.lanes))


def _statuses(observed: Mapping[int, Mapping[int, Observed]]) -> list[Status]:
    return [own.status for ranks in observed.values() for own in ranks.values() if own.status is not None]


def _shown_event(event: AnyLauncherEvent, start_ns: int, stalled_ns: int | None) -> list[FilmEvent]:
    """Return a launcher's event for people; empty for those that say nothing new.

    stalled_ns: when the launcher found ranks that stood still, and ended them.
    """
    at = (event.unix_ns - start_ns) // 1000
    match event:
        case WorldEvent():
            ranks = span(event.ranks) if len(event.ranks) < event.world_size else count(event.world_size, "rank")
            again = f"attempt {event.attempt + 1}: " if event.attempt else ""
            return [FilmEvent(at, None, "start", f"{again}{ranks} start")]
        case ExitEvent():
            kind = f" with {event.error.type}" if event.error is not None else ""
            was_ended = stalled_ns is not None and event.unix_ns >= stalled_ns
            text = f"{describe_exit(event.code)}{kind}"
            return [FilmEvent(at, event.rank, "end" if was_ended else "failure", text)]
        case HangEvent():
            how = "sent no heartbeat" if event.kind == "silent" else "stayed in one collective"
            begun = at - round(event.waited_s * 1e6)
            text = f"{how} for {format_seconds(event.waited_s)} and was killed"
            return [
                FilmEvent(begun, event.rank, "failure", "stands still from here on"),
                FilmEvent(at, event.rank, "end", text),
            ]
        case StallEvent():
            begun = at - round(event.still_s * 1e6)
            return [
                FilmEvent(begun, None, "failure", _STILL),
                FilmEvent(at, None, "end" if event.ends else "note", event.text.partition("\n")[0]),
            ]
        case NodeEvent() if event.code:
            return [FilmEvent(at, None, "end", f"node {event.host} {describe_exit(event.code)}")]
        case ReplaceEvent():
            return [FilmEvent(at, event.rank, "note", f"is replaced by process {event.pid}")]
        case ReturnEvent():
            return [FilmEvent(at, None, "note", f"node {event.host} returns")]
        case LauncherEndEvent():
            how = "the run ended" if event.code == 0 else f"the run ended with exit code {event.code}"
            return [FilmEvent(at, None, "end", how)]
        case _:
            return []
