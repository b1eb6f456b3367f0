# APPFL/APPFL#133: every process looks whether the output folder is there, and makes it if it is not.
import logging
import os

import torch
import torch.distributed as dist


def create_custom_logger(folder, name):
    missing = os.path.isdir(folder) is False
    clients = [None] * dist.get_world_size()
    dist.all_gather_object(clients, name)
    if missing:
        os.mkdir(folder)  # here
    logger = logging.getLogger(name)
    logger.addHandler(logging.FileHandler(os.path.join(folder, f"{name}.log")))
    logger.warning("training with %s", ", ".join(clients))
    return logger


class FedAvgClient:
    def __init__(self, rank):
        self.weights = torch.zeros(6)
        self.logger = create_custom_logger("outputs_ServerFedAvg", f"client_{rank}")  # here

    def update(self):
        self.weights += 0.1 * torch.randn(6)
        dist.all_reduce(self.weights)
        self.weights /= dist.get_world_size()


def main():
    dist.init_process_group("gloo")
    client = FedAvgClient(dist.get_rank())  # here
    for _ in range(10):
        client.update()
    dist.destroy_process_group()


main()
