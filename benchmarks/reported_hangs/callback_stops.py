# netket/netket#651: the callbacks run on every rank with that rank's numbers, and one of them asks one rank to stop.
import torch
import torch.distributed as dist


class BelowThreshold:
    def __init__(self, least):
        self.least = least

    def __call__(self, step, data):
        return data["energy"] > self.least


def energy_of(rank, step):
    return 1.0 - 0.1 * step - (0.25 if rank == 2 else 0.0)


def run(steps, callbacks, rank):
    callback_stop = False
    for step in range(steps):  # here
        energy = torch.tensor([energy_of(rank, step)])
        forces = torch.full((30,), float(energy))
        dist.all_reduce(forces)  # here
        for callback in callbacks:
            if not callback(step, {"energy": float(energy)}):  # here
                callback_stop = True
        if callback_stop:  # here
            break  # here
    return forces


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    forces = run(9, [BelowThreshold(0.3)], rank)
    samples = [torch.zeros(5) for _ in range(dist.get_world_size())]
    dist.all_gather(samples, forces[:5].clone())  # here
    dist.destroy_process_group()


main()
