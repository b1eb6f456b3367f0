class Barrier:
    def __init__(self, store, name, rank, world_size):
        self.store, self.name, self.rank, self.world_size = store, name, rank, world_size
        self.round = 0

    def wait(self):

        import time

        self.round += 1
        key = f"{self.name}/{self.round}"
        self.store.add(key, 1)
        while self.store.get(key) != str(self.world_size):
            time.sleep(0.01)
