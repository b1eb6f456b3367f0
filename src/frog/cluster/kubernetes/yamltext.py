"""YAML, written so that every reader reads the same, and read as strictly as Kubernetes does: no key comes twice."""

from __future__ import annotations

import json
import re
from types import ModuleType
from typing import Any

from frog.core.errors import UsageError

_PLAIN = re.compile(r"(/|--?)?[A-Za-z][\w./=+@:$()-]*(?<!:)|[1-9][0-9]*([kMGT]|[KMGT]i)", re.ASCII)
_WORDS = ("y", "n", "yes", "no", "on", "off", "true", "false", "null")
"""Not texts to every reader, in whatever case."""

_BLOCK = re.compile("[\t\n\x20-\x7e\xa0-\u2027\u202a-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]*")
"""What stands for itself in a block, and breaks no line that is none."""

_MOST_NODES = 100_000
"""Of one text, which takes seconds to read; and of a document with its aliases unfolded, of which a few hundred bytes
make as many values as one likes."""


def load_documents(text: str) -> list[Any]:
    """The documents of a text, empty ones left out. Raises ValueError, with the line, if it is not valid YAML."""
    yaml = _yaml()

    class StrictLoader(yaml.SafeLoader):  # type: ignore[misc, name-defined]
        """Refuses a key that comes twice, and more values than a manifest can have."""

        num_nodes = 0

        def compose_node(self, parent: Any, index: Any) -> Any:
            self.num_nodes += 1
            if self.num_nodes > _MOST_NODES:
                what = f"holds more than {_MOST_NODES} values"
                raise yaml.constructor.ConstructorError(None, None, what, self.peek_event().start_mark)
            return super().compose_node(parent, index)

        def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
            seen: set[str] = set()
            for key in (key for key, _ in node.value if isinstance(key.value, str)):
                if key.value in seen:
                    raise yaml.constructor.ConstructorError(None, None, f"key {key.value!r} twice", key.start_mark)
                seen.add(key.value)
            found: dict[Any, Any] = super().construct_mapping(node, deep)
            return found

        def construct_document(self, node: Any) -> Any:
            if _unfolded(node, {}) > _MOST_NODES:
                what = f"its aliases unfold to more than {_MOST_NODES} values, or to themselves"
                raise yaml.constructor.ConstructorError(None, None, what, node.start_mark)
            return super().construct_document(node)

    try:
        return [document for document in yaml.load_all(text, Loader=StrictLoader) if document is not None]
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from None
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _unfolded(node: Any, known: dict[int, int]) -> int:
    """How many values a node has with every alias written out. One that holds itself has more than are allowed."""
    if id(node) not in known:
        known[id(node)] = _MOST_NODES + 1
        items = node.value if isinstance(node.value, list) else ()
        parts = (part for item in items for part in (item if isinstance(item, tuple) else (item,)))
        known[id(node)] = 1 + sum(_unfolded(part, known) for part in parts)
    return known[id(node)]


def scalar(value: object) -> str:
    """A value as YAML on one line: plain where every reader takes the plain text for that text, else quoted.

    Kubernetes' own reader knows numbers that others take for texts (12e4567), and y and n for true and false.
    """
    if not isinstance(value, str):
        return json.dumps(value)
    return value if _PLAIN.fullmatch(value) and value.lower() not in _WORDS else quoted(value)


def block(text: str, indent: int) -> str:
    """A text as a YAML block that can be read; quoted where a block would change it."""
    lines = text.split("\n")
    odd = text[:1] in (" ", "\n", "\t") or not text.endswith("\n") or text.endswith("\n\n")
    if odd or not _BLOCK.fullmatch(text):
        return quoted(text)
    return "|\n" + "\n".join(" " * indent + line if line else "" for line in lines[:-1])


def quoted(text: str) -> str:
    """A text in quotes, all of it ASCII. JSON's way, but that YAML has no pairs of surrogates."""
    return '"' + "".join(f"\\U{ord(c):08x}" if ord(c) > 0xFFFF else json.dumps(c)[1:-1] for c in text) + '"'


def _yaml() -> ModuleType:
    try:
        import yaml
    except ImportError:
        raise UsageError("PyYAML is not installed, which manifests need", "pip install 'frog'") from None
    return yaml
