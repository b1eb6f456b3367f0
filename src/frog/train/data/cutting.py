"""Splits long text at natural boundaries, so that each piece fits into memory."""

from __future__ import annotations

from collections.abc import Iterator

PIECE_CHARS = 64 * 1024


def cut_point(text: str, limit: int) -> int:
    """Return where to end a piece of at most `limit` characters: after the last blank line in its second half, else
    after its last line end, else at `limit`."""
    blank_line = max(text.rfind("\n\n", limit // 2, limit) + 2, text.rfind("\n\r\n", limit // 2, limit) + 3)
    if blank_line > limit // 2:
        return blank_line
    return text.rfind("\n", 0, limit) + 1 or limit


def pieces(text: str, limit: int = PIECE_CHARS) -> Iterator[str]:
    """Yield the text in consecutive pieces of at most `limit` characters."""
    start = 0
    while len(text) - start > limit:
        # Search a slice: searching backwards through `text` itself would take time proportional to its length.
        piece = text[start : start + limit]
        piece = piece[: cut_point(piece, limit)]
        yield piece
        start += len(piece)
    if start < len(text):
        yield text[start:]
