"""Messages as lines of base64, read through one file per connection."""

import base64
import socket
import weakref

_files = weakref.WeakKeyDictionary()


def send_message(sock: socket.socket, message: bytes) -> None:
    sock.sendall(base64.b64encode(message) + b"\n")


def receive_message(sock: socket.socket) -> bytes | None:
    file = _files.get(sock)
    if file is None:
        file = _files[sock] = sock.makefile("rb")
    line = file.readline()
    if not line:
        return None
    if not line.endswith(b"\n"):
        raise ConnectionError("torn in the middle of a line")
    return base64.b64decode(line[:-1], validate=True)
