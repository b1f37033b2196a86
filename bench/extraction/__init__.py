"""Extraction of hidden states, measured: one way of doing it (a side) per process.

``side`` is the process, ``spec`` what it is told and what it answers; ``plain``,
``ours``, ``library``, ``connector`` and ``limits`` are the sides.  They run in an
interpreter that has torch and vLLM and need nothing else of this repository but the
agent.  ``turns`` starts them and gives them their turns.  The command line for a GPU host
is ``bench/extract_gpu.py``, the benchmark of ``python -m bench`` is ``bench/extract.py``.
"""
