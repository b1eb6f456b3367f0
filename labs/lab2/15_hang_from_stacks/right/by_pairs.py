"""Compare each rank with its neighbours; the rank that differs from both is the odd one."""


def own_frames(stack):
    frames = []
    for thread in stack.split("Thread "):
        lines = [line.strip() for line in thread.splitlines() if "trainer.py" in line]
        way = []
        for line in reversed(lines):
            place, function = line.rsplit(" in ", 1)
            way.append((function, int(place.rsplit(" ", 1)[1])))
        if way and way[0][0] == "run":
            frames = way
    return frames


def find_hang(stacks):
    ways = [own_frames(stack) for stack in stacks]
    for rank, way in enumerate(ways):
        others = ways[:rank] + ways[rank + 1 :]
        if way != others[0] and all(other == others[0] for other in others):
            depth = 0
            while way[depth] == others[0][depth]:
                depth += 1
            return {"rank": rank, "function": way[depth][0], "line": way[depth][1]}
    return None
