"""The contrast of two colors."""

from __future__ import annotations

from collections.abc import Sequence


def contrast(one: str | Sequence[float], other: str | Sequence[float]) -> float:
    """Return the contrast as WCAG 2 defines it: 1 to 21. A color is #rrggbb, or red, green and blue from 0 to 1."""
    dark, light = sorted(_luminance(color) for color in (one, other))
    return (light + 0.05) / (dark + 0.05)


def rgb(color: str) -> list[float]:
    """Return red, green and blue from 0 to 1."""
    return [int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)]


def _luminance(color: str | Sequence[float]) -> float:
    parts = rgb(color) if isinstance(color, str) else color
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return sum(share * part for share, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))
