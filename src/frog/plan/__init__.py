"""Formulas for a strategy's traffic, memory and waiting time. Numbers only, no torch."""
