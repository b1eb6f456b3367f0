# huggingface/trl#6862 (a review in it): a rank whose loss raises asks all ranks whether one failed, while they
# gather metrics inside the loss.
import torch
import torch.distributed as dist

BATCHES = {(1, 4): [3, 12, 5]}  # rank, step: tokens, otherwise all below 10


def compute_loss(tokens):
    if max(tokens) > 9:
        raise ValueError("a token of an image has no feature")  # here
    loss = torch.tensor(tokens, dtype=torch.float32).mean()
    gathered = [torch.empty(5) for _ in range(dist.get_world_size())]
    dist.all_gather(gathered, torch.full((5,), float(loss)))  # here
    return loss


def training_step(tokens):
    error, loss = None, None
    try:
        loss = compute_loss(tokens)  # here
    except ValueError as caught:  # here
        error = caught
    failed = torch.tensor([float(error is not None)])
    dist.all_reduce(failed)  # here
    if failed.item():
        raise RuntimeError("the forward pass failed on a rank") from error
    return loss


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    for step in range(8):
        training_step(BATCHES.get((rank, step), [1, 2, 3]))
    dist.destroy_process_group()


main()
