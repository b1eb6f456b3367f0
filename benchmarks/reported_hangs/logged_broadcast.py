# RLinf/RLinf#1378: an error around a broadcast is logged and not raised again, so that the sender continues
# without it.
import torch
import torch.distributed as dist


class Channel:
    def __init__(self, rank):
        self.rank = rank

    def encode(self, item):
        if item["size"] > 100:
            raise OverflowError(f"item of {item['size']} does not fit")  # here
        return torch.full((64,), float(item["size"]))

    def transfer(self, item):
        try:
            data = self.encode(item) if self.rank == 0 else torch.empty(64)  # here
            dist.broadcast(data, src=0)  # here
            return data
        except Exception as error:  # here
            print(f"broadcast failed: {error}", flush=True)
            return None


def main():
    dist.init_process_group("gloo")
    channel = Channel(dist.get_rank())
    for number in range(8):
        item = {"size": 500 if number == 5 else 10 + number}
        channel.transfer(item)  # here
        done = torch.ones(3)
        dist.all_reduce(done)  # here
    dist.destroy_process_group()


main()
