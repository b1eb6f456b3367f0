class Barrier:
    def __init__(self, store, name, rank, world_size):
        self.store, self.name, self.rank, self.world_size = store, name, rank, world_size
        self.round = 0

    def wait(self):

        self.round += 1
        key = f"{self.name}/{self.round}"
        self.store.add(key, 0)
        n = int(self.store.get(key)) + 1
        self.store.set(key, str(n))
        if n == self.world_size:
            self.store.set(key + "/open", "1")
        self.store.wait([key + "/open"])
