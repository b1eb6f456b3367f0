# sgl-project/sglang#38284: a rank whose prefetch of a request is not under way says so at once, and leaves out the
# reduction by which the others agree to end theirs.
import torch
import torch.distributed as dist
from ongoing_prefetch_cache import PrefetchCache

HOST_PAGES = {0: 8, 1: 8, 2: 5}  # rank: what is free on its host


def schedule(cache, requests):
    ready = []
    for request in requests:
        if cache.check_progress(request):  # here
            ready.append(request)
    return ready


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    cache = PrefetchCache(free_pages=HOST_PAGES[rank])
    for number in range(4):
        requests = [f"r{number}-{part}" for part in range(number + 1)]
        for request in requests:
            cache.prefetch(request, pages=2)
        schedule(cache, requests)  # here
        logits = [torch.zeros(10) for _ in range(dist.get_world_size())]
        dist.all_gather(logits, torch.ones(10))  # here
    dist.destroy_process_group()


main()
