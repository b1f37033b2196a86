"""Why a run failed: the first causal exception in the output of all its processes; pure.

``loglines`` takes one line apart, ``tracebacks`` puts exceptions together and ``crashes`` reads
what has none, ``burst`` keeps them and knows which were survived, ``consequences`` which followed
from others; ``cause`` chooses the one that happened first, ``known`` says what it means, and
``telling`` puts it into words.
"""

from .cause import CauseFinder, of_log

__all__ = ["CauseFinder", "of_log"]
