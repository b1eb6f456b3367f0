import struct


def send_message(sock, message):
    sock.sendall(struct.pack(">Q", len(message)) + message)


def receive_message(sock):
    header = sock.recv(8)
    if not header:
        return None
    (length,) = struct.unpack(">Q", header)
    return sock.recv(length)
