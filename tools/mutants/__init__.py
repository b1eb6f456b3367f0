"""Mutation testing: change one operator or constant of Frog, and see whether the room's own fast tests notice."""
