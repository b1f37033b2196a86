"""The capture core: inside vLLM's worker processes, states after chosen layers, cut by request.

``extension`` is what vLLM loads and what drivers call; ``core`` follows requests over
steps; ``source`` finds where a model's states can be had; ``staging`` and ``device``
bring them to the host; ``refusals`` says what would be wrong.  Knows no engine.
"""
