class Barrier:
    def __init__(self, store, name, rank, world_size):
        self.store, self.name, self.rank, self.world_size = store, name, rank, world_size

    def wait(self):
        self.store.add(self.name, 1)
        while self.store.add(self.name, 0) < self.world_size: pass
