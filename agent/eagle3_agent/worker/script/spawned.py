"""What a process that the script spawned runs for its main module: the script, watched again.

``multiprocessing`` takes the names of this module for those of ``__main__``, so the script runs
in this namespace.  vLLM's workers come by here, too.
"""

from __future__ import annotations

import os

from eagle3_agent.worker.script import bootstrap

if __name__ == "__mp_main__":
    bootstrap.watch_imports()
    __file__ = os.environ[bootstrap.SCRIPT]
    exec(bootstrap.compiled(__file__), globals())  # noqa: S102  as spawn itself does with a path
