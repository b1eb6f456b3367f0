# deepspeedai/DeepSpeed#8262: ranks finish generation at different lengths; each decoding step and the teacher
# gather parameters.
import torch
import torch.distributed as dist

LENGTHS = {(1, 3): 5}  # rank, rollout: tokens until the end of the text, otherwise 8


def gather(size):
    parts = [torch.empty(size) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, torch.ones(size))  # here
    return torch.cat(parts)


def generate(length, limit=12):
    tokens = []
    while len(tokens) < limit:  # here
        weights = gather(24)  # here
        tokens.append(int(weights.sum()))
        if len(tokens) == length:  # here
            break  # here
    return tokens


def score(tokens):
    return gather(96).sum() * len(tokens)  # here


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    for rollout in range(6):
        tokens = generate(LENGTHS.get((rank, rollout), 8))  # here
        score(tokens)  # here
    dist.destroy_process_group()


main()
