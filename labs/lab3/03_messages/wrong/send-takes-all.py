def send_message(sock, message):
    sock.send(len(message).to_bytes(8, "big"))
    sock.send(message)


def exactly(sock, n):
    data = b""
    while len(data) < n:
        part = sock.recv(n - len(data))
        if not part:
            break
        data += part
    return data


def receive_message(sock):
    header = exactly(sock, 8)
    if not header:
        return None
    if len(header) < 8:
        raise ConnectionError
    n = int.from_bytes(header, "big")
    data = exactly(sock, n)
    if len(data) < n:
        raise ConnectionError
    return data
