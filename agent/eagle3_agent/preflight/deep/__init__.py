"""Exercises that take seconds or minutes: the hardware does a little of the run's work."""
