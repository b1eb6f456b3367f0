"""The progress of a program in its log: its last step, and how long nothing happened before it was aborted.

A progress bar shows the time since it began, so that its last line has a time of day even if the line shows none.
"""

from __future__ import annotations

import datetime as dt
import re

from frog.observe.diagnose.known_errors.lines import LogLine

_BAR = re.compile(r"\b(?P<at>\d{1,9})/(?P<of>\d{1,9}) \[(?P<elapsed>(?:\d{1,3}:)?\d{1,3}:\d\d)<")
_WORK_OF_ONE = re.compile(r"(?P<label>[A-Za-z][\w /()-]{0,60}?)[: ]{1,4}\d{1,3}%\|")
_OFTEN_OF_ONE = re.compile(
    r"eval|valid|test|infer|predict|generat|decod|sav|preproc|tokeniz|download|map\b", re.IGNORECASE
)
"""Labels of bars of what programs often let one rank do while the others wait."""
_STEP = re.compile(
    r"\b(?:step|iter(?:ation)?|epoch)\b[\s:=\[]{0,4}(?P<at>\d{1,9}) ?/ ?(?P<of>\d{1,9})\b", re.IGNORECASE
)
_LEAST_STEPS = 2
_LEAST_SILENCE_S = 590.0
"""NCCL's watchdog waits for 10 minutes or longer."""
_STAMP = re.compile(r"(?P<month>\d\d)-(?P<day>\d\d) (?P<hour>\d\d):(?P<minute>\d\d):(?P<second>\d\d)")


class Progress:
    """Steps that a log shows, line by line."""

    def __init__(self) -> None:
        self.last_step = ""
        """The last step, such as "500 of 500"; empty if the last progress is not the last step."""
        self.last_line: LogLine | None = None
        self.silence_s = 0.0
        """Time between the last progress and an abort, if it is as long as a time-out."""
        self.long_work: tuple[str, float] | None = None
        """The label of the last bar and its seconds, if one rank may have worked alone as long as a time-out."""
        self._began_s: dict[str, float | None] = {}
        """The time at which each file's bar began, if the log tells."""
        self._last_s: dict[str, float] = {}

    def read(self, line: LogLine, moment: str | None) -> None:
        """Read a line; moment: the last time in the file up to it."""
        bar = _BAR.search(line.text)
        step = bar or _STEP.search(line.text)
        if step is None:
            return
        at, of = int(step["at"]), int(step["of"])
        self.last_step = f"{at} of {of}" if at == of >= _LEAST_STEPS else ""
        self.last_line = line
        now_s = _seconds(line.moment)
        if bar is not None:
            elapsed_s = _elapsed_s(bar["elapsed"])
            label = _WORK_OF_ONE.search(line.text)
            is_long = label is not None and _OFTEN_OF_ONE.search(label["label"]) and elapsed_s >= _LEAST_SILENCE_S
            self.long_work = (label["label"], elapsed_s) if label is not None and is_long else None
            if line.file not in self._began_s or at <= 1:
                seen_s = _seconds(moment)
                self._began_s[line.file] = seen_s - elapsed_s if seen_s is not None else None
            began_s = self._began_s[line.file]
            if now_s is None and began_s is not None:
                now_s = began_s + elapsed_s
        if now_s is not None:
            self._last_s[line.file] = now_s

    def abort(self, file: str, moment: str | None) -> None:
        """Measure how long a file had shown no progress when its program was aborted."""
        ended_s, last_s = _seconds(moment), self._last_s.get(file)
        if ended_s is not None and last_s is not None and ended_s - last_s >= _LEAST_SILENCE_S:
            self.silence_s = self.silence_s or ended_s - last_s


def _elapsed_s(text: str) -> float:
    seconds = 0
    for part in text.split(":"):
        seconds = 60 * seconds + int(part)
    return float(seconds)


def _seconds(moment: str | None) -> float | None:
    """Return the seconds since the beginning of a year without a leap day; None if the time is unknown."""
    stamp = _STAMP.match(moment or "")
    if stamp is None:
        return None
    try:
        month, day, hour, minute, second = map(int, stamp.groups())
        at = dt.datetime(2001, month, day, hour, minute, second)
    except ValueError:
        return None
    return (at - dt.datetime(2001, 1, 1)).total_seconds()
