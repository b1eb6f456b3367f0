"""A program's own error messages outside of tracebacks: of tools, of loggers, of native code.

No list can have them all, but they have a form: a tool's name and the word error, a logger's level, a status, a failed
check. If nothing better explains a log, the strongest of the first such lines is what it says about its failure.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from frog.observe.diagnose.known_errors.lines import LogLine

_FORMS = tuple(
    re.compile(pattern)
    for pattern in (
        # the process ends itself with this message
        r"^ *what\(\): +(?P<what>\S.{4,})|^(?:[\w./-]{1,80}: )?(?:FATAL|fatal|Fatal)(?: error)?: (?P<fatal>\S.{3,})"
        r"|\b(?P<check>(?:CHECK|Check|PADDLE_ENFORCE\w*) failed: .{3,})|^panic: (?P<panic>.{3,})"
        r"|panicked at (?P<panicked>.{3,})|\bsymbol lookup error: (?P<symbol>.{3,})"
        r"|(?P<asserted>\S{1,200}:\d+: .{1,800}: Assertion [`'\"].{1,300}failed)",
        # a tool or the program's own parser refuses to go on
        r"^FAILED \S{1,300}::\S{1,200} - (?P<test>\S.{3,})"
        r"|^(?P<tool>(?:\S{0,200}/)?[\w.+-]{1,60}: (?:\S{1,60}: )?(?:[Ee]rror|ERROR): \S.{3,})"
        r"|(?P<hydra>Could not override '.{1,200}|Error locating target .{1,200}|Error in call to target .{1,200})"
        r"|^(?:Exception in thread \".{1,100}\"|Caused by:) (?P<java>[\w.$]{3,200}(?:Error|Exception)\b.{0,500})"
        r"|^\W{0,4}Exception in [a-z][\w =:]{1,60}?: (?P<thread>\S.{7,})"
        r"|^\W{0,4}(?P<said>(?:[Ee]rror|ERROR)(?: \w{1,20})?: \S.{3,})"
        r"|^(?!(?:Test|Train|Training|Valid|Validation|Val|Eval|Mean|Relative|Absolute|Squared)\b)"
        r"(?P<of>[A-Z]\w{1,30} Error: [A-Za-z/]\S.{3,})"
        r"|^\W{0,4}(?P<python>(?:[\w.]{1,80}\(\) (?:got an unexpected keyword argument|missing \d+ required"
        r"|takes \d+ positional)|'[\w.]{1,80}' object (?:has no attribute|is not)|module '[\w.]{1,80}' has no attribute"
        r"|name '\w{1,80}' is not defined)\b.{0,300})"
        r"|\b(?P<ptxas>ptxas (?:fatal|error) {1,5}: .{3,600})"
        r"|^(?P<command>Command ['\"\[].{0,200}?\b(?:sbatch|srun|qsub|kubectl)\b.{0,300} non-zero exit status \d+)",
        # a status of a framework, or a record that a library takes for an error
        r"(?P<status>\b(?:INVALID_ARGUMENT|RESOURCE_EXHAUSTED|DEADLINE_EXCEEDED|UNAVAILABLE|FAILED_PRECONDITION|INTERNAL"
        r"|UNIMPLEMENTED|NOT_FOUND|PERMISSION_DENIED|UNAUTHENTICATED|DATA_LOSS): .{3,})"
        r"|^(?:\[?E\d{4} [^\]]{1,200}|E \S{1,200}:\d{1,6})\] ?(?P<glog>\S.{3,})",
        # a logger's record
        r"\bNCCL WARN (?P<nccl>(?:\S{1,40} : )?(?:hip|cuda|cu)[A-Z]\w{2,60} failed.{3,})"
        r"|(?:^|[\[| -])(?:ERROR|CRITICAL|SEVERE)\b[\]:| -]{0,6}(?:[\w.]{1,80}:\w{1,60}:\d{1,6} - )?"
        r"(?P<logged>\S.{7,})",
    )
)
"""Forms of messages, the strongest first."""
RECORDS = 2
"""From this form on, a program often continues after the message."""
_WORDS = (
    "rror", "RROR", "what()", "atal: ", "FATAL", "heck failed", "CHECK failed", "PADDLE_ENFORCE", "panic",
    "Assertion", "FAILED ", "non-zero", "CCL WARN ", "Caused by", "Exception in ", "override", "ARGUMENT: ",
    "HAUSTED: ", "EXCEEDED: ", "AVAILABLE: ", "CONDITION: ", "INTERNAL: ", "MENTED: ", "NOT_FOUND: ", "DENIED: ",
    "NTICATED: ", "_LOSS: ", "CRITICAL", "SEVERE", "() got an", "() missing", "() takes", "' object ",
    " has no attribute", " is not defined",
)  # fmt: skip
"""One of these is in each line of one of the forms."""
_MOST, _MOST_TEXT = 5, 600
_OF_ANOTHER = re.compile(
    r"^srun: error: \S{1,200}: tasks? |error: \*\*\* (?:STEP|JOB)|\[ERROR\] \[launch|exitcode"
    r"|no error file defined|torch[./]distributed[./](?:elastic|launch|run)"
    r"|Unable to register cu(?:DNN|FFT|BLAS) factory"  # at each import of TensorFlow
)
"""A scheduler's or launcher's word about a process of the job, or a library's about itself: no message of its own."""


@dataclass(frozen=True)
class Said:
    """A line in which a program says that it failed."""

    line: LogLine
    strength: int
    """Number of its form; 0 is the strongest."""
    text: str


class OwnMessages:
    """The first messages of a log."""

    def __init__(self) -> None:
        self._first: list[Said | None] = [None] * len(_FORMS)
        self.shown: list[Said] = []
        """The first messages of any form."""

    @staticmethod
    def may_be(text: str) -> bool:
        """False for a line that has no message of any form, as nearly all have not."""
        return text.startswith(("E", "[E")) or any(map(text.__contains__, _WORDS))

    def read(self, line: LogLine) -> bool:
        """Read a line that no known error matches; return True if it is a message."""
        if _OF_ANOTHER.search(line.text):
            return False
        for strength, form in enumerate(_FORMS):
            match = form.search(line.text)
            if match is not None:
                text = next(group for group in match.groups() if group is not None)
                said = Said(line, strength, text.strip()[:_MOST_TEXT])
                self._first[strength] = self._first[strength] or said
                if len(self.shown) < _MOST:
                    self.shown.append(said)
                return True
        return False

    def best(self) -> Said | None:
        """Return the first message of the strongest form; None if there is none."""
        return next((said for said in self._first if said is not None), None)
