"""Faults to inject into a run, and the diagnosis of what went wrong in one."""
