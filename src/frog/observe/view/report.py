"""The report: one HTML file that shows how a run went, and opens offline."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import MISSING, asdict, fields
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from frog.core.config import RunConfig
from frog.core.config.load import known_config
from frog.core.files import write_atomic
from frog.core.runs.event_schema import ErrorEvent
from frog.core.runs.folder import RunFolder, check_output, is_only_observed
from frog.core.runs.history import History, read_history
from frog.core.runs.record import Record, RecordedError, RunFile
from frog.core.units import format_bytes, format_count, format_seconds
from frog.hooks import report_sections
from frog.observe.view.charts import charts, marks
from frog.observe.view.checkpoint_reader import CheckpointReader, open_checkpoints
from frog.observe.view.numbers import format_number, format_percent, format_ratio, together
from frog.observe.view.palette import PHASE_COLORS, RANK_COLORS
from frog.observe.view.program_report import observed_context, program_context
from frog.observe.view.report_diagnosis import shown_diagnosis
from frog.observe.view.report_sentences import chart_sentences, time_sentences
from frog.observe.view.runs import numbers_of, status_of, when
from frog.observe.view.timeline import phase_fractions, windows
from frog.observe.view.weights import Movement, weight_movement

if TYPE_CHECKING:
    from jinja2 import Template

_ASSETS = Path(__file__).parent / "assets"
_MAX_SAMPLES = 12
_SECTIONS_OF_PRODUCTS = ("strategy", "prediction", "network")
"""Sections that other products fill; the report omits one that none does."""


def write_report(folder: RunFolder, output: Path | None = None) -> Path:
    """Write the report of a run, or of what the observers of its ranks wrote, and return its path.

    Raises:  RunError if run.json is missing or unreadable. The report itself describes other missing or damaged files.
    """
    path = output or folder.report_html
    check_output(path)
    write_atomic(path, render_report(folder))
    return path


def render_report(folder: RunFolder) -> str:
    """Return the report as HTML text."""
    if is_only_observed(folder.path):
        history = read_history(folder)
        return _template("program.html.jinja").render(**observed_context(folder, history), **_drawing(history))
    run = folder.read_run_json()
    history = read_history(folder)
    if run.program is not None:
        context = program_context(folder, run, run.program, history)
        return _template("program.html.jinja").render(**context, **_drawing(history))
    return _template("report.html.jinja").render(**_context(folder, history), **_drawing(history))


@cache
def _template(name: str) -> Template:
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_ASSETS),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters.update(
        bytes=format_bytes,
        count=format_count,
        seconds=format_seconds,
        when=when,
        number=format_number,
        percent=format_percent,
        ratio=format_ratio,
        together=together,
    )
    return environment.get_template(name)


def _drawing(history: History) -> dict[str, Any]:
    """Return the charts, and what draws them."""
    drawn = {"charts": charts(history), "marks": marks(history)}
    return {
        "charts": drawn["charts"],
        "sentences": chart_sentences(history),
        "chart_json": json_for_script(drawn),
        "phase_colors": PHASE_COLORS,
        "rank_colors": RANK_COLORS,
        "library_css": _asset("uPlot.min.css"),
        "library_js": _asset("uPlot.iife.min.js"),
        "css": _asset("report.css"),
        "js": _asset("report.js"),
        "wider_js": _asset("wider.js"),
    }


def _context(folder: RunFolder, history: History) -> dict[str, Any]:
    run, record = folder.read_run_json(), folder.read_record()
    good, broken = open_checkpoints(folder)
    movement = weight_movement(good)
    status = status_of(folder, run, record)
    fractions = phase_fractions(history)
    return {
        "run": run,
        "status": status,
        "headline": _headline(run, numbers_of(folder, record) if record else None, history),
        "error": _error(folder, record, history, status),
        "diagnosis": shown_diagnosis(folder, [], len(history.ranks)) if status in ("failed", "died") else None,
        "fractions": fractions,
        "time_sentences": time_sentences(fractions, run.segments[-1].num_nodes if run.segments else 1),
        "windows": windows(history),
        **dict.fromkeys(_SECTIONS_OF_PRODUCTS),
        **report_sections(run, history),
        "segments": _segments(run, history),
        "changes": [segment.change for segment in history.segments if segment.change],
        "ranks": [rank.starts[max(rank.starts)] for rank in history.ranks.values() if rank.starts],
        "checkpoints": _checkpoints(history, good),
        "broken_checkpoints": broken,
        "movement": movement,
        "heat": _heat(movement) if movement else [],
        "samples": _samples(history),
        "why_no_checkpoint": _why_none(run, "checkpoint", history),
        "why_no_sample": _why_none(run, "eval", history),
        "problems": history.run.problems,
        "config": _config(run),
    }


def json_for_script(value: Any) -> str:
    """Return JSON for a script element; no text in it can close the element."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _asset(name: str) -> str:
    return (_ASSETS / name).read_text(encoding="utf-8")


def _headline(run: RunFile, record: Record | None, history: History) -> dict[str, Any]:
    """Return the numbers at the top: from the record, or from the events if there is none."""
    main = history.main
    evals = [] if main is None else list(main.evals.values())
    has_steps = main is not None and len(main.steps) > 0
    last = {name: _finite(float(values[-1])) for name, values in main.scalars.items()} if main and has_steps else {}
    last_step = int(main.steps[-1]) if main and has_steps else 0
    loss, tokens_per_s = (record.loss, record.tokens_per_s) if record else (None, None)
    return {
        "step": record.step if record and not run.program else last_step,
        "num_steps": run.count("train", "steps"),
        "loss": loss if loss is not None else last.get("loss_mean"),
        "eval": (record and record.eval) or (evals[-1] if evals else None),
        "tokens_per_s": tokens_per_s if tokens_per_s is not None else last.get("tokens_per_s"),
        "tokens": record and record.tokens,
        "wall_s": record.wall_s if record and record.wall_s is not None else _span_s(history),
        "mfu": last.get("mfu"),
        "world_size": run.segments[-1].world_size if run.segments else len(history.ranks),
        "batch": _batch(run),
        "weights_sha256": record and record.weights_sha256,
        "order_sha256": record and record.order_sha256,
    }


def _batch(run: RunFile) -> str | None:
    """Describe the effective batch size in the last world; None if the run was not trained, or by another version."""
    config = known_config(run.config)
    if config is None or not run.segments or config.world_problems(run.segments[-1].world_size):
        return None
    return config.explain_batch(run.segments[-1].world_size)


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _span_s(history: History) -> float | None:
    times = phase_fractions(history)
    return times[0].wall_ns / 1e9 if times else None


def _error(folder: RunFolder, record: Record | None, history: History, status: str) -> dict[str, Any] | None:
    """Return the failure, with every rank's error; None if nothing failed."""
    error = record.error if record else None
    said = [(rank.rank, event) for rank in history.ranks.values() for event in rank.errors]
    if error is None and status not in ("failed", "died"):
        return None
    rank: int | None = None
    first: RecordedError | ErrorEvent | None = None
    if error is not None:
        rank, first = error.rank, error
    elif said:
        rank, first = said[-1]
    return {
        "type": first and first.type,
        "message": first and first.message,
        "rank": rank,
        "step": first and first.step,
        "others": [{"rank": other, "event": event} for other, event in said if other != rank],
        "log": str(folder.rank_log(rank or 0).relative_to(folder.path)),
    }


def _segments(run: RunFile, history: History) -> list[dict[str, Any]]:
    """Return run.json's segments, with all hosts and the repeated steps from the events."""
    rows = []
    for index, segment in enumerate(run.segments):
        seen = history.segments[index] if len(run.segments) == len(history.segments) else None
        hosts = seen.hosts if seen and seen.hosts else [segment.host]
        rows.append({"segment": segment, "hosts": hosts, "num_retaken": seen.num_retaken if seen else None})
    return rows


def _checkpoints(history: History, good: Sequence[CheckpointReader]) -> list[dict[str, Any]]:
    main = history.main
    saved = main.checkpoints if main else {}
    commits = main.commits if main else {}
    return [
        {
            "step": checkpoint.step,
            "world_size": checkpoint.world_size,
            "payload_bytes": checkpoint.payload_bytes,
            "num_tensors": len(checkpoint.names()),
            "blocked_ms": saved[checkpoint.step].blocked_ns / 1e6 if checkpoint.step in saved else None,
            "write_s": commits[checkpoint.step].write_ns / 1e9 if checkpoint.step in commits else None,
        }
        for checkpoint in good
    ]


def _heat(movement: Movement) -> list[dict[str, Any]]:
    """Return rows of the heat map; `heat` is 0 to 100 on a logarithmic scale from smallest to largest movement."""
    moved = [float(v) for v in movement.values.ravel() if math.isfinite(v) and v > 0]
    low, high = (math.log(min(moved)), math.log(max(moved))) if moved else (0.0, 0.0)

    def heat(value: float) -> int:
        if not math.isfinite(value) or value <= 0:
            return 0
        return 8 + round(92 * (math.log(value) - low) / (high - low)) if high > low else 50

    return [
        {
            "name": name.removeprefix("model.").removesuffix(".weight"),
            "cells": [{"value": float(v) if math.isfinite(v) else None, "heat": heat(float(v))} for v in values],
        }
        for name, values in zip(movement.groups, movement.values, strict=True)
    ]


def _samples(history: History) -> list[dict[str, Any]]:
    """Return at most twelve samples, spread evenly from first to last, each as prompt and continuation."""
    events = list(history.main.samples.values()) if history.main else []
    if len(events) > _MAX_SAMPLES:
        events = [events[round(i * (len(events) - 1) / (_MAX_SAMPLES - 1))] for i in range(_MAX_SAMPLES)]
    return [
        {"step": event.step, "prompt": event.prompt, "text": event.text.removeprefix(event.prompt)} for event in events
    ]


def _config(run: RunFile) -> list[tuple[str, list[tuple[str, str, bool]]]]:
    """Return the configuration by section, and of each setting whether it differs from its default.

    Settings outside any section come first. The sizes of a model have no defaults.
    """
    makers = {field.name: field.default_factory for field in fields(RunConfig)}
    usual = {name: asdict(make()) for name, make in makers.items() if make is not MISSING}
    usual["run"] = {field.name: field.default for field in fields(RunConfig)}
    config = run.config
    sections = {"run": {key: value for key, value in config.items() if not isinstance(value, dict)}}
    sections |= {name: content for name, content in config.items() if isinstance(content, dict)}
    return [
        (
            name,
            [
                (key, _plain(value), name in usual and value != usual[name].get(key, value))
                for key, value in rows.items()
            ],
        )
        for name, rows in sections.items()
        if rows
    ]


def _plain(value: Any) -> str:
    if value is None:
        return "off"
    return value if isinstance(value, str) else json.dumps(value)


def _why_none(run: RunFile, section: str, history: History) -> str:
    """Return why a run has no checkpoint, or no sample, which it writes every `section`.every steps."""
    every = run.count(section, "every")
    step = 0 if history.main is None or not len(history.main.steps) else int(history.main.steps[-1])
    if not every:
        return f"{section}.every is off"
    if section == "eval" and not run.count("eval", "sample_tokens"):
        return "eval.sample_tokens is off"
    return f"its last step was {step}, and {section}.every is {every}"
