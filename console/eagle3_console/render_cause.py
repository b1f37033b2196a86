"""What happened first, as lines of text."""

from __future__ import annotations

from eagle3_agent.protocol.values import Cause

from .hosttext import crop_left
from .outcomes import Line


def lines(value: Cause) -> list[Line]:
    """What happened first, where, what it means, and what followed from it."""
    made: list[Line] = [("what happened first", "bold"), (f"  {value.sentence}", "red")]
    if value.only_followed:
        made.append(("  only what followed from it was written", "amber"))
    if value.where is not None:
        source = f"   {value.where.source.strip()}" if value.where.source else ""
        made.append((f"  {crop_left(value.where.file, 60)}:{value.where.line}{source}", ""))
    if value.line is not None:
        made.append((f"  line {value.line + 1} of its log", "dim"))
    made += [(f"  NCCL: {text}", "") for text in value.hints]
    if value.means:
        made += [(f"  {value.means}", ""), (f"  > {value.todo}", "bold")]
    made += [(f"  before: {text}", "dim") for text in value.before]
    for one in value.followed:
        who = f" ({', '.join(one.processes[:4])})" if one.processes else ""
        made.append((f"  followed: {one.text}{who}", "dim"))
    return made
