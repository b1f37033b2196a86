"""Named patches that make speculators' generator right on the vLLM that is installed.

Nothing on disk is changed: a patch replaces a name in this process, and has vLLM load the
capture core into its workers.  ``registry`` lists the patches, ``sources`` reads what is
installed without importing it, ``patch`` is what a patch is; ``probe`` is the command.
``imports``, ``config``, ``model``, ``kv_cache``, ``generate`` (with ``loops``, its probes),
``errors`` and ``runner`` hold the patches; ``fits`` is what no patch can give.  ``driver`` runs a
patched generator's requests, for ``generate()`` and for the engine alike.
"""
