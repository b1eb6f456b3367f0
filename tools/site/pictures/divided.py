"""Pictures of a divided model: columns and rows of matrices, experts, and a sequence around a ring."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Final

from frog.core.units import count as count_of
from tools.site.pictures.scene import MARGIN, WIDTH, Scene

Matrix = list[list[int]]

# ---- column and row --------------------------------------------------------------------------------------------------

INPUT: Final[Matrix] = [[1, 2]]
FIRST: Final[Matrix] = [[1, 2, -3, 0], [1, -1, 1, 1]]
SECOND: Final[Matrix] = [[1, 0], [2, 1], [0, 3], [1, 1]]


def product(a: Matrix, b: Matrix) -> Matrix:
    """Return the product of two matrices."""
    return [[sum(x * y for x, y in zip(row, column, strict=True)) for column in zip(*b, strict=True)] for row in a]


def relu(a: Matrix) -> Matrix:
    """Return the matrix with zeros instead of negative numbers."""
    return [[max(0, x) for x in row] for row in a]


def rank_parts(rank: int) -> tuple[Matrix, Matrix, Matrix, Matrix]:
    """Return a rank's columns of the first matrix, what it computes between, its rows of the second, and its term."""
    columns = [row[2 * rank : 2 * rank + 2] for row in FIRST]
    hidden = relu(product(INPUT, columns))
    rows = SECOND[2 * rank : 2 * rank + 2]
    return columns, hidden, rows, product(hidden, rows)


def tensor() -> Scene:
    """Two linear layers on two ranks: columns of the first, rows of the second, one all-reduce"""
    scene = Scene("Tensor parallelism: columns of the first matrix, rows of the second, then one all-reduce", 262, 2.2)
    cell = 25.0
    x_in, x_first, x_hidden, x_second, x_term = 14.0, 88.0, 162.0, 236.0, 310.0
    heads = ((x_in, "x"), (x_first, "W1"), (x_hidden, "relu"), (x_second, "W2"), (x_term, "term"), (376.0, "y"))
    for x, words in heads:
        scene.add(scene.text(x + 25, 26, words, "quiet", "middle", bold=True))
    result = product(relu(product(INPUT, FIRST)), SECOND)
    terms = [rank_parts(rank)[3] for rank in (0, 1)]
    for rank in (0, 1):
        columns, hidden, rows, term = rank_parts(rank)
        y = 46.0 + 112 * rank
        color = f"r{rank}"
        scene.add(scene.rect(6, y - 8, WIDTH - 12, 100, "raised", "line", 6))
        scene.add(
            scene.text(
                14,
                y + 84,
                f"rank {rank}: columns {2 * rank} and {2 * rank + 1} of W1, rows {2 * rank} and {2 * rank + 1} of W2",
                color,
            )
        )
        for x in (x_hidden, x_term, 372.0):
            _places(scene, x, y + 14)
        _matrix(scene, x_in, y + 14, INPUT, "grid", (0, 999))
        scene.add(scene.rect(x_in - 2, y + 12, 53, 28, "none", "ink", 5), show=(1, 2))
        _matrix(scene, x_first, y, columns, color, (0, 999))
        _matrix(scene, x_hidden, y + 14, hidden, "forward", (2, 999))
        _matrix(scene, x_second, y, rows, color, (0, 999))
        _matrix(scene, x_term, y + 14, term, "reduce", (3, 999))
        for x, sign in ((75, "·"), (149, "="), (223, "·"), (297, "=")):
            scene.add(scene.text(x, y + 33, sign, "quiet", "middle"))
        other = 112 * (1 - 2 * rank)
        for place, number in enumerate(term[0]):
            scene.add(
                scene.box(x_term + place * cell, y + 14, cell - 1, cell, str(number), "reduce", "ink"),
                show=(4, 4.8),
                move=[(4, 0, 0), (4.8, 62, other)],
            )
        _matrix(scene, 372, y + 14, result, "optimize", (4.8, 999))
    scene.mark(0, "W1 is divided by columns, W2 by rows: each rank holds half of both matrices.")
    scene.mark(1, "Every rank has the whole input x. In forward that costs nothing.")
    scene.mark(2, "With some columns a rank computes some outputs. relu needs no other output: nothing is sent.")
    scene.mark(3, "With some rows a rank computes one term of the sum. So far nothing was sent.")
    scene.mark(4, "All-reduce: each rank sends its term to the other one, and adds.")
    sums = " and ".join(f"{a} + {b} = {c}" for a, b, c in zip(terms[0][0], terms[1][0], result[0], strict=True))
    scene.mark(5, f"{sums}, as with whole matrices. Backward all-reduces x's gradient, too.")
    scene.end(7)
    return scene


def _places(scene: Scene, x: float, y: float) -> None:
    """Draw the outlines of two numbers that are not computed yet."""
    scene.add("".join(scene.rect(x + 25 * column + 0.5, y + 0.5, 23, 23, "none", "line") for column in (0, 1)))


def _matrix(scene: Scene, x: float, y: float, numbers: Matrix, fill: str, show: tuple[float, float]) -> None:
    cells = [
        scene.box(x + 25 * column, y + 25 * row, 24, 24, str(number).replace("-", "\N{MINUS SIGN}"), fill)
        for row, line in enumerate(numbers)
        for column, number in enumerate(line)
    ]
    scene.add("".join(cells), show=None if show[0] == 0 else show)


# ---- experts ---------------------------------------------------------------------------------------------------------

NUM_EXPERTS: Final = 4
TOKENS: Final = 6
"""Tokens of each rank; a token goes to one expert."""
ROUTERS: Final = ("even", "uneven")


def choices(router: str) -> list[list[int]]:
    """Return the expert that the router chooses for each token of each rank."""
    if router == "even":
        return [[(3 * token + rank) % NUM_EXPERTS for token in range(TOKENS)] for rank in range(NUM_EXPERTS)]
    draw = random.Random(8)
    return [draw.choices(range(NUM_EXPERTS), (2, 9, 2, 1), k=TOKENS) for _ in range(NUM_EXPERTS)]


def dispatched(chosen: list[list[int]]) -> list[list[tuple[int, int]]]:
    """Return the rows that each rank's expert receives, as (sender, token): by sender, in the sender's order."""
    return [
        [(rank, token) for rank, row in enumerate(chosen) for token, at in enumerate(row) if at == expert]
        for expert in range(len(chosen))
    ]


def sorted_places(row: Sequence[int]) -> list[int]:
    """Return the place of each token after the rank has sorted its tokens by expert."""
    order = sorted(range(len(row)), key=lambda token: row[token])
    return [order.index(token) for token in range(len(row))]


def experts(router: str) -> Scene:
    """Tokens travel to the ranks of their experts and back"""
    chosen = choices(router)
    arrived = dispatched(chosen)
    scene = Scene(
        "Expert dispatch: an all-to-all brings tokens to their experts, a second one brings them back", 268, 2.0
    )
    most = max(map(len, arrived))
    pitch = min(14.0, (WIDTH - 258 - MARGIN) / most)
    size = pitch - 2
    scene.add(
        scene.text(72, 24, "tokens of the rank", bold=True) + scene.text(250, 24, "rows for its expert", bold=True)
    )
    for rank in range(NUM_EXPERTS):
        y = 36.0 + 58 * rank
        scene.add(scene.rect(6, y, WIDTH - 12, 50, "raised", "line", 6))
        scene.add(scene.text(14, y + 30, f"rank {rank}"))
        scene.add(scene.rect(244, y + 4, WIDTH - 256, 42, "ground", f"r{rank}", 4))
        count = f"{len(arrived[rank])} rows, expert {rank}"
        scene.add(scene.text(250, y + 40, count), show=(2.9, 999))
        scene.add(scene.rect(250, y + 23, most * pitch, 3, "line", "", 1), show=(3, 999))
        scene.add(
            scene.rect(250, y + 23, len(arrived[rank]) * pitch, 3, f"r{rank}", "", 1),
            show=(3, 999),
            grow=[(3.0, 0.0), (3.0 + 0.9 * len(arrived[rank]) / most, 1.0)],
            origin=(250, y),
        )
    for rank, row in enumerate(chosen):
        y = 36.0 + 58 * rank + 18
        places = sorted_places(row)
        for token, expert in enumerate(row):
            at_home = 72 + token * 20.0
            in_order = 72 + places[token] * 20.0
            there = arrived[expert].index((rank, token))
            x, dy = 250 + there * pitch, 58.0 * (expert - rank) - 10
            scene.add(
                scene.rect(at_home, y, 12 if size > 12 else size, 12 if size > 12 else size, f"r{expert}", "", 2),
                move=[
                    (1.0, 0, 0),
                    (1.7, in_order - at_home, 0),
                    (2.0, in_order - at_home, 0),
                    (2.9, x - at_home, dy),
                    (4.0, x - at_home, dy),
                    (4.9, in_order - at_home, 0),
                    (5.0, in_order - at_home, 0),
                    (5.7, 0, 0),
                ],
            )
    counts = [len(rows) for rows in arrived]
    busiest, idlest = counts.index(max(counts)), counts.index(min(counts))
    stays = sum(row.count(rank) for rank, row in enumerate(chosen))
    scene.mark(0, "The router has chosen an expert for each token: its color. Rank i has expert i.")
    scene.mark(1, "Each rank sorts its tokens by expert, so that the rows for one rank are next to each other.")
    scene.mark(
        2, f"Dispatch: one all-to-all. {NUM_EXPERTS * TOKENS - stays} of {NUM_EXPERTS * TOKENS} rows leave their rank."
    )
    if max(counts) == min(counts):
        scene.mark(3, f"Every expert computes {counts[0]} rows: all ranks are done at the same time.")
    else:
        words = f"Rank {busiest} computes {max(counts)} rows, rank {idlest} only {min(counts)}."
        scene.mark(3, f"{words} All wait for rank {busiest}.")
    scene.mark(4, "Combine: a second all-to-all returns the outputs, as many bytes as before.")
    scene.mark(5, "Each rank has its own tokens again, in their order. Backward takes both ways once more.")
    scene.end(7)
    return scene


# ---- ring attention --------------------------------------------------------------------------------------------------


def chunks_of(rank: int, ranks: int) -> tuple[int, int]:
    """Return a rank's two of 2n chunks of the sequence: zig-zag, as in `parallel/model/context.py`."""
    return rank, 2 * ranks - 1 - rank


def computed(rank: int, round_: int, ranks: int) -> list[tuple[int, int]]:
    """Return the pairs of chunks (queries, keys) whose attention a rank computes in a round of the ring.

    In round s it has the keys of rank i - s; pairs with later keys than queries are masked.
    """
    owner = (rank - round_) % ranks
    return [(q, k) for q in chunks_of(rank, ranks) for k in chunks_of(owner, ranks) if k <= q]


def ring_attention(ranks: int) -> Scene:
    """Keys and values travel around the ranks; the matrix of queries and keys fills block by block"""
    count = 2 * ranks
    scene = Scene(
        "Ring attention: keys and values travel around the ranks, until all queries have met all earlier keys", 290, 2.0
    )
    size = 208.0 / count
    left, top = 34.0, 44.0
    scene.add(
        scene.text(left, 22, "keys, early to late", "quiet")
        + scene.text(left, 38, "one row: queries of a rank", "quiet")
    )
    owner_of = {chunk: rank for rank in range(ranks) for chunk in chunks_of(rank, ranks)}
    for q in range(count):
        y = top + q * size
        scene.add(scene.text(14, y + size / 2 + 5, str(owner_of[q]), f"r{owner_of[q]}", bold=True))
        for k in range(count):
            fill = "grid" if k <= q else "ground"
            scene.add(scene.rect(left + k * size, y, size - 1.5, size - 1.5, fill, "", 2))
    for round_ in range(ranks):
        for rank in range(ranks):
            for q, k in computed(rank, round_, ranks):
                half = q == k
                x, y, side = left + k * size, top + q * size, size - 1.5
                shape = scene.rect(x, y, side, side, f"r{rank}", "", 2)
                if half:
                    shape = f'<path class="f-r{rank}" d="M{x:.1f} {y:.1f}l{side:.1f} {side:.1f}h-{side:.1f}z"/>'
                scene.add(shape, show=(round_ + 1.0, 999))
                ring = scene.rect(x, y, size - 1.5, size - 1.5, "none", "ink", 2)
                scene.add(ring, show=(round_ + 1.0, round_ + 1.6))
    for chunk in range(count):
        x = left + chunk * size
        scene.add(
            scene.text(x + size / 2, top + 208 + 18, str(owner_of[chunk]), f"r{owner_of[chunk]}", "middle", bold=True)
        )
    step_y = 208.0 / ranks
    tall = min(step_y - 8, 44)
    scene.add(scene.text(272, 22, "each rank has the", "quiet") + scene.text(272, 38, "keys and values of", "quiet"))
    for rank in range(ranks):
        y = top + rank * step_y
        scene.add(scene.rect(264, y, 164, tall, "raised", "line", 6))
        scene.add(scene.text(274, y + tall / 2 + 5, f"rank {rank}", f"r{rank}", bold=True))
    for owner in range(ranks):
        y = top + owner * step_y
        places: list[tuple[float, float, float]] = [(0.0, 0.0, 0.0)]
        for round_ in range(1, ranks):
            old, new = (owner + round_ - 1) % ranks, (owner + round_) % ranks
            places += [(round_ + 1.0 - 0.35, 0, (old - owner) * step_y), (round_ + 1.0, 0, (new - owner) * step_y)]
        scene.add(scene.box(346, y + tall / 2 - 12, 70, 24, f"rank {owner}", f"r{owner}"), move=places)
    scene.mark(0, f"The sequence is cut into {count} chunks; each rank takes an early and a late one (zig-zag).")
    scene.mark(1, "Round 1: each rank's queries meet its own keys, under the causal mask.")
    for round_ in range(1, ranks):
        sent = f"keys and values have moved on to the next rank{' again' if round_ > 1 else ''}"
        scene.mark(round_ + 1.0, f"Round {round_ + 1}: {sent}. Each rank has two more blocks to compute.")
    scene.mark(
        ranks + 1.0,
        f"All pairs are done after {count_of(ranks - 1, 'shift')}, and each rank computed as much as the others.",
    )
    scene.end(ranks + 3.0)
    return scene
