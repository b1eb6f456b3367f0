"""Fault injection into real worlds, one trial at a time, with a check of each outcome."""
