import socket


def send_message(sock, message):
    sock.sendall(message)
    sock.shutdown(socket.SHUT_WR)


def receive_message(sock):
    data = b""
    while part := sock.recv(4096):
        data += part
    return data
