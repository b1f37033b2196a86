"""Named patches that make speculators' generator right on the vLLM that is installed.

Nothing on disk is changed: a patch replaces a name in this process (and, where the
states are captured, names the worker class that vLLM loads in its own processes).
``registry`` lists the patches, ``sources`` reads what is installed without importing
it, ``patch`` is what a patch is.  ``config``, ``kv_cache``, ``generate`` and ``errors``
hold the patches; ``capture`` runs inside vLLM's workers; ``probe`` is the command.
"""
