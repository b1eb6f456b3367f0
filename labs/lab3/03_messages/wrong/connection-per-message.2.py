def send_message(sock, message):
    with sock:
        sock.sendall(message)


def receive_message(sock):
    parts = []
    while part := sock.recv(4096):
        parts.append(part)
    return b"".join(parts)
