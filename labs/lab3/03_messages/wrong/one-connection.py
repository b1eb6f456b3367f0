import struct

_buffer = b""


def send_message(sock, message):
    sock.sendall(struct.pack(">I", len(message)) + message)


def receive_message(sock):
    global _buffer

    def need(n):
        global _buffer
        while len(_buffer) < n:
            part = sock.recv(65536)
            if not part:
                return False
            _buffer += part
        return True

    if not need(4):
        if _buffer:
            _buffer = b""
            raise ConnectionError("torn")
        return None
    n = int.from_bytes(_buffer[:4], "big")
    if not need(4 + n):
        _buffer = b""
        raise ConnectionError("torn")
    out, _buffer = _buffer[4 : 4 + n], _buffer[4 + n :]
    return out
