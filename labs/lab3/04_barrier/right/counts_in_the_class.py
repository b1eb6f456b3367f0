class Barrier:
    round = 0

    def __init__(self, store, name, rank, world_size):
        self.store, self.name, self.rank, self.world_size = store, name, rank, world_size

    def wait(self):

        Barrier.round += 1
        key = f"{self.name}/{Barrier.round}"
        if self.store.add(key, 1) == self.world_size:
            self.store.set(key + "/open", "1")
        self.store.wait([key + "/open"])
