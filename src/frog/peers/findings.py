"""What a check may find, which belief would give just that, and what to look at next."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """What was wrong. `observed` has the numbers."""

    id: str
    observed: str

    @property
    def belief(self) -> str:
        return _MEANINGS[self.id][0]

    @property
    def question(self) -> str:
        return _MEANINGS[self.id][1]


_MEANINGS = {
    # How a copy ends.
    "never-ends": (
        "every wait comes to an end, because what it waits for will come",
        "Which rank waits for which, in which call, and what would that one have to do first?",
    ),
    "crashed": (
        "the program runs as it stands, for every size and rank",
        "Its last words are above. For which call and which size did it get there?",
    ),
    "no-operation": (
        "exit code 3 means an error",
        "Exit code 3 says `I have no such operation`. Is the name spelled as in the list of calls?",
    ),
    "lost-nobody": (
        "who has not answered yet has gone",
        "All processes ran and all links were whole. Which wait was too short, or whose end was mistaken for an error?",
    ),
    "left-over": (
        "what I started ends with me",
        "Which process or daemon did it start, and who waits for that one?",
    ),
    "too-much-memory": ("memory is there", "How does what you keep grow with the size of the buffer?"),
    "too-many-processes": ("each copy may start more", "A copy is one rank. What is started in a loop?"),
    "too-many-files": ("the disk has no end", "What is written in which loop?"),
    "too-much-output": ("printing costs nothing", "Which print stands in which loop?"),
    # What a result holds.
    "no-result": (
        "exit code 0 says enough",
        "Each call has a result file of its own, also where a rank has nothing to compute. Which call was passed over?",
    ),
    "half-written": (
        "a write writes all it is given",
        "Is the file closed before the end, and does it get its name only when it is whole?",
    ),
    "not-a-buffer": ("the result is the bare numbers", "What do the first 24 bytes of an input file say?"),
    "wrong-dtype": ("all numbers are float32", "Which word of the input's header names the dtype?"),
    "wrong-count": (
        "a result has as many elements as an input",
        "How many elements does this operation leave on this rank, if the count is not divisible by the world?",
    ),
    "input-changed": (
        "the input's file is mine to compute in",
        "A step that is taken again after a loss needs its input. Where is the file opened for writing?",
    ),
    "not-reduced": (
        "the result is what I began with",
        "Where did what came from the others go?",
    ),
    "neighbours-only": (
        "each rank talks to its neighbours, so what they hold is the sum",
        "A neighbour's neighbour is heard only if what arrives is passed on, with what was added. In how many steps?",
    ),
    "some-ranks-only": (
        "one more step would do nothing",
        "Whose numbers are missing, and through how many hands would they have come?",
    ),
    "averaged": ("all-reduce takes the mean", "The list says sum. Who divides in data-parallel training, and when?"),
    "remainder": (
        "the world divides every count",
        "Which rank owns the last `count % world` elements?",
    ),
    "through-floats": (
        "a float holds every integer",
        "A float64 has 53 bits. Through which type do these integers pass on their way?",
    ),
    "wrong-sum": (
        "the right part is added at the right step",
        "Print, for one element that is wrong, which ranks' inputs were added to it, and in which step.",
    ),
    "wrong-copy": (
        "parts may be put down in the order in which they come",
        "For the first element that is wrong: from which rank should it be, and from which is it?",
    ),
    "ranks-differ": (
        "a sum is the same in any order",
        "Floats round at each addition. Who should compute the sum of one element, so that all hold the same bits?",
    ),
    "outside-bound": (
        "rounding explains every small difference",
        "No order of summation gives this. Are sums kept in a narrower type, or is something added twice?",
    ),
    # Connections and shape.
    "connection-per-call": (
        "connecting costs nothing",
        "A connection costs a round trip, starts slowly, and uses up a port for a minute. How long could one live?",
    ),
    "through-one-rank": (
        "one rank collects, adds and hands out: that is the fewest messages",
        "How many bytes pass through that rank at world 4, and how many at world 400?",
    ),
    "whole-buffers": (
        "a ring passes buffers round",
        "A ring passes parts round: each step carries 1/n of the buffer. Why are there 2(n-1) of them?",
    ),
    "more-bytes": (
        "fewer steps are faster",
        "For small buffers, yes. How many bytes does the busiest rank move here, and how many would a ring?",
    ),
    # Weather.
    "deadlock": (
        "send returns when the other has it",
        "send returns when the system has room. All ranks send first: who empties the buffers?",
    ),
    "short-read": (
        "recv(n) returns n bytes",
        "recv returns what is there, at least one byte. What does the loop around it wait for?",
    ),
    # Losses.
    "hangs-after-loss": (
        "who is in the middle of a call stays until its end",
        "Which call blocks with no time limit? An end of stream and silence are both news: who looks for them?",
    ),
    "wrong-after-loss": (
        "what has arrived is good enough",
        "Exit code 0 says that the result is whole. Where is an early end of stream taken for the end of the data?",
    ),
    "result-before-complete": (
        "the result can be written while it becomes one",
        "Who reads that file cannot know that the rest never came. When does it get its name?",
    ),
    "loss-unnamed": (
        "an error is an error",
        "Whoever goes on without the lost one must know which one. What does the code know where it catches this?",
    ),
    "wrong-loss": (
        "whoever closed the connection is the one that failed",
        "A neighbour may leave because it lost its own. Who was the first to see an end, and who told the others?",
    ),
}
