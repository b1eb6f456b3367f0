# huggingface/accelerate#2733: the results are gathered where only the main process prints them.
import torch.distributed as dist


class State:
    def __init__(self):
        self.process_index = dist.get_rank()

    @property
    def is_main_process(self):
        return self.process_index == 0


def gather(results):
    everything = [None] * dist.get_world_size()
    dist.all_gather_object(everything, results)  # here
    return [result for part in everything for result in part]


def evaluate(state, questions):
    answers = [f"answer {number} of {state.process_index}" for number in range(questions)]
    if state.is_main_process:  # here
        print(gather(answers)[0])  # here
        print(gather(answers)[-1])  # here
    return answers


def main():
    dist.init_process_group("gloo")
    state = State()
    dist.barrier()
    evaluate(state, 3)
    dist.barrier()  # here
    dist.destroy_process_group()


main()
