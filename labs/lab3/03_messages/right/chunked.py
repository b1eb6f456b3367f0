"""Messages as chunks of at most 255 bytes, each with its length; a length of 0 ends the message."""


def send_message(sock, message):
    for start in range(0, len(message), 255):
        part = message[start : start + 255]
        sock.sendall(bytes([len(part)]) + part)
    sock.sendall(b"\0")


def exactly(sock, n):
    data = b""
    while len(data) < n:
        part = sock.recv(n - len(data))
        if not part:
            raise ConnectionError("closed")
        data += part
    return data


def receive_message(sock):
    first = sock.recv(1)
    if not first:
        return None
    size, parts = first[0], []
    while size:
        parts.append(exactly(sock, size))
        size = exactly(sock, 1)[0]
    return b"".join(parts)
