"""Cut long text where it hurts least, so that no piece is larger than memory allows."""

from __future__ import annotations

from collections.abc import Iterator

PIECE_CHARS = 64 * 1024


def cut_point(text: str, limit: int) -> int:
    """Where to end a piece of at most `limit` characters: the last blank line in its second half, else the last line
    end in it, else `limit` itself."""
    blank_line = max(text.rfind("\n\n", limit // 2, limit) + 2, text.rfind("\n\r\n", limit // 2, limit) + 3)
    if blank_line > limit // 2:
        return blank_line
    return text.rfind("\n", 0, limit) + 1 or limit


def pieces(text: str, limit: int = PIECE_CHARS) -> Iterator[str]:
    """The text in pieces of at most `limit` characters; joined they are the text."""
    start = 0
    while len(text) - start > limit:
        # A slice, because searching `text` itself backwards from its end would cost its whole length every time.
        piece = text[start : start + limit]
        piece = piece[: cut_point(piece, limit)]
        yield piece
        start += len(piece)
    if start < len(text):
        yield text[start:]
