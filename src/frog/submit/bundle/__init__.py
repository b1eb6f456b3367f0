"""A folder with all that a run needs on a cluster without internet."""
