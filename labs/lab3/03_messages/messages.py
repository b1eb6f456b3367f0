"""Messages over a TCP connection."""

import socket


def send_message(sock: socket.socket, message: bytes) -> None:
    """Send one message of any length, including empty ones, and leave the connection open for more messages.

    Do not wait for an answer.
    """
    raise NotImplementedError("fill in send_message")


def receive_message(sock: socket.socket) -> bytes | None:
    """Wait for the next message and return it, or None if the other side has closed after its last one.

    Raises:  ConnectionError if the other side has closed in the middle of a message.
    """
    raise NotImplementedError("fill in receive_message")
