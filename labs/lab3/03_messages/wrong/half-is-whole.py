"""Messages over a TCP connection."""

import socket


def send_message(sock: socket.socket, message: bytes) -> None:
    """Send one message of any length, including empty ones, and leave the connection open for more messages.

    Do not wait for an answer.
    """
    sock.sendall(len(message).to_bytes(8, "big") + message)


def receive_message(sock: socket.socket) -> bytes | None:
    """Wait for the next message and return it, or None if the other side has closed after its last one.

    Raises:  ConnectionError if the other side has closed in the middle of a message.
    """
    header = receive_up_to(sock, 8)
    if not header:
        return None
    if len(header) < 8:
        raise ConnectionError(f"closed after {len(header)} of the 8 bytes of a length")
    length = int.from_bytes(header, "big")
    message = receive_up_to(sock, length)
    return message


def receive_up_to(sock: socket.socket, length: int) -> bytes:
    """Receive that many bytes, or fewer if the other side has closed."""
    received = bytearray()
    while len(received) < length:
        part = sock.recv(min(length - len(received), 1 << 20))
        if not part:
            break
        received += part
    return bytes(received)
