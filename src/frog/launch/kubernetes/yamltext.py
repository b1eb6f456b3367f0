"""YAML, read as strictly as Kubernetes reads it: a key twice in one object is a mistake."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from frog.core.errors import UsageError


def load_documents(text: str) -> list[Any]:
    """The documents of a text, empty ones left out. Raises ValueError, with the line, if it is not valid YAML."""
    yaml = _yaml()

    class StrictLoader(yaml.SafeLoader):  # type: ignore[misc, name-defined]
        """Refuses a key that comes twice."""

        def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
            seen: set[str] = set()
            for key in (key for key, _ in node.value if isinstance(key.value, str)):
                if key.value in seen:
                    raise yaml.constructor.ConstructorError(None, None, f"key {key.value!r} twice", key.start_mark)
                seen.add(key.value)
            found: dict[Any, Any] = super().construct_mapping(node, deep)
            return found

    try:
        return [document for document in yaml.load_all(text, Loader=StrictLoader) if document is not None]
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from None


def reads_as_itself(text: str) -> bool:
    """Whether YAML reads a text that is written plainly, without quotes, as that text, wherever it stands."""
    yaml = _yaml()
    try:
        return bool(yaml.safe_load(f"[{text}]") == [text] and yaml.safe_load(f"k: {text}") == {"k": text})
    except yaml.YAMLError:
        return False


def _yaml() -> ModuleType:
    try:
        import yaml
    except ImportError:
        raise UsageError("PyYAML is not installed, which manifests need", "pip install 'frog'") from None
    return yaml
