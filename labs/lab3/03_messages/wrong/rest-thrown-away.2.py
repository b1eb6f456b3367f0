import struct


def send_message(sock, message):
    sock.sendall(struct.pack(">Q", len(message)) + message)


def receive_message(sock):
    with sock.makefile("rb") as file:
        header = file.read(8)
        if not header:
            return None
        if len(header) < 8:
            raise ConnectionError
        (length,) = struct.unpack(">Q", header)
        message = file.read(length)
        if len(message) < length:
            raise ConnectionError
        return message
