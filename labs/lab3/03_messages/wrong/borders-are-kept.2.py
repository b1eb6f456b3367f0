def send_message(sock, message):
    sock.sendall(len(message).to_bytes(4, "big") + message)


def receive_message(sock):
    data = sock.recv(1 << 24)
    return data[4:] if data else None
