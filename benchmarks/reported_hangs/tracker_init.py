# EleutherAI/bergson#249: only rank 0 begins an experiment tracker, whose service does not answer, and the others wait
# for it where they create a group.
import socket

import torch
import torch.distributed as dist


def service():
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    return listener


class Tracker:
    def __init__(self, address):
        self.connection = socket.create_connection(address)  # here
        self.connection.sendall(b"start\n")
        self.run_id = self.connection.recv(16)  # here


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    dist.all_reduce(torch.ones(8))
    listener = service()
    if rank == 0:  # here
        tracker = Tracker(listener.getsockname())  # here
        print("run", tracker.run_id, flush=True)
    group = dist.new_group([0, 1, 2])  # here
    dist.all_reduce(torch.ones(4), group=group)
    dist.destroy_process_group()


main()
