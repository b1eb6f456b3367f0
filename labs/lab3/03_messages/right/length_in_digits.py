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
    sock.sendall(b"%d\n" % len(message))
    sock.sendall(message)


def receive_message(sock):
    line = b""
    while not line.endswith(b"\n"):
        c = sock.recv(1)
        if not c:
            if line:
                raise ConnectionError("torn")
            return None
        line += c
    n = int(line)
    out = bytearray(n)
    view = memoryview(out)
    at = 0
    while at < n:
        k = sock.recv_into(view[at:])
        if k == 0:
            raise ConnectionResetError("torn")
        at += k
    return bytes(out)
