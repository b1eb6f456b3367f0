# PrimeIntellect-ai/prime-rl#2246: one rank's stream of packed sequences ends earlier, and that rank leaves its step in
# the middle.
import torch
import torch.distributed as dist

LENGTHS = {
    0: [40, 60, 50, 50, 60, 40, 50, 50],
    1: [40, 60, 50, 50, 60, 40, 50, 50],
    2: [30, 60, 30, 50, 40, 60, 40, 50],
}


def packed(lengths, size):
    sequence = []
    for length in lengths:
        if sum(sequence) + length > size:
            yield sequence
            sequence = []
        sequence.append(length)
    if sum(sequence) >= size:
        yield sequence


def train(stream, micro_steps):
    exhausted, steps = False, 0
    while not exhausted:  # here
        for _ in range(micro_steps):  # here
            try:
                sequence = next(stream)
            except StopIteration:  # here
                exhausted = True
                break  # here
            loss = torch.tensor([float(sum(sequence))])
            dist.all_reduce(loss)  # here
        if exhausted:  # here
            break  # here
        dist.all_reduce(torch.ones(33))  # here
        steps += 1
    return steps


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    steps = train(packed(LENGTHS[rank], 100), 2)
    counts = [torch.zeros(1) for _ in range(dist.get_world_size())]
    dist.all_gather(counts, torch.tensor([float(steps)]))  # here
    dist.destroy_process_group()


main()
