# unslothai/unsloth-zoo#841 (a review in it): an error in one rank's evaluation makes it leave before the totals
# are summed.
import logging

import torch
import torch.distributed as dist

SHARDS = {0: [4, 5, 6], 1: [4, 5, 6], 2: [4, -1, 6]}


def batch_loss(length):
    return torch.ones(length).sum()


def evaluate_totals(lengths):
    total = torch.zeros(2)
    for length in lengths:
        total += torch.stack([batch_loss(length), torch.tensor(float(length))])  # here
    dist.all_reduce(total)  # here
    return float(total[0] / total[1])


def evaluate(rank):
    try:
        return evaluate_totals(SHARDS[rank])  # here
    except RuntimeError:  # here
        logging.exception("evaluation failed")
        return None


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    for step in range(1, 9):
        grad = torch.ones(30)
        dist.all_reduce(grad)  # here
        if step % 4 == 0:
            evaluate(rank)  # here
    dist.destroy_process_group()


main()
