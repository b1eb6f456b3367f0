"""A folder with everything that a run needs on a cluster without internet."""
