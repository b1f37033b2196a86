"""Errors of a run that a person can act on: each is one sentence with the way out."""

from __future__ import annotations


class WorkerError(Exception):
    """A known cause; its text names the thing, the place and what to do."""


class DataError(WorkerError):
    """The data as a whole cannot be used (one bad row is a ``Bad``, not this)."""


class OutputError(WorkerError):
    """The output folder cannot take this run's samples."""


class ModelError(WorkerError):
    """The model folder cannot be read, or does not fit the profile."""


class CaptureError(WorkerError):
    """The engine returned something else than the states that were asked for."""
