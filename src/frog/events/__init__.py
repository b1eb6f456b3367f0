"""What ranks say: one JSON object a line, one file a rank. The contract between ranks and every view."""

from frog.events.read import RankEvents, RunEvents, read_rank, read_run
from frog.events.write import EventWriter

__all__ = ["EventWriter", "RankEvents", "RunEvents", "read_rank", "read_run"]
