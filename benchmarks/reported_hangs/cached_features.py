# huggingface/transformers#1081: the loading of cached features has a barrier for the ranks that do not write the cache,
# and is also called for an evaluation that only the first rank runs.
import argparse
import logging
import pickle
from pathlib import Path

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset

logger = logging.getLogger(__name__)


def load_and_cache_examples(args, evaluate=False):
    if args.local_rank not in (-1, 0):
        dist.barrier()
    name = Path(f"cached_{'dev' if evaluate else 'train'}_{args.task}.pkl")
    if name.exists():
        logger.info("loading features from %s", name)
        features = pickle.loads(name.read_bytes())
    else:
        features = [[float(i), float(i % 3)] for i in range(24)]
        if args.local_rank in (-1, 0):
            name.write_bytes(pickle.dumps(features))
    if args.local_rank == 0:
        dist.barrier()  # here
    return TensorDataset(torch.tensor(features))


def train(args, dataset, weight):
    for (batch,) in DataLoader(dataset, batch_size=8):
        gradient = batch.sum(0) * weight
        dist.all_reduce(gradient)
        weight = weight - 0.01 * gradient
    return weight


def evaluate(args, weight):
    dataset = load_and_cache_examples(args, evaluate=True)  # here
    return sum(float((batch * weight).sum()) for (batch,) in DataLoader(dataset, batch_size=8))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--task", default="mrpc")
    parser.add_argument("--do_eval", action=argparse.BooleanOptionalAction, default=True)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    args.local_rank = dist.get_rank()
    weight = train(args, load_and_cache_examples(args), torch.ones(2))
    if args.do_eval and args.local_rank in (-1, 0):  # here
        print(evaluate(args, weight))  # here
    total = weight.sum()
    dist.all_reduce(total)


main()
