"""Draw the schedules of schedule.py: python draw.py RANKS MICRO_BATCHES [--chunks 2] [--send 0.25]."""

import argparse

import schedule

FORWARD, BACKWARD = 1.0, 2.0  # how long a rank computes for one micro-batch


def needs(action, num_stages):
    """Return the actions that must be complete before this one can start."""
    kind, stage, micro = action
    if kind == "F":
        return [("F", stage - 1, micro)] if stage > 0 else []
    return [("F", stage, micro)] + ([("B", stage + 1, micro)] if stage < num_stages - 1 else [])


def simulate(actions, num_chunks, send):
    """Return each action's start and end, for each rank; fewer than all if the ranks wait for each other."""
    owner = {tuple(action): rank for rank, row in enumerate(actions) for action in row}
    times, rows, has_moved = {}, [[] for _ in actions], True
    while has_moved:
        has_moved = False
        for rank, row in enumerate(actions):
            for action in row[len(rows[rank]) :]:
                needed = needs(action, num_chunks * len(actions))
                if any(one not in times for one in needed):
                    break
                arrived = [times[one][1] + (send if owner[one] != rank else 0.0) for one in needed]
                start = max([rows[rank][-1][1] if rows[rank] else 0.0, *arrived])
                length = FORWARD if action[0] == "F" else BACKWARD
                times[tuple(action)] = (start, start + length / num_chunks)
                rows[rank].append(times[tuple(action)])
                has_moved = True
    return rows


def draw(name, actions, num_chunks, send):
    """Print a line for each rank, time to the right: F1 is the forward pass of micro-batch 1, and a dot is waiting."""
    rows = simulate(actions, num_chunks, send)
    labels = [[label(action, len(rows), num_chunks) for action in row] for row in actions]
    width = max(len(text) + 1 for row in labels for text in row) * num_chunks  # columns for a rank's forward pass
    last = max((row[-1][1] for row in rows if row), default=0.0)
    busy = sum(end - start for row in rows for start, end in row)
    waiting = 1 - busy / (last * len(rows) or 1)
    print(f"{name}: as long as {last:g} forward passes, bubble {waiting:.1%}, ranks hold {peaks(actions)}")
    for rank, (row, texts, times) in enumerate(zip(actions, labels, rows, strict=True)):
        line = ["."] * round(last * width)
        for text, (start, end) in zip(texts, times, strict=False):
            first, stop = round(start * width), round(end * width)
            line[first:stop] = (text + "-" * (stop - first))[: stop - first - 1] + " "
        stuck = f"  {texts[len(times)]} never runs" if len(times) < len(row) else ""
        print(f"  {rank}  {''.join(line)}{stuck}")


def label(action, num_ranks, num_chunks):
    """Return F1, or F1b for the second of a rank's stages."""
    kind, stage, micro = action
    return f"{kind}{micro}" + ("abcdefgh"[stage // num_ranks] if num_chunks > 1 else "")


def peaks(actions):
    """Return the most activations that each rank holds at a time."""
    found = []
    for row in actions:
        held = [sum(1 if action[0] == "F" else -1 for action in row[:end]) for end in range(len(row) + 1)]
        found.append(str(max(held)))
    return ", ".join(found)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("ranks", type=int)
    parser.add_argument("micro", type=int)
    parser.add_argument("--chunks", type=int, default=2)
    parser.add_argument("--send", type=float, default=0.0, help="time of a message, in forward passes")
    given = parser.parse_args()
    makers = {"gpipe": 1, "one_f_one_b": 1} | ({} if given.micro % given.ranks else {"interleaved": given.chunks})
    for name, num_chunks in makers.items():
        sizes = (given.ranks, given.micro) + ((num_chunks,) if name == "interleaved" else ())
        try:
            draw(name, getattr(schedule, name)(*sizes), num_chunks, given.send)
        except NotImplementedError as error:
            print(f"{name}: {error}")


if __name__ == "__main__":
    main()
