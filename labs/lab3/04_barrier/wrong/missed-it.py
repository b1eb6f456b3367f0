class Barrier:
    def __init__(self, store, name, rank, world_size):
        self.store, self.name, self.rank, self.world_size = store, name, rank, world_size
        self.round = 0

    def wait(self):

        import time

        self.round += 1
        self.store.add(self.name, 1)
        while self.store.add(self.name, 0) != self.round * self.world_size:
            time.sleep(0.01)
