# pytorch/pytorch#172668: a schedule that puts each receive just before the computation that needs it makes both ranks
# of a pipeline send first.
from dataclasses import dataclass, field

import torch
import torch.distributed as dist

SCHEDULE = {
    0: ["0F0", "0SEND0", "0F1", "0SEND1", "2RECV0", "2F0", "2SEND0", "2RECV1", "2F1", "2SEND1"],
    1: ["1RECV0", "1F0", "1SEND0", "1RECV1", "1F1", "1SEND1", "3RECV0", "3F0", "3RECV1", "3F1"],
}


@dataclass(frozen=True)
class Action:
    stage: int
    kind: str
    microbatch: int

    @classmethod
    def parse(cls, text):
        kind = text.strip("0123456789")
        stage, microbatch = text.split(kind)
        return cls(int(stage), kind, int(microbatch))


@dataclass
class Runtime:
    rank: int
    buffers: dict = field(default_factory=dict)

    def actions(self):
        yield from map(Action.parse, SCHEDULE[self.rank])

    def execute(self):
        peer = 1 - self.rank
        for action in self.actions():
            key = (action.stage, action.microbatch)
            match action.kind:
                case "F":
                    x = self.buffers.pop(key, torch.ones(4, 16))
                    self.buffers[key] = torch.tanh(x) + action.stage
                case "SEND":
                    dist.send(self.buffers.pop(key), peer)  # here
                case "RECV":
                    self.buffers[key] = torch.empty(4, 16)
                    dist.recv(self.buffers[key], peer)  # here


def main():
    dist.init_process_group("gloo")
    runtime = Runtime(dist.get_rank())
    for _ in range(2):
        runtime.execute()  # here
    done = torch.ones(1)
    dist.all_reduce(done)
    dist.destroy_process_group()


main()
