"""A cluster's name server, limited to what pods need: addresses of names in one zone, over UDP (RFC 1035)."""

from __future__ import annotations

import socket
import struct

_RESPONSE, _AUTHORITATIVE, _RECURSION = 0x8000, 0x0400, 0x0100
_NO_SUCH_NAME, _NOT_IMPLEMENTED = 3, 4
_TYPE_A, _CLASS_IN = 1, 1
_TTL_S = 1
_HEADER = struct.Struct("!6H")


class NameServer:
    """Answers queries from the current content of `addresses`."""

    def __init__(self, address: str) -> None:
        self.addresses: dict[str, str] = {}
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind((address, 53))
        self._socket.setblocking(False)

    def serve(self) -> None:
        """Answer every pending query."""
        while True:
            try:
                question, sender = self._socket.recvfrom(512)
            except BlockingIOError:
                return
            if (reply := answer(question, self.addresses)) is not None:
                self._socket.sendto(reply, sender)

    def close(self) -> None:
        self._socket.close()


def answer(question: bytes, addresses: dict[str, str]) -> bytes | None:
    """Return the reply to one message: the address, no data for other types of a known name, or "no such name".

    Returns None if the message is not a query.
    """
    try:
        number, flags, count, *_ = _HEADER.unpack_from(question)
        if flags & _RESPONSE or count != 1:
            return None
        name, end = _read_name(question, _HEADER.size)
        kind, kind_class = struct.unpack_from("!2H", question, end)
    except (struct.error, IndexError, UnicodeDecodeError):
        return None
    asked = question[_HEADER.size : end + 4]
    flags = _RESPONSE | _AUTHORITATIVE | (flags & _RECURSION)
    if flags & 0x7800:
        return _HEADER.pack(number, flags | _NOT_IMPLEMENTED, 1, 0, 0, 0) + asked
    address = addresses.get(name)
    if address is None:
        return _HEADER.pack(number, flags | _NO_SUCH_NAME, 1, 0, 0, 0) + asked
    if (kind, kind_class) != (_TYPE_A, _CLASS_IN):
        return _HEADER.pack(number, flags, 1, 0, 0, 0) + asked
    pointer_to_name = 0xC000 | _HEADER.size
    record = struct.pack("!HHHIH", pointer_to_name, _TYPE_A, _CLASS_IN, _TTL_S, 4) + socket.inet_aton(address)
    return _HEADER.pack(number, flags, 1, 1, 0, 0) + asked + record


def _read_name(message: bytes, at: int) -> tuple[str, int]:
    """Return the name at offset `at`, in lower case, and the offset after it."""
    labels = []
    while length := message[at]:
        labels.append(message[at + 1 : at + 1 + length].decode("ascii").lower())
        at += 1 + length
    return ".".join(labels), at + 1
