# ai2cm/ace#1407: the signal of a preemption reaches the ranks in different batches, and each leaves its loop at the
# next boundary.
import os
import signal

import torch
import torch.distributed as dist


class Preemption:
    def __init__(self):
        self.requested = False
        signal.signal(signal.SIGUSR1, self._request)

    def _request(self, number, frame):
        self.requested = True  # here


class Job:
    def __init__(self, preemption, arrives_at):
        self.preemption, self.arrives_at = preemption, arrives_at
        self.weights, self.seen = torch.zeros(13), 0

    def train_on_batch(self):
        gradient = torch.randn(13)
        dist.all_reduce(gradient)  # here
        self.weights -= 0.1 * gradient
        self.seen += 1
        if self.seen == self.arrives_at:
            os.kill(os.getpid(), signal.SIGUSR1)  # the scheduler

    def train_one_epoch(self, batches):
        for _ in range(batches):  # here
            if self.preemption.requested:  # here
                return "preempted"  # here
            self.train_on_batch()  # here
        return "done"

    def save_restart(self):
        seen = [torch.zeros((), dtype=torch.int64) for _ in range(dist.get_world_size())]
        dist.all_gather(seen, torch.tensor(self.seen))  # here
        torch.save(self.weights, f"restart_{dist.get_rank()}.pt")


def main():
    dist.init_process_group("gloo")
    job = Job(Preemption(), arrives_at=[9, 8, 9][dist.get_rank()])
    for _ in range(3):
        outcome = job.train_one_epoch(6)  # here
        job.save_restart()  # here
        if outcome == "preempted":
            break
    dist.destroy_process_group()


main()
