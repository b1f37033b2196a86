"""What follows from another process's failure, and what is the same failure; pure."""

from __future__ import annotations

import re

from .found import Found, Raised

#: ``Type: message`` of what follows from another process's failure.
_SECONDARY = re.compile(
    r"EngineDeadError|EngineCore encountered an issue|Engine core initialization failed"
    r"|WorkerProc (?:initialization failed|hit an exception)"
    r"|Worker failed with error|Executor failed|check the stack trace above"
    r"|See stack trace|See root cause above|Engine process failed to start"
    r"|Engine loop has died|Background loop (?:has errored|is stopped)"
    r"|^(?:\w+\.)*(?:CancelledError|BrokenPipeError|ConnectionResetError|ConnectionAbortedError"
    r"|ConnectionRefusedError|EOFError|KeyboardInterrupt|SystemExit|GeneratorExit"
    r"|BrokenProcessPool|ProcessExitedException|ProcessRaisedException|ActorDiedError"
    r"|RayActorError|ClosedResourceError|ChildFailedError|(?:Base)?ExceptionGroup|Died)\b"
    r"|^RuntimeError: [Cc]ancelled|Event loop is closed|cannot schedule new futures"
    r"|remote process exited|Connection closed by (?:remote )?peer|Connection reset by peer"
    r"|NCCL communicator was aborted|ncclRemoteError|Broken pipe|Socket closed"
    r"|watchdog thread terminated|due to Socket Timeout|\[c10d\] recvVector|recvValue failed"
    r"|failed to recv, got 0 bytes|died unexpectedly|handle is closed"
    r"|zmq\.error\.(?:ContextTerminated|ZMQError)|The actor died|Aborted$|^Aborted"
    r"|can only test a child process"
)
#: They are a consequence when something else failed, and a cause when nothing did.
_LATE = re.compile(
    r"Watchdog caught|RPC call to \w+ timed out|TimeoutError|^Killed|timed out"
    r"|^DistStoreError|wait timeout after"
)


def follows(raised: Raised) -> bool:
    return _SECONDARY.search(f"{raised.type}: {raised.message}"[:4000]) is not None


def late(raised: Raised) -> bool:
    return _LATE.search(f"{raised.type}: {raised.message}"[:4000]) is not None


def kind(raised: Raised) -> tuple[str, str]:
    """Equal for what differs only in numbers and in the module that the type is named by."""
    return raised.short_type, without_numbers(raised)


def without_numbers(raised: Raised) -> str:
    return re.sub(r"0x[0-9a-f]+|\d+(?:\.\d+)?", "#", headline(raised.message))[:200]


def says(found: Found, told: Raised) -> bool:
    """Whether the run's own words about its end are an exception of this chain."""
    return any(kind(raised) == kind(told) for raised in found.chain)


def headline(message: str) -> str:
    """The line of a message that says something: pydantic's stands below its count."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    if len(lines) > 1 and re.match(r"\d+ validation errors? for ", lines[0]):
        field, said = lines[1], lines[1:]
        if re.fullmatch(r"[\w.\[\]-]{1,80}", field) and len(lines) > 2:
            said = [f"{field}: {lines[2].removeprefix('Value error, ')}"]
        return said[0].removeprefix("Value error, ").partition(" [type=")[0]
    return lines[0] if lines else ""
