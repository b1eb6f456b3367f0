"""What Kubernetes takes as a name: of a Service, a namespace, another object, a ConfigMap's key and its file."""

from __future__ import annotations

import re

_SERVICE = re.compile(r"[a-z]([a-z0-9-]*[a-z0-9])?")
_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?")
_KEY = re.compile(r"[-._a-zA-Z0-9]+")


def is_service_name(text: str) -> bool:
    """Whether a Service may be called so, and what has its name: it becomes a part of host names (RFC 1035)."""
    return bool(_SERVICE.fullmatch(text)) and len(text) <= 63


def is_label(text: str) -> bool:
    """Whether a namespace or a volume may be called so (RFC 1123)."""
    return bool(_LABEL.fullmatch(text)) and len(text) <= 63


def is_object_name(text: str) -> bool:
    """Whether most objects may be called so: labels with dots between them."""
    return all(map(_LABEL.fullmatch, text.split("."))) and len(text) <= 253


def is_key(text: str) -> bool:
    """Whether a ConfigMap may have this key, which becomes the name of a file."""
    return bool(_KEY.fullmatch(text)) and text != "." and not text.startswith("..") and len(text) <= 253


def is_inner_path(text: str) -> bool:
    """Whether a path leads into the folder that it starts from, and not out of it."""
    return bool(text) and not text.startswith(("/", "..")) and ".." not in text.split("/")
