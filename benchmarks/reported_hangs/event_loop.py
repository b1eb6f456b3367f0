# verl-project/verl#7423: an update runs in a pool's thread while a coroutine sends the weights, both with collectives
# of the same group.
import asyncio
import time
from concurrent.futures import ThreadPoolExecutor

import torch
import torch.distributed as dist

POOL = ThreadPoolExecutor(1)
WAITED_S = {0: 0.0, 1: 1.5, 2: 0.0}  # rank: until its update begins


def update_actor(rank):
    time.sleep(WAITED_S[rank])
    gradient = torch.ones(44)
    dist.all_reduce(gradient)  # here
    return gradient


async def update_weights():
    await asyncio.sleep(0.7)
    weights = torch.ones(21)
    dist.broadcast(weights, src=0)  # here
    return weights


async def run(rank):
    loop = asyncio.get_running_loop()
    update = loop.run_in_executor(POOL, update_actor, rank)
    await asyncio.gather(update, update_weights())


def main():
    dist.init_process_group("gloo")
    dist.all_reduce(torch.ones(3))
    asyncio.run(run(dist.get_rank()))
    dist.destroy_process_group()


main()
