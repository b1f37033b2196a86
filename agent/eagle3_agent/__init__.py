"""The half of eagle3-console that lives on the GPU host.

Standard library and pynvml only, Python 3.10 or newer: it is shipped to hosts
that belong to somebody else.  ``protocol`` is the one part that the console
imports too; ``worker`` is the one part that may import torch and vLLM.
"""
