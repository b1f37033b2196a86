"""Checkpoint shards loaded so far, read off a worker's output as it grows; pure.

Progress bars rewrite their line with a carriage return, several processes
write into one log, and a line can be megabytes long: a watcher holds a few
hundred bytes, whatever comes.
"""

from __future__ import annotations

import re

#: Bytes of an unfinished line that are kept; a bar of vLLM with its prefixes is about 150.
_KEPT = 512

# vLLM:          Loading safetensors checkpoint shards:  50% Completed | 1/2 [00:01<00:01,  1.2s/it]
# transformers:  Loading checkpoint shards:  50%|#####     | 1/2 [00:01<00:01,  1.2s/it]
_SHARDS = re.compile(
    rb"[Ll]oad(?:ing)? (?:[\w-]+ )?(?:checkpoint )?shards:\s+\d{1,3}%[^\d\r\n]{1,80}?"
    rb"(\d{1,6})/(\d{1,6}) \["
)


class LoadWatcher:
    """Feed it the log's bytes in order; it says how many shards are read whenever that changes."""

    def __init__(self) -> None:
        self._rest = b""
        self._last: tuple[int, int] | None = None

    def feed(self, data: bytes) -> list[tuple[int, int]]:
        """(done, total) for each change in ``data``; values of 0 shards or done > total are not."""
        data = self._rest + data
        found = []
        for match in _SHARDS.finditer(data):
            done, total = int(match[1]), int(match[2])
            if total > 0 and done <= total and (done, total) != self._last:
                self._last = (done, total)
                found.append(self._last)
        # what follows the last line end may be the beginning of a bar
        end = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
        self._rest = data[max(end, len(data) - _KEPT) :]
        return found
