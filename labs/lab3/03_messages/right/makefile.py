import struct


def send_message(sock, message):
    with sock.makefile("wb") as file:
        file.write(struct.pack("<I", len(message)))
        file.write(message)


def receive_message(sock):
    file = sock.makefile("rb", buffering=0)
    header = read(file, 4)
    if header == b"":
        return None
    if len(header) != 4:
        raise ConnectionResetError("torn header")
    size = struct.unpack("<I", header)[0]
    body = read(file, size)
    if len(body) != size:
        raise EOFError_(f"{len(body)} of {size}")
    return body


class EOFError_(ConnectionError):
    pass


def read(file, n):
    parts = []
    while n and (part := file.read(n)):
        parts.append(part)
        n -= len(part)
    return b"".join(parts)
