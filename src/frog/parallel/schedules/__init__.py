"""Pipeline schedules: which stage computes what when. Needs no torch."""
