"""What ranks and their launcher say: one JSON object a line. The contract between ranks and every view."""

from frog.events.read import RankEvents, read_rank
from frog.events.run import RecordedRun, read_run
from frog.events.write import EventWriter

__all__ = ["EventWriter", "RankEvents", "RecordedRun", "read_rank", "read_run"]
