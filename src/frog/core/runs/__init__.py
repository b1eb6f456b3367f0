"""The folder, records and events of a run, and the reader of all of them.

Events are one JSON object per line: the contract between the ranks and every view.
"""

from frog.core.runs.read import RankEvents, read_rank
from frog.core.runs.run import RecordedRun, read_run
from frog.core.runs.write import EventWriter

__all__ = ["EventWriter", "RankEvents", "RecordedRun", "read_rank", "read_run"]
