# KempnerInstitute/KempnerForge#49: each rank asks the file system itself whether there is a training state, and one of
# them does not see the file yet, so that it leaves out the broadcast of what is in it.
import shutil
from pathlib import Path

import torch
import torch.distributed as dist


class NetworkFolder:
    """A shared folder of which each client sees its own, cached state."""

    def __init__(self, client):
        self.client = Path(f"client_{client}")
        self.client.mkdir(exist_ok=True)

    def path(self, name):
        return self.client / name

    def publish(self, name, fresh_clients):
        for client in fresh_clients:
            if client != self.client.name:
                shutil.copy(self.path(name), Path(client) / name)


class CheckpointManager:
    def __init__(self, folder):
        self.folder, self.rank = folder, dist.get_rank()

    def save(self, step):
        if self.rank == 0:
            torch.save({"step": step}, self.folder.path("train_state.pt"))
            self.folder.publish("train_state.pt", ["client_0", "client_1"])
        dist.barrier()

    def load(self):
        path = self.folder.path("train_state.pt")
        extra = [{"step": 0}]
        if path.exists():  # here
            if self.rank == 0:
                extra = [torch.load(path)]
            dist.broadcast_object_list(extra, src=0)  # here
        return extra[0]


def main():
    dist.init_process_group("gloo")
    folder = NetworkFolder(dist.get_rank())
    dist.barrier()
    manager = CheckpointManager(folder)
    manager.save(step=3)
    state = manager.load()  # here
    weights = torch.zeros(17)
    for _ in range(state["step"], 6):
        gradient = torch.randn(17)
        dist.all_reduce(gradient)  # here
        weights -= 0.1 * gradient
    dist.destroy_process_group()


main()
