def send_message(sock, message):
    sock.sendall(b"%d" % len(message) + message)


def receive_message(sock):
    digits = b""
    while True:
        part = sock.recv(1)
        if not part:
            if digits:
                raise ConnectionError
            return None
        if not part.isdigit():
            break
        digits += part
    n = int(digits)
    data = part
    while len(data) < n:
        more = sock.recv(n - len(data))
        if not more:
            raise ConnectionError
        data += more
    return data
