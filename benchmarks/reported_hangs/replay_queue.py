# agentica-project/verl-pipeline#1: the trainer polls a replay queue until it has a whole batch, which it never will:
# the thread that fills it has ended, since incomplete groups were left out.
import queue
import threading
import time

import torch
import torch.distributed as dist

GROUP, BATCH = 4, 3


class RolloutWorker(threading.Thread):
    def __init__(self, replay, prompts):
        super().__init__(daemon=True)
        self.replay, self.prompts = replay, prompts

    def generate(self, prompt):
        answers = [torch.randn(5) for _ in range(GROUP)]
        return answers[: GROUP - (prompt % 5 == 3)]

    def run(self):
        for prompt in self.prompts:
            answers = self.generate(prompt)
            if len(answers) == GROUP:  # here
                self.replay.put(torch.stack(answers))  # here


class PipelineTrainer:
    def __init__(self, steps):
        self.rank, self.steps = dist.get_rank(), steps
        self.replay = queue.Queue()
        self.policy = torch.zeros(5)

    def start(self):
        if self.rank == 0:
            RolloutWorker(self.replay, range(self.steps * BATCH)).start()

    def next_batch(self):
        while self.replay.qsize() < BATCH:  # here
            time.sleep(0.01)  # here
        return torch.stack([self.replay.get() for _ in range(BATCH)])

    def step(self):
        batch = self.next_batch() if self.rank == 0 else torch.empty(BATCH, GROUP, 5)  # here
        dist.broadcast(batch, src=0)  # here
        self.policy += batch.mean((0, 1))

    def fit(self):
        self.start()
        for _ in range(self.steps):
            self.step()  # here


def main():
    dist.init_process_group("gloo")
    PipelineTrainer(steps=4).fit()  # here
    dist.destroy_process_group()


main()
