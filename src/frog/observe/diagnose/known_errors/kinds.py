"""What an error means if no known error matches it: by its class, its message, and where it was raised.

A table of known errors answers for messages that were seen before. Most exceptions of other people's programs were not,
but nearly all are of a few kinds (a key that is missing, shapes that differ, a version that does not fit), which their
class, their text and the line that raised them tell.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec

from frog.core.schema import Typed, convert, read_toml
from frog.observe.diagnose.known_errors.table.known import Text

if TYPE_CHECKING:
    from frog.observe.diagnose.known_errors.tracebacks import Frame

_FILE = Path(__file__).with_name("kinds.toml")
_HINT = "correct the kind"
_MOST_WORDS_OF_A_KEY = 4
_MOST_TEXT, _MOST_IN_A_NAME = 1500, 80
"""Most characters of a message that are searched, and of a name that is taken from it."""


class Kind(Typed, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """An entry of kinds.toml."""

    id: Text
    exceptions: tuple[Text, ...] = ()
    """Endings of names of classes; empty: any class, and messages without one."""
    text: str = ""
    """A pattern of the message."""
    code: str = ""
    """A pattern of the source line of the user's frame, and of the innermost frame."""
    says: Text
    advice: Text


class _Kinds(Typed, kw_only=True, frozen=True, forbid_unknown_fields=True):
    kind: Annotated[tuple[Kind, ...], msgspec.Meta(min_length=1)]


@dataclass(frozen=True)
class Meaning:
    """A kind, with the names of a message in its sentences."""

    id: str
    says: str
    advice: str


@cache
def kinds() -> tuple[Kind, ...]:
    """Return all kinds. The first call reads them."""
    return convert(read_toml(_FILE, hint=_HINT), _Kinds, str(_FILE), _HINT).kind


@cache
def _pattern(text: str) -> re.Pattern[str]:
    return re.compile(text)


def meaning_of(exception: str, message: str, code: str = "", only: tuple[str, ...] = ()) -> Meaning | None:
    """Return what an error means, by the first kind that fits; None if none does.

    exception: the class without its module, or empty for a line without one.
    code: the source line of the user's frame, and the innermost frame, as far as the log shows them.
    only: ids of the kinds that are tried; empty: all.
    """
    message = message[:_MOST_TEXT].strip()
    is_sentence = exception == "KeyError" and len(message.split()) > _MOST_WORDS_OF_A_KEY
    for kind in kinds():
        if (only and kind.id not in only) or (kind.exceptions and not exception.endswith(kind.exceptions)):
            continue
        if kind.exceptions and is_sentence and not kind.text:
            continue  # the sentence explains what is wrong; it is not a key
        in_text = _pattern(kind.text).search(message)
        if in_text is None and not kind.exceptions:
            in_text = _pattern(kind.text).search(exception)
        if in_text is None or _pattern(kind.code).search(code) is None:
            continue
        first = message.splitlines()[0] if message else "of this name"
        names = {name: (value or "")[:_MOST_IN_A_NAME] for name, value in in_text.groupdict().items()}
        names["message"] = first[:_MOST_IN_A_NAME]
        return Meaning(kind.id, kind.says.format_map(names), kind.advice.format_map(names))
    return None


_PACKAGE = re.compile(r"[/\\](?:site|dist)-packages[/\\](?:[\w.+-]{1,100}\.egg[/\\])?(?P<name>[\w-]{1,80})")


def package_of(innermost: str) -> str:
    """Return the installed package that raised, by the innermost frame; empty if it is none."""
    match = _PACKAGE.search(innermost)
    return match["name"] if match else ""


_STAGES = tuple(
    (stage, re.compile(pattern))
    for stage, pattern in (
        ("while a process that spawn started ran the program's file again (what is outside of "
         "`if __name__ == '__main__':` runs in each of them)",
         r"multiprocessing/spawn\.py in _fixup_main_from_(?:path|name)$"),
        ("while a sample or batch of the data was prepared",
         r"torch/utils/data/_utils/(?:worker|fetch|collate)\.py|datasets?/arrow_dataset\.py"
         r"| in (?:__getitem__|collate\w*)$"),
        ("while the configuration or command line was read",
         r"(?<!utilities)/(?:argparse|jsonargparse|simple_parsing|fire|click|typer|tyro|draccus|pydantic\w*|omegaconf|yaml)(?:/|\.py)"
         r"|hydra/(?:plugins|_internal/(?:config_loader|instantiate|grammar))"
         r"| in (?:parse_args\w*|parse_args_into_dataclasses)$"),
        ("while a checkpoint or model was loaded",
         r" in (?:load_state_dict|from_pretrained|load_checkpoint|load_model\w*|resume\w*|torch_load|load_weights)$"
         r"|torch/serialization\.py in _?load"),
        ("while a checkpoint was saved", r" in (?:save_checkpoint|save_pretrained|save_model|_save\w*|save_state\w*)$"
         r"|torch/serialization\.py in save"),
        ("while the ranks met, before the first step", r" in (?:init_process_group|rendezvous|init_distributed)$"),
        ("in the backward pass", r" in (?:run_backward|backward|_engine_run_backward)$"),
        ("in the optimizer's step", r"torch/optim/\S+ in \w*step\w*$|apex/optimizers/"),
        ("in the model's forward pass", r" in forward$|torch/nn/modules/module\.py in _(?:wrapped_)?call_impl$"),
    )
)  # fmt: skip
"""What a program did when it raised, by "file in function" of its frames; the first that fits counts."""
_IMPORTS = re.compile(r"^(?:import|from) [\w.]+")


def stage_of(frames: Sequence[Frame], source: str) -> str:
    """Return what the program did when it raised, as a clause; empty if its frames do not tell.

    source: the source line of the user's frame.
    """
    places = [f"{frame.file} in {frame.function}" for frame in frames]
    if _IMPORTS.match(source) or any("<frozen importlib" in place for place in places[-6:]):
        return "while modules were imported"
    return next((stage for stage, pattern in _STAGES if any(map(pattern.search, places))), "")
