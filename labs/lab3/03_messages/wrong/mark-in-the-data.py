def send_message(sock, message):
    sock.sendall(message + b"\n")


def receive_message(sock):
    data = b""
    while not data.endswith(b"\n"):
        part = sock.recv(1)
        if not part:
            if data:
                raise ConnectionError("closed in the middle")
            return None
        data += part
    return data[:-1]
