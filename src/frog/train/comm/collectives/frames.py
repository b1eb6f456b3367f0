"""Frames: the header before each payload on a socket.

A connection carries a sequence of frames: a header of 32 bytes, then `num_bytes` of payload. The header names the
collective that the payload belongs to, and ends with a MAC (message authentication code), a keyed hash of the header
and of the frame's number on this connection. Only a process with the group's secret can make one, and a frame that
is repeated, missing, reordered or damaged has the wrong MAC. A receiver checks the MAC before it trusts any field,
such as the size or the kind.

On connections within a machine the payload's checksum is zero and is not checked: the kernel copies memory there, and
a checksum would cost more than the copy.

Units: sizes in bytes, integers big-endian.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
import zlib
from dataclasses import dataclass

from frog.train.comm.collectives.errors import Refused

MAGIC = 0x4672
VERSION = 1
_FIELDS = struct.Struct("!HBBIQII")
"""Magic, version, kind, sequence number, bytes of payload, checksum of the payload, tag."""
_NUMBER = struct.Struct("!Q")
MAC_BYTES = 8
HEADER_BYTES = _FIELDS.size + MAC_BYTES
MOST_BYTES = 1 << 40

DATA, MESSAGE, CONTROL = range(3)
KINDS = ("data", "message", "control")


@dataclass(frozen=True)
class Header:
    """A header with a valid MAC."""

    kind: int
    seq: int
    num_bytes: int
    checksum: int
    tag: int = 0

    def __str__(self) -> str:
        return f"{KINDS[self.kind]} {self.seq} of {self.num_bytes} bytes"


class FrameCodec:
    """One direction of a connection: numbers the frames, and encodes or checks their headers."""

    def __init__(self, key: bytes, checks_payload: bool) -> None:
        self._keyed = hashlib.blake2s(key=key, digest_size=MAC_BYTES)
        self._number = 0
        self.checks_payload = checks_payload

    def _next_mac(self, fields: bytes) -> bytes:
        mac = self._keyed.copy()
        mac.update(_NUMBER.pack(self._number) + fields)
        self._number += 1
        return mac.digest()

    def header(self, kind: int, seq: int, payload: memoryview | bytes, tag: int = 0) -> bytes:
        """Return the header of the next frame."""
        checksum = zlib.crc32(payload) if self.checks_payload else 0
        fields = _FIELDS.pack(MAGIC, VERSION, kind, seq & 0xFFFFFFFF, len(payload), checksum, tag)
        return fields + self._next_mac(fields)

    def open(self, header: bytes | bytearray | memoryview) -> Header:
        """Check the MAC of the next frame's header, and return the header.

        Raises:  Refused if it is not a frame of this group, has another version, is damaged, or is not the next one.
        """
        fields, mac = bytes(header[: _FIELDS.size]), bytes(header[_FIELDS.size :])
        magic, version, kind, seq, num_bytes, checksum, tag = _FIELDS.unpack(fields)
        if magic != MAGIC:
            raise Refused(f"not a frame: it starts with {fields[:2].hex()}, not {MAGIC:04x}", "corrupt")
        if version != VERSION:
            raise Refused(f"a frame of version {version}; this is version {VERSION}", "mismatch")
        if not hmac.compare_digest(mac, self._next_mac(fields)):
            raise Refused("a frame with a wrong MAC: damaged, repeated, or not from this group", "corrupt")
        if kind >= len(KINDS) or num_bytes > MOST_BYTES:
            raise Refused(f"a frame of kind {kind} and {num_bytes} bytes", "corrupt")
        return Header(kind, seq, num_bytes, checksum, tag)

    def check(self, header: Header, payload: memoryview | bytes) -> None:
        """Raise Refused if the payload does not match the header's checksum."""
        if self.checks_payload and zlib.crc32(payload) != header.checksum:
            raise Refused(f"the payload of {header} is damaged: its checksum differs", "corrupt")


def keys_of(secret: bytes, nonces: bytes) -> tuple[bytes, bytes]:
    """Return the keys of a connection's two directions: the caller's, and the callee's.

    nonces: random bytes of both sides, so that no frame of an earlier connection is valid.
    """
    caller, called = (hashlib.blake2s(nonces + way, key=secret[:32]).digest() for way in (b">", b"<"))
    return caller, called
