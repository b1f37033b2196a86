"""Check ``capture``: how this model's states would be had, and whether the worker would refuse."""

from __future__ import annotations

from eagle3_agent.enginereport import Capture
from eagle3_agent.preflight import engine
from eagle3_agent.preflight.check import Check, Facts
from eagle3_agent.preflight.text import plural, show
from eagle3_agent.protocol.values import Profile, Verdict

from . import remembered
from .engine_facts import PROBE, EngineFacts

_TRY = "Run a few samples first (data.max_samples = 4), and verify them."


def judge(facts: Facts, profile: Profile) -> Verdict:
    seen = facts.get(PROBE)
    if seen.engine not in engine.ON_VLLM:
        return CHECK.verdict(
            "skip", f"{engine.named(seen.engine)}: nothing is captured inside of vLLM"
        )
    found = seen.report.capture if seen.report is not None else None
    if found is None:
        return _cannot_tell(seen)
    if found.refusals:
        return CHECK.verdict(
            "block",
            "\n".join(show(reason, 300) for reason in found.refusals[:8]),
            "The states would be wrong or missing, so the worker refuses them once it is loaded.",
            "Change what each line names.",
        )
    return _judge_model(seen, found)


def _judge_model(seen: EngineFacts, found: Capture) -> Verdict:
    when = remembered.when(seen.age, seen.seconds)
    if found.problem:
        named = f"{show(found.model, 80)}, by its class: {show(found.how, 200)}"
        named = named if found.how else ""
        return CHECK.verdict(
            "warn",
            "\n".join(filter(None, [named, f"cannot tell more: {show(found.problem, 300)}", when])),
            "The model could not be laid out without weights; what would be refused shows after "
            "the load.",
            _TRY,
        )
    layers = plural(found.layers, show(found.decoder, 80) or "layer")
    saw = f"{show(found.how, 300)}\n{show(found.model, 80)} of {layers}"
    if found.attention:
        saw += f", attention {show(', '.join(found.attention), 80)}"
    if found.tried:
        return CHECK.verdict("pass", f"{saw}\ntried: {show(found.tried, 120)}\n{when}")
    saw += "\nby signature: no test runs this model on this vLLM"
    if found.how.startswith("vLLM's SupportsEagle3"):
        return CHECK.verdict("pass", f"{saw}\n{when}")
    return CHECK.verdict(
        "warn",
        f"{saw}\n{when}",
        "What a layer gives is taken as (state, residual); a model that means something else by "
        "it gives other states.",
        _TRY,
    )


def _cannot_tell(seen: EngineFacts) -> Verdict:
    error = seen.report.error if seen.report is not None else None
    if error is not None:
        reason = "the engine was not made: see its configuration"
    elif seen.end:
        reason = f"the worker ended by {show(seen.end, 40)}: {show(seen.words, 300)}"
    else:
        reason = show(seen.problem, 300) or "the worker said nothing of the model"
    return CHECK.verdict(
        "warn",
        f"cannot tell: {reason}",
        "How the states are had, and whether they would be refused, shows after the load instead.",
        "Mend what the check on the engine's configuration names.",
    )


CHECK = Check(
    id="capture",
    title="States can be captured",
    needs=(PROBE,),
    judge=judge,
    silence="warn",
    silence_why="Without it, a model whose states cannot be had is refused after the load.",
    silence_todo="Run the interpreter with: -c 'import vllm'.",
)
