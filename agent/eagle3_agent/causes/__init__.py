"""Why a run failed: the first causal exception in the output of all its processes; pure.

``loglines`` takes one line apart, ``tracebacks`` puts exceptions together, ``known`` knows what
some of them mean, and ``cause`` chooses the one that happened first.
"""

from .cause import CauseFinder, of_log

__all__ = ["CauseFinder", "of_log"]
