# huggingface/trl#6698: the loss is computed in chunks of the tokens that are not masked, and each chunk gathers the
# sharded head.
import torch
import torch.distributed as dist
import torch.nn.functional as F

CHUNK, WIDTH, VOCABULARY = 4, 6, 12


class ShardedHead:
    def __init__(self):
        self.world = dist.get_world_size()
        self.shard = torch.randn(VOCABULARY // self.world, WIDTH)

    def __enter__(self):
        parts = [torch.empty_like(self.shard) for _ in range(self.world)]
        dist.all_gather(parts, self.shard)  # here
        self.full = torch.cat(parts)
        return self.full

    def __exit__(self, *unused):
        del self.full


def chunked_nll(hidden, labels, head):
    valid = (labels != -100).nonzero().flatten()
    total = hidden.new_zeros(())
    for start in range(0, len(valid), CHUNK):  # here
        rows = valid[start : start + CHUNK]
        with head as weight:  # here
            logits = hidden[rows] @ weight.T
        total = total + F.cross_entropy(logits, labels[rows], reduction="sum")
    return total / max(1, len(valid))


def examples(rank):
    """Labels of a rank's sequences; the prompt is masked."""
    for prompt in ((4, 4, 4), (2, 2, 2), (8, 5, 13)):
        labels = torch.randint(0, VOCABULARY, (16,))
        labels[: prompt[rank]] = -100
        yield labels


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    head, losses = ShardedHead(), []
    for labels in examples(rank):
        losses.append(chunked_nll(torch.randn(16, WIDTH), labels, head))  # here
        mean = torch.stack(losses).mean()
        dist.all_reduce(mean)  # here
    dist.destroy_process_group()


main()
