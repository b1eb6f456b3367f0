"""Compare the training threads as text, from the last line upwards."""

import re


def find_hang(stacks):
    threads = []
    for stack in stacks:
        for thread in re.findall(r"(?:^Thread .*\n(?:  File .*\n?)+)", stack, re.M):
            mine = re.findall(r'trainer\.py", line (\d+) in (\w+)', thread)[::-1]
            if mine and mine[0][1] == "run":
                threads.append(mine)
    odd = [rank for rank in range(len(threads)) if threads.count(threads[rank]) == 1]
    if not odd:
        return None
    mine, usual = threads[odd[0]], threads[odd[0] - 1]
    for (line, name), other in zip(mine, usual):
        if (line, name) != other:
            return {"function": name, "line": int(line), "rank": odd[0]}
