"""Kubernetes' rules for names: of a Service, a namespace, another object, a ConfigMap's key and its file."""

from __future__ import annotations

import re

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
