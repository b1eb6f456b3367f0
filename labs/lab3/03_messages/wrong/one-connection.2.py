_buffer = b""
def send_message(sock, message):
    sock.sendall(len(message).to_bytes(8, "big") + message)
def receive_message(sock):
    global _buffer
    while len(_buffer) < 8 or len(_buffer) < 8 + int.from_bytes(_buffer[:8], "big"):
        part = sock.recv(4096)
        if not part:
            if _buffer: raise ConnectionError
            return None
        _buffer += part
    n = int.from_bytes(_buffer[:8], "big")
    out, _buffer = _buffer[8:8 + n], _buffer[8 + n:]
    return out
