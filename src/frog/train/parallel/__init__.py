"""Strategies: how the work of a step is spread over ranks. Import from the file itself: schedules need no torch."""
