"""YAML that all parsers read in the same way, and a parser as strict as Kubernetes': duplicate keys are errors."""

from __future__ import annotations

import json
import re
from types import ModuleType
from typing import Any

from frog.core.errors import UsageError

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
            found: dict[Any, Any] = super().construct_mapping(node, deep)
            return found

        def construct_document(self, node: Any) -> Any:
            if _unfolded(node, {}) > _MOST_NODES:
                what = f"its aliases expand to more than {_MOST_NODES} values, or refer to themselves"
                raise yaml.constructor.ConstructorError(None, None, what, node.start_mark)
            return super().construct_document(node)

    try:
        return [document for document in yaml.load_all(text, Loader=StrictLoader) if document is not None]
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from None
    except RecursionError:
        raise ValueError("nested too deeply") from None


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
