# ByteDance-Seed/VeOmni#1076: an assertion that only the first rank makes fails and is kept for a report, so that this
# rank ends while the other waits in the barrier after it.
import traceback

import torch
import torch.distributed as dist


def ring_shift(tensor, rank, world):
    received = torch.empty_like(tensor)
    requests = [dist.isend(tensor, (rank + 1) % world), dist.irecv(received, (rank - 1) % world)]
    for request in requests:
        request.wait()
    return received


class Case:
    """One check on all ranks; errors are kept and printed at the end."""

    def __init__(self, name, errors):
        self.name, self.errors = name, errors
        self.rank, self.world = dist.get_rank(), dist.get_world_size()

    def run(self):
        try:
            self.check()  # here
        except Exception:  # here
            self.errors.append((self.name, traceback.format_exc(limit=1)))
        return not self.errors


class TestRing(Case):
    def check(self):
        value = torch.arange(12.0) + self.rank
        passed = ring_shift(value, self.rank, self.world)
        whole = [torch.empty(12) for _ in range(self.world)]
        dist.all_gather(whole, passed)
        if self.rank == 0:
            reference = torch.stack(list(reversed(whole))) * 1.001
            torch.testing.assert_close(reference[0], value)  # here
        dist.barrier()  # here


def main():
    dist.init_process_group("gloo")
    errors = []
    results = [TestRing(name, errors).run() for name in ("forward", "backward")]
    print(f"{sum(results)} of {len(results)} passed")


main()
