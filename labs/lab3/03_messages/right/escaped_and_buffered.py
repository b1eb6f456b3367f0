"""Messages as lines, with line ends escaped; extra bytes wait for the next call, by connection."""

import weakref

REST = weakref.WeakKeyDictionary()


def send_message(sock, message):
    sock.sendall(message.replace(b"%", b"%25").replace(b"\n", b"%0A") + b"\n")


def receive_message(sock):
    rest = REST.get(sock, b"")
    while b"\n" not in rest:
        part = sock.recv(65536)
        if not part:
            if rest:
                raise ConnectionAbortedError("in the middle")
            return None
        rest += part
    line, REST[sock] = rest.split(b"\n", 1)
    return line.replace(b"%0A", b"\n").replace(b"%25", b"%")
