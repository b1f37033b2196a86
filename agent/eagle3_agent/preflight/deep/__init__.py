"""Exercises of a deep preflight: the GPUs, their links, the disk and the engine at work.

Each is a probe of its own.  ``exercise`` starts a session for it, ``keeper`` lives in there: what
the exercise starts ends with it, and nothing of it stays.  Those on GPUs take turns, and stay away
from GPUs that anybody uses.
"""
