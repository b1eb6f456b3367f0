import struct


def _exactly(sock, n):
    data = b""
    while len(data) < n:
        part = sock.recv(n - len(data))
        if not part:
            if data:
                raise ConnectionError("closed in the middle")
            return None
        data += part
    return data


def send_message(sock, message):
    if not message:
        return
    sock.sendall(struct.pack(">Q", len(message)) + message)


def receive_message(sock):
    head = _exactly(sock, 8)
    if head is None:
        return None
    body = _exactly(sock, struct.unpack(">Q", head)[0])
    if body is None:
        raise ConnectionError("closed")
    return body
