import socket
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
    sock.sendall(struct.pack(">Q", len(message)) + message)


def receive_message(sock):
    first = sock.recv(1, socket.MSG_PEEK)
    if not first:
        return None
    try:
        head = _exactly(sock, 8)
        n = int.from_bytes(head, "big")
        if n == 0:
            return b""
        body = _exactly(sock, n)
        if body is None:
            raise EOFError
        return body
    except EOFError:
        raise ConnectionError("in the middle") from None
