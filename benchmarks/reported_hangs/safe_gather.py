# NVIDIA/TensorRT-LLM#7507: a rank that cannot pickle its object gathers a flag before it raises, where the others
# gather sizes and then the objects.
import pickle
import threading

import torch
import torch.distributed as dist


class Session:
    def __init__(self, name):
        self.name = name
        self.tokens = list(range(len(name)))


class Locked(Session):
    def __init__(self, name):
        super().__init__(name)
        self.lock = threading.Lock()


def all_gather(tensor):
    parts = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, tensor)  # here
    return parts


def to_tensor(data, size):
    return torch.tensor(list(data.ljust(size, b"\0")), dtype=torch.uint8)


def safe_gather(thing):
    """Gather one object of each rank; all raise if one cannot be pickled."""
    try:
        payload = pickle.dumps(thing)  # here
    except Exception as error:
        all_gather(torch.zeros(4))  # here
        raise RuntimeError(f"rank {dist.get_rank()} cannot serialize: {error}") from error  # here
    sizes = [int(size) for size in all_gather(torch.tensor([len(payload)]))]  # here
    parts = all_gather(to_tensor(payload, max(sizes)))  # here
    return [pickle.loads(bytes(part.tolist())[:size]) for part, size in zip(parts, sizes, strict=True)]


def make_session(rank, turn):
    kind = Locked if rank == 1 and turn == 2 else Session
    return kind(f"turn {turn} of rank {rank}")


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    for turn in range(4):
        sessions = safe_gather(make_session(rank, turn))  # here
        print([session.name for session in sessions])
    dist.destroy_process_group()


main()
