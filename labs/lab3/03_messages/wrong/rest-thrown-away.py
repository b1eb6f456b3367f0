import struct


def send_message(sock, message):
    sock.sendall(struct.pack(">Q", len(message)) + message)


def receive_message(sock):
    data = b""
    while len(data) < 8 or len(data) - 8 < struct.unpack(">Q", data[:8])[0]:
        part = sock.recv(4096)
        if not part:
            if not data:
                return None
            raise ConnectionError("closed in the middle")
        data += part
    (length,) = struct.unpack(">Q", data[:8])
    return data[8 : 8 + length]
