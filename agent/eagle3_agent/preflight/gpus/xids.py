"""What NVIDIA's Xids mean and ask for; pure.

Source: the Xid catalog, docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html, whose
"immediate action" is the ``then`` here; texts are ours.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Then = Literal["program", "restart", "reset", "reboot", "links", "watch", "unknown"]

#: From what stops a run down to what is only told.
ORDER: tuple[Then, ...] = ("reboot", "reset", "links", "restart", "unknown", "watch", "program")


@dataclass(frozen=True)
class Xid:
    text: str
    then: Then


_UNKNOWN = Xid("not in this tool's table", "unknown")

_TABLE: dict[int, Xid] = {
    8: Xid("the GPU stopped processing a channel", "restart"),
    11: Xid("invalid command stream", "program"),
    13: Xid("graphics engine exception: an access out of bounds, most often", "program"),
    25: Xid("illegal command stream", "program"),
    31: Xid("memory page fault: an illegal address, most often", "program"),
    32: Xid("corrupted command stream: PCIe quality, most often", "restart"),
    37: Xid("driver firmware error", "watch"),
    38: Xid("driver firmware watchdog ran out", "watch"),
    39: Xid("copy engine exception", "restart"),
    43: Xid("a program's fault ended its channel; the GPU stays healthy", "program"),
    44: Xid("fault during a context switch", "watch"),
    45: Xid("a program was torn down: killed, or after an error before", "program"),
    46: Xid("the GPU stopped processing", "reset"),
    48: Xid("double bit ECC error", "reset"),
    54: Xid("auxiliary power is not connected", "reboot"),
    61: Xid("internal microcontroller breakpoint", "reset"),
    62: Xid("internal microcontroller halted", "reset"),
    63: Xid("a row was remapped or a page retired", "watch"),
    64: Xid("a row could not be remapped, or a page not retired", "reset"),
    66: Xid("illegal access by the driver", "watch"),
    68: Xid("video decoder exception", "restart"),
    69: Xid("graphics engine class error", "program"),
    74: Xid("NVLink error", "links"),
    79: Xid("the GPU has fallen off the bus", "reboot"),
    92: Xid("high rate of single bit ECC errors", "watch"),
    94: Xid("contained memory error: one program was hit", "restart"),
    95: Xid("uncontained memory error: all programs were hit", "reset"),
    105: Xid("JPEG engine error", "restart"),
    109: Xid("context switch timeout", "reset"),
    110: Xid("security fault", "reset"),
    119: Xid("the GPU's system processor (GSP) did not answer", "reset"),
    120: Xid("error in the GPU's system processor (GSP)", "reset"),
    121: Xid("corrected errors on the link to the CPU (C2C)", "watch"),
    122: Xid("reading the board's flash failed (SPI)", "watch"),
    123: Xid("writing the board's flash failed (SPI)", "watch"),
    136: Xid("link training failed", "reset"),
    137: Xid("NVLink privilege error: an illegal peer access, most often", "program"),
    140: Xid("unrecovered ECC error", "reset"),
    141: Xid("CUDA fast path error", "watch"),
    143: Xid("the GPU's initialisation failed", "reset"),
    144: Xid("NVLink error (SAW)", "links"),
    145: Xid("NVLink error (RLW)", "links"),
    146: Xid("NVLink error (TLW)", "links"),
    147: Xid("NVLink error (TREX)", "links"),
    148: Xid("NVLink error (NVLPW_CTRL)", "links"),
    149: Xid("NVLink error (NETIR)", "links"),
    150: Xid("NVLink error (MSE)", "links"),
    154: Xid("the driver changed the recovery action", "watch"),
    155: Xid("NVLink went down by software", "links"),
    156: Xid("a resource was retired", "reset"),
    157: Xid("a resource could not be retired", "watch"),
    158: Xid("fatal timeout", "reset"),
    167: Xid("PCIe fatal timeout", "reset"),
    171: Xid("uncorrectable DRAM error (details of 48)", "reset"),
    172: Xid("uncorrectable SRAM error (details of 48)", "reset"),
}

#: What Xid 154 says after "to 0x2", by the catalog -> what to do.
_RECOVERY: tuple[tuple[str, Then], ...] = (
    ("node reboot", "reboot"),
    ("drain and reset", "reset"),
    ("reset", "reset"),
    ("drain p2p", "links"),
)

_WHY: dict[Then, str] = {
    "reboot": "A GPU that fell off the bus does not come back without a reboot.",
    "reset": "What such an error leaves behind stays until the GPU is reset.",
    "links": "NVLink errors end a tensor parallel run, or slow it down.",
    "restart": "The hardware or driver ended a program; it may do so again.",
    "unknown": "An Xid always means that something went wrong on this GPU.",
    "watch": "The driver dealt with it; many of them announce worse.",
    "program": "These come from programs most often, also from killed ones; the GPU is well.",
}

_TODO: dict[Then, str] = {
    "reboot": "If it came after the last reboot: reboot the host; if it repeats, its vendor.",
    "reset": "If the GPU was not reset since: nvidia-smi --gpu-reset -i N, or reboot the host.",
    "links": "Look with: nvidia-smi nvlink -e; reset the GPU or reboot if errors go on.",
    "restart": "Nothing, if it stays one; a GPU that repeats it is its vendor's.",
    "unknown": "Look it up: docs.nvidia.com/deploy/xid-errors",
    "watch": "Nothing at once; watch whether it repeats.",
    "program": "If it was a run's: look at its log of that minute; else nothing.",
}


def meaning(code: int, text: str = "") -> Xid:
    """The Xid's words and what it asks for; ``text`` is what follows its number in the log."""
    found = _TABLE.get(code, _UNKNOWN)
    if code == 154:
        after = text.lower().rpartition(" to 0x")[2]
        for words, then in _RECOVERY:
            if words in after:
                return Xid(f"the driver asks for: {words}", then)
    return found


def why(then: Then) -> str:
    return _WHY[then]


def todo(then: Then) -> str:
    return _TODO[then]
