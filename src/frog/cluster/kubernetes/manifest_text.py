"""The text of a manifest: YAML as strict as Kubernetes', a reader of its fields, and the rules for names.

YAML is written so that all parsers read it in the same way. Every key that no code reads is a mistake.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType
from typing import Any

from frog.core.errors import UsageError
from frog.core.schema import check_integers, shortened
from frog.core.user_input import nearest

# ---- YAML ------------------------------------------------------------------------------------------------------------

_PLAIN = re.compile(r"(/|--?)?[A-Za-z][\w./=+@:$()-]*(?<!:)|[1-9][0-9]*([kMGT]|[KMGT]i)", re.ASCII)
_WORDS = ("y", "n", "yes", "no", "on", "off", "true", "false", "null")
"""Words, in any case, that some parsers do not read as strings."""

_BLOCK = re.compile("[\t\n\x20-\x7e\xa0-\u2027\u202a-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]*")
"""Characters that a block keeps as they are and that no parser treats as a line break."""

_MOST_NODES = 100_000
"""Largest length of one text, which takes seconds to read; and largest number of values of a document with its aliases
expanded, because aliases of a few hundred bytes can produce any number of values."""


def load_documents(text: str) -> list[Any]:
    """Return the documents of a text, except empty ones. Raises ValueError, with the line, if it is not valid YAML."""
    yaml = _yaml()

    class StrictLoader(yaml.SafeLoader):  # type: ignore[misc, name-defined]
        """Refuses duplicate keys, and more values than a manifest can have."""

        num_nodes = 0

        def compose_node(self, parent: Any, index: Any) -> Any:
            self.num_nodes += 1
            if self.num_nodes > _MOST_NODES:
                what = f"has more than {_MOST_NODES} values"
                raise yaml.constructor.ConstructorError(None, None, what, self.peek_event().start_mark)
            return super().compose_node(parent, index)

        def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
            seen: set[str] = set()
            for key in (key for key, _ in node.value if isinstance(key.value, str)):
                if key.value in seen:
                    raise yaml.constructor.ConstructorError(None, None, f"duplicate key {key.value!r}", key.start_mark)
                seen.add(key.value)
            mapping: dict[Any, Any] = super().construct_mapping(node, deep)
            return mapping

        def construct_yaml_bool(self, node: Any) -> bool:
            if str(node.value).lower() not in self.bool_values:
                raise yaml.constructor.ConstructorError(
                    None, None, f"{node.value!r}: not true or false", node.start_mark
                )
            return bool(super().construct_yaml_bool(node))

        def construct_document(self, node: Any) -> Any:
            if _unfolded(node, {}) > _MOST_NODES:
                what = f"its aliases expand to more than {_MOST_NODES} values, or refer to themselves"
                raise yaml.constructor.ConstructorError(None, None, what, node.start_mark)
            return super().construct_document(node)

    StrictLoader.add_constructor("tag:yaml.org,2002:bool", StrictLoader.construct_yaml_bool)
    for tag in ("timestamp", "binary"):
        StrictLoader.add_constructor(f"tag:yaml.org,2002:{tag}", StrictLoader.construct_yaml_str)
    StrictLoader.yaml_implicit_resolvers = {
        first: [(tag, pattern) for tag, pattern in resolvers if not tag.endswith(":timestamp")]
        for first, resolvers in StrictLoader.yaml_implicit_resolvers.items()
    }
    for kind in ("int", "float"):
        StrictLoader.add_constructor(f"tag:yaml.org,2002:{kind}", _number_reader(yaml, kind))
    try:
        return [document for document in yaml.load_all(text, Loader=StrictLoader) if document is not None]
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from None
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _number_reader(yaml: ModuleType, kind: str) -> Callable[[Any, Any], Any]:
    """Return a constructor for numbers; 12:30:00 is a text, as Kubernetes reads it, not a number of seconds."""

    def construct(loader: Any, node: Any) -> Any:
        if ":" in str(node.value):
            return loader.construct_yaml_str(node)
        try:
            number = getattr(loader, f"construct_yaml_{kind}")(node)
            check_integers(number)
            return number
        except (ValueError, OverflowError) as error:
            raise yaml.constructor.ConstructorError(None, None, shortened(str(error), 200), node.start_mark) from None

    return construct


def _unfolded(node: Any, known: dict[int, int]) -> int:
    """Count the values of a node with every alias expanded. A node that contains itself exceeds the limit."""
    if id(node) not in known:
        known[id(node)] = _MOST_NODES + 1
        items = node.value if isinstance(node.value, list) else ()
        parts = (part for item in items for part in (item if isinstance(item, tuple) else (item,)))
        known[id(node)] = 1 + sum(_unfolded(part, known) for part in parts)
    return known[id(node)]


def scalar(value: object) -> str:
    """Format a value as YAML on one line: plain if every parser reads the plain text as that text, otherwise quoted.

    Kubernetes' own parser reads some numbers that others read as strings (12e4567), and y and n as true and false.
    """
    if not isinstance(value, str):
        return json.dumps(value)
    return value if _PLAIN.fullmatch(value) and value.lower() not in _WORDS else quoted(value)


def block(text: str, indent: int) -> str:
    """Format a text as a readable YAML block, or in quotes if a block would change it."""
    lines = text.split("\n")
    odd = text[:1] in (" ", "\n", "\t") or not text.endswith("\n") or text.endswith("\n\n")
    if odd or not _BLOCK.fullmatch(text):
        return quoted(text)
    return "|\n" + "\n".join(" " * indent + line if line else "" for line in lines[:-1])


def quoted(text: str) -> str:
    """Quote a text in ASCII, as JSON does, except that YAML has no surrogate pairs."""
    return '"' + "".join(f"\\U{ord(c):08x}" if ord(c) > 0xFFFF else json.dumps(c)[1:-1] for c in text) + '"'


def _yaml() -> ModuleType:
    try:
        import yaml
    except ImportError:
        raise UsageError("PyYAML is not installed, but manifests need it", "pip install 'frog'") from None
    return yaml


# ---- fields ----------------------------------------------------------------------------------------------------------

_UNITS = {"": 1, "m": 0.001, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15, "E": 10**18} | {
    f"{letter}i": 1 << 10 * (place + 1) for place, letter in enumerate("KMGTPE")
}

_MOST_UNKNOWN = 1000
"""Number of an object's unknown keys to report; each needs a search for a similar key."""


_SAME_WORD = 0.8
"""Similarity of a key to a known one, from 0 to 1, above which it is taken for a slip of the keyboard. Frog does not
read all of Kubernetes' fields, and dnsPolicy is not restartPolicy."""


class ManifestError(UsageError):
    """A manifest has a value that Kubernetes would refuse, or that one machine cannot provide."""


class Fields:
    """One object of a manifest. Each key is read once; `done` reports the remaining keys."""

    def __init__(self, value: Any, where: str, problems: list[str]) -> None:
        self.where, self.problems = where, problems
        self._known: list[str] = []
        if not isinstance(value, dict):
            self.problem(f"must be an object, is {_describe(value)}")
        self._left: dict[str, Any] = dict(value) if isinstance(value, dict) else {}

    def problem(self, text: str, key: str | None = None) -> None:
        self.problems.append(f"{self.at(key) if key else self.where}: {text}")

    def at(self, key: str) -> str:
        return f"{self.where}.{key}" if self.where else key

    def has(self, key: str) -> bool:
        return self._left.get(key) is not None

    def text(self, key: str, default: str | None = None, *, choices: Sequence[str] = ()) -> str:
        value = self._take(key, str, default)
        if choices and value is not None and value not in choices:
            self.problem(f"{value!r}: Frog supports only {' or '.join(choices)}", key)
        return value or ""

    def name(self, key: str) -> str:
        """Return the name of an object, which becomes part of paths."""
        value = self._take(key, str, None)
        if value is not None and not is_object_name(value):
            self.problem(f"{value!r}: not a valid Kubernetes name", key)
        return value or ""

    def optional_text(self, key: str) -> str | None:
        value: str | None = self._take(key, str, None, required=False)
        return value

    def number(self, key: str, default: int | None = None, *, least: int = 0, most: int | None = None) -> int:
        value = self._take(key, int, default)
        if value is not None and value < least:
            self.problem(f"{value}: must be at least {least}", key)
        if value is not None and most is not None and value > most:
            self.problem(f"{value}: must be at most {most}", key)
        return value or 0

    def optional_number(self, key: str) -> int | None:
        value: int | None = self._take(key, int, None, required=False)
        return value

    def flag(self, key: str, default: bool = False) -> bool:
        return bool(self._take(key, bool, default))

    def texts(self, key: str) -> list[str]:
        values = self._take(key, list, []) or []
        for number, value in enumerate(values):
            if not isinstance(value, str):
                self.problem(f"must be a string, is {_describe(value)}", f"{key}[{number}]")
        return [value for value in values if isinstance(value, str)]

    def numbers(self, key: str) -> list[int]:
        values = self._take(key, list, None) or []
        for number, value in enumerate(values):
            if type(value) is not int:
                self.problem(f"must be an integer, is {_describe(value)}", f"{key}[{number}]")
        return [value for value in values if type(value) is int]

    def text_map(self, key: str) -> dict[str, str]:
        values = self._take(key, dict, {}) or {}
        for name, value in values.items():
            if not isinstance(value, str):
                self.problem(f"must be a string, is {_describe(value)}", f"{key}.{name}")
        return {str(name): value for name, value in values.items() if isinstance(value, str)}

    def quantity(self, key: str) -> int | None:
        """Return a quantity such as 2Gi, in units of one."""
        value = self._take(key, (str, int, float), None, required=False)
        match = re.fullmatch(r"(\d+(?:\.\d+)?)([a-zA-Z]*)", str(value)) if value is not None else None
        if value is not None and (match is None or match[2] not in _UNITS):
            self.problem(f"{value!r}: not a quantity", key)
        return int(float(match[1]) * _UNITS[match[2]]) if match is not None and match[2] in _UNITS else None

    def object(self, key: str) -> Fields:
        return Fields(self._take(key, dict, {}) or {}, self.at(key), self.problems)

    def objects(self, key: str) -> Iterator[Fields]:
        for number, value in enumerate(self._take(key, list, []) or []):
            yield Fields(value, f"{self.at(key)}[{number}]", self.problems)

    def value(self, key: str, default: Any = None) -> Any:
        """Return a list or an object as it is, for a reader of a later stage; without a default it is an object."""
        kind = list if isinstance(default, list) else dict
        return self._take(key, kind, {} if default is None else default)

    def without_effect(self, *keys: str) -> list[str]:
        """Accept keys that have no effect on one machine; return those that are present."""
        self._known += keys
        return [key for key in keys if self._left.pop(key, None) is not None]

    def refuse(self, key: str, why: str) -> None:
        """Report a key of Kubernetes that one machine does not support, if it is present."""
        if self._left.pop(key, None) is not None:
            self.problem(f"not supported on one machine: {why}", key)

    def done(self) -> None:
        """Report every key that was not read."""
        for key in list(self._left)[:_MOST_UNKNOWN]:
            near = nearest(str(key), self._known, _SAME_WORD)
            what = f"unknown; did you mean {near}?" if near else "unknown, or not supported on one machine"
            self.problem(what, str(key))

    def _take(self, key: str, kind: Any, default: Any, *, required: bool = True) -> Any:
        self._known.append(key)
        value = self._left.pop(key, None)
        if value is None:
            if default is None and required:
                self.problem("missing", key)
            return default
        kinds = kind if isinstance(kind, tuple) else (kind,)
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            words = {str: "a string", int: "an integer", bool: "true or false", list: "a list", dict: "an object"}
            self.problem(f"must be {words[kinds[0]]}, is {_describe(value)}", key)
            return default
        return value


def _describe(value: Any) -> str:
    words = {
        bool: "true or false",
        int: "a number",
        float: "a number",
        str: "a string",
        list: "a list",
        dict: "an object",
    }
    return f"{words.get(type(value), 'nothing')} ({value!r})" if value is not None else "nothing"


# ---- names -----------------------------------------------------------------------------------------------------------

_SERVICE = re.compile(r"[a-z]([a-z0-9-]*[a-z0-9])?")
_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?")
_KEY = re.compile(r"[-._a-zA-Z0-9]+")


def is_service_name(text: str) -> bool:
    """True for a valid name of a Service and of objects named after it, which becomes part of host names (RFC 1035)."""
    return bool(_SERVICE.fullmatch(text)) and len(text) <= 63


def is_label(text: str) -> bool:
    """True for a valid name of a namespace or a volume (RFC 1123)."""
    return bool(_LABEL.fullmatch(text)) and len(text) <= 63


def is_object_name(text: str) -> bool:
    """True for a valid name of most objects: labels separated by dots."""
    return all(map(_LABEL.fullmatch, text.split("."))) and len(text) <= 253


def is_key(text: str) -> bool:
    """True for a valid key of a ConfigMap, which becomes the name of a file."""
    return bool(_KEY.fullmatch(text)) and text != "." and not text.startswith("..") and len(text) <= 253


def is_inner_path(text: str) -> bool:
    """True if a relative path stays inside its starting folder."""
    return bool(text) and not text.startswith(("/", "..")) and ".." not in text.split("/")
