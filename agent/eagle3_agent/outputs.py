"""What files in an output folder are called: shared by the worker, the preflight and clearing."""

from __future__ import annotations

import re

MARKER = "eagle3.json"
"""Whose samples the folder holds."""

MANIFEST = "manifest.jsonl"
"""Which samples, a line each."""

#: A sample's name in either format; the number is the row of the data.
SAMPLE = re.compile(r"(?:data_[0-9]{1,12}\.pt|hs_[0-9]{1,12}\.safetensors)")

#: A sample that is being written, with the number of its writer: a pid, or a pid and a thread.
PARTIAL = re.compile(rf"\.{SAMPLE.pattern}\.[0-9]{{1,24}}\.partial")
