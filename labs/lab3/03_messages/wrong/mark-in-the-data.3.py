import weakref

END = b"\n\n--end--\n\n"
BUFFERS = weakref.WeakKeyDictionary()


def send_message(sock, message):
    sock.sendall(message + END)


def receive_message(sock):
    data = BUFFERS.get(sock, b"")
    while END not in data:
        part = sock.recv(4096)
        if not part:
            if data:
                raise ConnectionError("closed in the middle of a message")
            return None
        data += part
    message, _, BUFFERS[sock] = data.partition(END)
    return message
