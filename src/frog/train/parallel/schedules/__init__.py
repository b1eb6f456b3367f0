"""Pipeline schedules: which stage computes what, and when. Needs no torch."""
