def send_message(sock, message):
    sock.sendall(message)


def receive_message(sock):
    return sock.recv(1 << 20) or None
