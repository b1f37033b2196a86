"""A verification as lines for the terminal; pure."""

from __future__ import annotations

from collections.abc import Sequence

from eagle3_agent.protocol.values import SampleCheck, Substitute, VerifyReport

from .outcomes import Line
from .render import table

#: Samples listed when all agree, wrong ones first; and files named.
_LISTED, _NAMED = 20, 20

_STATUS: dict[str, Line] = {"holds": ("✓", ""), "fails": ("✗", "red"), "cannot-tell": ("?", "dim")}


def lines(value: VerifyReport) -> list[Line]:
    """The verdict in one sentence, then a table of samples and layers, then what is wrong."""
    told = [_verdict(value)]
    told += _samples(value.checked)
    for check in value.checked:
        told += _faults(check)
    for substitute in value.instead:
        told += _substitute(substitute)
    told += [(f"  ✗ {name}", "red") for name in value.bad_files[:_NAMED]]
    if len(value.bad_files) > _NAMED:
        told.append((f"  and {len(value.bad_files) - _NAMED} more bad files", "red"))
    return told + _basis(value)


def _verdict(value: VerifyReport) -> Line:
    files = f"{value.files} files checked, {len(value.bad_files)} bad; {value.seconds:.1f} s"
    if not value.ok:
        word, colour = "NOT verified", "red"
    elif value.not_recomputed:
        word, colour = "plausible", "amber"
    else:
        word, colour = "verified", "green"
    sentence = value.verdict or _older(value)
    return f"{word}: {sentence} ({files})", colour


def _older(value: VerifyReport) -> str:
    """For a report of an agent that says no sentence."""
    if not value.checked:
        return "no sample recomputed"
    wrong = sum(not check.ok for check in value.checked)
    return f"{wrong} of {len(value.checked)} recomputed samples wrong"


def _samples(checks: Sequence[SampleCheck]) -> list[Line]:
    """A row for each sample: the median token error of each layer."""
    if not checks:
        return []
    ordered = sorted(checks, key=lambda c: c.ok)  # stable: wrong ones first, then by index
    shown = sorted(ordered[:_LISTED], key=lambda c: c.index)
    layers = next((c.layers for c in shown if c.layers), ())
    errors = [f"layer {c.layer}" for c in layers] or ["worst layer"]
    header = ("  sample", "tokens", *errors, "")
    rows = [(_mark(check), f"{check.tokens}", *_errors(check), check.role) for check in shown]
    head, *body = table(header, rows, right=range(1, len(header) - 1))
    told: list[Line] = [(head, "dim")]
    told += [(row, "" if check.ok else "red") for row, check in zip(body, shown)]
    if len(checks) > len(shown):
        told.append((f"  and {len(checks) - len(shown)} more that agree", "dim"))
    return told


def _mark(check: SampleCheck) -> str:
    return f"{'✓' if check.ok else '✗'} {check.index:>6}"


def _errors(check: SampleCheck) -> list[str]:
    if not check.layers:
        return [_error(check.worst_relative_error)]
    return [f"{'' if c.ok else '✗ '}{_error(c.median)}" for c in check.layers]


def _error(value: float | None) -> str:
    return "-" if value is None else f"{value:.2e}"


def _faults(check: SampleCheck) -> list[Line]:
    if check.ok:
        return []
    if not check.faults:
        return [(f"  sample {check.index}: {check.why}", "red")]
    return [
        (f"  sample {check.index}, {_layers(fault.layers)}: {fault.text} [{fault.kind}]", "red")
        for fault in check.faults
    ]


def _layers(layers: Sequence[int]) -> str:
    return f"layer{'s' if len(layers) > 1 else ''} {', '.join(map(str, layers))}"


def _substitute(check: Substitute) -> list[Line]:
    mark, colour = _STATUS[check.status]
    return [(f"  {mark} {check.check:12} {check.saw}", colour), (f"      {check.shows}", "dim")]


def _basis(value: VerifyReport) -> list[Line]:
    """What the verdict rests on."""
    told = []
    if value.not_recomputed:
        told.append(("not recomputed", value.not_recomputed))
    if value.checked:
        within = f"median token error at most {value.tolerance:.2g} in long samples"
        told.append(("reference", value.reference))
        told.append(("tolerance", f"{within}; {value.why_tolerance}".rstrip("; ")))
    if value.seed is not None:
        told.append(("seed", f"{value.seed} (--seed {value.seed} draws the same samples)"))
    return [(f"  {name + ':':15} {text}", "dim") for name, text in told]
