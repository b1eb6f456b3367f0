"""Formulas: what a strategy sends, holds and waits for. Numbers only, no torch."""
