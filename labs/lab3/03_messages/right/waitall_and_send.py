import socket


def send_message(sock, message):
    data = memoryview(len(message).to_bytes(5, "little") + message)
    while data:
        data = data[sock.send(data) :]


def receive_message(sock):
    header = sock.recv(5, socket.MSG_WAITALL)
    if not header:
        return None
    if len(header) < 5:
        raise ConnectionError
    size = int.from_bytes(header, "little")
    buffer = bytearray(size)
    view = memoryview(buffer)
    while view:
        got = sock.recv_into(view)
        if got == 0:
            raise ConnectionError
        view = view[got:]
    return bytes(buffer)
