class Barrier:
    def __init__(self, store, name, rank, world_size):
        self.store, self.name, self.rank, self.world_size = store, name, rank, world_size
        self.round = 0

    def wait(self):

        self.round += 1
        hop, n = 1, self.world_size
        while hop < n:
            self.store.set(f"{self.name}:{self.round}:{hop}:{(self.rank + hop) % n}", "x")
            self.store.wait([f"{self.name}:{self.round}:{hop}:{self.rank}"])
            hop *= 2
