"""One run's work, under the interpreter that the profile names.

The only package that imports torch, transformers or vLLM, and it does so
inside functions: importing ``eagle3_agent.worker`` itself needs the standard
library alone.  What guards the worker (signals from outside, the run's final
state) is the supervisor's.
"""
