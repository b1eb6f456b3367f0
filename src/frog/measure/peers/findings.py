"""The possible findings of a check, the belief behind each, and a question that leads to the cause."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """A wrong behavior. `observed` contains the numbers."""

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
        "every wait ends, because the awaited event will happen",
        "Which rank waits for which, in which call, and what would that one have to do first?",
    ),
    "crashed": (
        "the program works as it is, for every size and rank",
        "Its last output is above. Which call and which size had it reached?",
    ),
    "no-operation": (
        "exit code 3 means an error",
        "Exit code 3 means that the peer does not support the operation. Is the name spelled as in the list of calls?",
    ),
    "lost-nobody": (
        "a rank that has not answered yet is gone",
        "All processes ran and all links worked. Which timeout was too short, or which exit looked like an error?",
    ),
    "sizes-disagree": (
        "both ends of a connection expect the same bytes",
        "The named rank had all its results, and ended. Which step sends fewer bytes than its receiver expects?",
    ),
    "left-over": (
        "every process that I start ends with me",
        "Which process or daemon did it start, and who waits for that one?",
    ),
    "too-much-memory": ("memory is unlimited", "How does what you keep grow with the size of the buffer?"),
    "too-many-processes": ("each copy may start more", "A copy is one rank. What is started in a loop?"),
    "too-many-files": ("disk space is unlimited", "Which loop writes what?"),
    "too-much-output": ("printing costs nothing", "Which loop contains the print?"),
    # What a result contains.
    "no-result": (
        "exit code 0 is enough",
        "Each call has its own result file, even if a rank has nothing to compute. Which call was skipped?",
    ),
    "half-written": (
        "a write call writes all its bytes",
        "Is the file closed before the process ends, and is it renamed only once it is complete?",
    ),
    "not-a-buffer": ("the result is only the numbers", "What do the first 24 bytes of an input file contain?"),
    "wrong-dtype": ("all numbers are float32", "Which field of the input's header names the dtype?"),
    "wrong-count": (
        "a result has as many elements as an input",
        "How many elements does this operation leave on this rank, if the count is not divisible by the world?",
    ),
    "input-changed": (
        "I may compute in the input file",
        "Repeating a step after a loss requires its input. Where is the file opened for writing?",
    ),
    "not-reduced": (
        "the result is what I started with",
        "Where did the data from the other ranks go?",
    ),
    "neighbours-only": (
        "each rank communicates with its neighbors, so their data is the sum",
        "Data from a neighbor's neighbor arrives only if each rank forwards what it has added. In how many steps?",
    ),
    "some-ranks-only": (
        "one more step would change nothing",
        "Whose numbers are missing, and through which ranks would they have come?",
    ),
    "averaged": ("all-reduce takes the mean", "The list says sum. Who divides in data-parallel training, and when?"),
    "remainder": (
        "every count is divisible by the world size",
        "Which rank owns the last `count % world` elements?",
    ),
    "through-floats": (
        "a float can represent every integer",
        "A float64 has 53 bits. Which types do these integers pass through?",
    ),
    "wrong-sum": (
        "the right part is added at the right step",
        "Print, for one wrong element, which ranks' inputs were added to it, and in which step.",
    ),
    "wrong-copy": (
        "parts may be stored in the order in which they arrive",
        "For the first wrong element: which rank should it come from, and which does it come from?",
    ),
    "ranks-differ": (
        "a sum is the same in any order",
        "Floats are rounded at each addition. Which rank should sum an element, so that all have the same bits?",
    ),
    "outside-bound": (
        "rounding explains every small difference",
        "No order of summation gives this. Is the sum kept in a narrower type, or is something added twice?",
    ),
    # Connections and shape.
    "connection-per-call": (
        "connecting costs nothing",
        "A connection costs a round trip, starts slowly, and occupies a port for a minute. How long could one last?",
    ),
    "through-one-rank": (
        "collecting, adding and distributing on one rank needs the fewest messages",
        "How many bytes pass through that rank at world 4, and how many at world 400?",
    ),
    "whole-buffers": (
        "a ring passes whole buffers around",
        "A ring passes parts around: each step carries 1/n of the buffer. Why are there 2(n-1) of them?",
    ),
    "more-bytes": (
        "fewer steps are faster",
        "For small buffers, yes. How many bytes does the busiest rank move here, and how many in a ring?",
    ),
    # Slow and busy links.
    "deadlock": (
        "send returns when the receiver has the data",
        "send returns when the system's buffer has room. All ranks send first: who empties the buffers?",
    ),
    "short-read": (
        "recv(n) returns n bytes",
        "recv returns what is available, at least one byte. What does the loop around it wait for?",
    ),
    # Losses.
    "hangs-after-loss": (
        "a rank in the middle of a call stays there until it completes",
        "Which call blocks without a timeout? End of stream and silence are both signs of a loss: who checks for them?",
    ),
    "wrong-after-loss": (
        "the data that has arrived is good enough",
        "Exit code 0 claims that the result is complete. Where is an early end of stream taken for the end of data?",
    ),
    "result-before-complete": (
        "the result file can be written while the result is computed",
        "A reader of that file cannot know that the rest is missing. When does it get its final name?",
    ),
    "loss-unnamed": (
        "an error is an error",
        "To continue without the lost rank, the others must know which one it is. What does the code know here?",
    ),
    "wrong-loss": (
        "the rank that closed the connection is the one that failed",
        "A neighbor may leave because it lost its own. Which rank saw an end first, and how did the others know?",
    ),
}
