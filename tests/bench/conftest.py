"""The bench package lies in the checkout's root, which is on nobody's path."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = str(Path(__file__).parents[2])
if ROOT not in sys.path:
    # last, so that nothing else is found there first
    sys.path.append(ROOT)
