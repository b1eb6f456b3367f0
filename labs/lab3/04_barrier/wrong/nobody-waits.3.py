class Barrier:
    def __init__(self, store, name, rank, world_size):
        self.store, self.name, self.rank, self.world_size = store, name, rank, world_size
        self.round = 0

    def wait(self):

        self.round += 1
        base = f"{self.name}/{self.round}/"
        self.store.set(base + str(self.rank), "1")
        if self.rank == 0:
            self.store.wait([base + str(r) for r in range(self.world_size)])
