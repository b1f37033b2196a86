"""Engine ``script``: the user's own extraction script, unmodified, under this tool's patches.

Two processes.  The run's worker (``job``) prepares, starts the script, watches what it writes and
accounts for it; ``child`` starts and ends the script, ``folder`` and ``samples`` look at its
files, ``log`` at its progress bars.  The script's process (``bootstrap``) runs the file as
``python FILE`` would; ``hook`` waits there for the imports that need a patch, ``library`` and
``saving`` are what is done then.  ``channel`` is what that process tells the worker.
"""
