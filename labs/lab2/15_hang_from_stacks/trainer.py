"""The program whose ranks hang: they train, evaluate and save. Do not change anything here."""

import queue
import re
import threading


class Trainer:
    """One rank. `gradients` and `control` are process groups of all ranks."""

    def __init__(self, gradients, control, gradient, plan):
        self.gradients, self.control, self.gradient, self.plan = gradients, control, gradient, plan
        self.batches = queue.Queue()
        self.lock = threading.Lock()

    def all_reduce(self, tensor, group):
        group.allreduce([tensor]).wait()

    def barrier(self):
        self.control.barrier().wait()

    def load_batch(self):
        return self.batches.get()

    def clean(self, text):
        while not self.plan["ends"].is_set():
            text = re.sub(" +", " ", text + " ")
        return text

    def log(self, words):
        with self.lock:
            print(words)

    def train_step(self):
        if self.plan["does"] == "loads":
            self.load_batch()
        if self.plan["does"] == "cleans":
            self.clean("a b")
        if self.plan["does"] == "logs":
            with self.lock:
                self.log("a loss of 7.6")
        self.all_reduce(self.gradient, self.gradients)

    def evaluate(self):
        self.all_reduce(self.gradient.clone(), self.control)

    def save(self):
        self.barrier()

    def run(self):
        if self.plan["does"] == "evaluates":
            self.evaluate()
        if self.plan["does"] == "saves":
            self.save()
        self.train_step()


def prefetch(stop):
    wait_for_room(stop)


def wait_for_room(stop):
    stop.wait()


def heartbeat(stop):
    while not stop.wait(0.05):
        pass
