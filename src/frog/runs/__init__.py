"""What a run leaves, and the one reader of it: its folder, its records, and the events of ranks and launcher.

Events are one JSON object a line: the contract between ranks and every view.
"""

from frog.runs.read import RankEvents, read_rank
from frog.runs.run import RecordedRun, read_run
from frog.runs.write import EventWriter

__all__ = ["EventWriter", "RankEvents", "RecordedRun", "read_rank", "read_run"]
