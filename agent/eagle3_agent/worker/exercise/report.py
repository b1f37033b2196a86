"""What an exercise is asked, and the file in which it tells what it found."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from eagle3_agent.runs import write_value

Asked = dict[str, Any]


class Report:
    """What an exercise found so far; each change is in the file at once."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._values: dict[str, Any] = {"phase": "start", "problem": ""}
        self.tell()

    def tell(self, **values: Any) -> None:
        """Raises OSError when the file cannot be written."""
        self._values.update(values)
        write_value(self._path, self._values, durable=False)
