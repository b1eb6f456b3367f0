import struct


def send_message(sock, message):
    sock.sendall(struct.pack(">I", len(message)))
    sock.sendall(message)


def receive_message(sock):
    header = sock.recv(4)
    if not header:
        return None
    (length,) = struct.unpack(">I", header)
    data = b""
    while len(data) < length:
        part = sock.recv(length - len(data))
        if not part:
            raise ConnectionError("closed")
        data += part
    return data
