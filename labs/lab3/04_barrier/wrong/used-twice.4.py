class Barrier:
    def __init__(self, store, name, rank, world_size):
        self.store, self.name, self.rank, self.world_size = store, name, rank, world_size
        self.round = 0

    def wait(self):

        self.round = 1 - self.round
        key = f"{self.name}/{self.round}"
        if self.store.add(key, 1) % self.world_size == 0:
            self.store.set(key + "/open", "1")
        self.store.wait([key + "/open"])
