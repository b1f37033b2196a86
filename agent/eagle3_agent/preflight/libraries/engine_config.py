"""Check ``engine-config``: vLLM builds its configuration from the run's own arguments.

What the worker made in the profile's interpreter, without weights, is judged here.
"""

from __future__ import annotations

from eagle3_agent.enginereport import EngineReport, Resolved
from eagle3_agent.preflight import engine
from eagle3_agent.preflight.check import Check, Facts
from eagle3_agent.preflight.text import number, plural, show
from eagle3_agent.protocol.values import Profile, Verdict

from . import engine_advice, remembered
from .engine_facts import PROBE, EngineFacts

_WHY = "The load would end the same way, after minutes."

#: Warnings of vLLM that follow from what every run here sets: nothing to be done about.
_OURS = (
    "Enforce eager set",
    "The global random seed is set",
    "Inductor compilation was disabled",
)

_DOING = {
    "start": "starting",
    "import": "importing vLLM",
    "config": "making the configuration",
}


def judge(facts: Facts, profile: Profile) -> Verdict:
    seen = facts.get(PROBE)
    if seen.engine not in engine.ON_VLLM:
        return CHECK.verdict("skip", f"{engine.named(seen.engine)}: vLLM makes no configuration")
    report = seen.report
    if report is None:
        return _cannot_tell(_silent(seen), profile)
    if report.resolved is not None:
        return CHECK.verdict("pass", _passed(seen, report, report.resolved, profile))
    if report.error is not None:
        return _failed(report, profile)
    return _ended(seen, report, profile)


def _silent(seen: EngineFacts) -> str:
    end = f" (it ended by {show(seen.end, 40)})" if seen.end else ""
    return f"{show(seen.problem, 400) or 'the worker left no report'}{end}"


def _cannot_tell(saw: str, profile: Profile, first: str = "") -> Verdict:
    return CHECK.verdict(
        "warn",
        f"cannot tell: {saw}",
        "What vLLM refuses shows itself after the load instead.",
        f"{first}See by hand: {show(profile.host.python, 200)} -c 'import vllm'",
    )


def _passed(seen: EngineFacts, report: EngineReport, made: Resolved, profile: Profile) -> str:
    quantised = show(made.quantization, 40) if made.quantization else "not quantised"
    parts = [show(made.architecture, 80), show(made.dtype, 20), quantised]
    more = made.max_model_len == profile.model.max_model_len + 1
    parts.append(f"{number(made.max_model_len)} positions{' (one to sample into)' if more else ''}")
    lines = [f"engine {seen.engine}: {', '.join(filter(None, parts))}", _limits(made)]
    if seen.engine == "script":
        lines.append("as the profile says: the script's own arguments show when it runs")
    told = [w for w in report.warnings if not w.startswith(_OURS)]
    lines += [f"vLLM warns: {show(text, 200)}" for text in told[:3]]
    if len(told) > 3 or report.dropped:
        lines.append(f"and {plural(len(told[3:]) + report.dropped, 'warning')} more")
    lines.append(f"{remembered.when(seen.age, seen.seconds)}; {_cost(report)}")
    return "\n".join(lines)


def _limits(made: Resolved) -> str:
    parts = [
        f"{number(made.max_num_batched_tokens)} tokens and {number(made.max_num_seqs)} samples a "
        "step at most",
    ]
    if made.block_size is not None:
        parts.append(f"KV blocks of {made.block_size}")
    parts.append(f"chunked prefill {_switch(made.chunked_prefill)}")
    parts.append(f"prefix caching {_switch(made.prefix_caching)}")
    parts.append(f"{show(made.executor, 40)} over {plural(made.tensor_parallel, 'rank')}")
    return ", ".join(parts)


def _switch(value: bool | None) -> str:
    return "unknown" if value is None else "on" if value else "off"


def _cost(report: EngineReport) -> str:
    cuda = {None: "", True: ", CUDA initialised for its time", False: ", CUDA not touched"}
    return f"no weights read{cuda[report.cuda_touched]}"


def _failed(report: EngineReport, profile: Profile) -> Verdict:
    assert report.error is not None
    error = report.error
    what = "importing vLLM fails" if report.failed == "import" else "vLLM refuses"
    if error.type == "EngineError" or error.type.startswith("eagle3_agent."):
        what = "the engine refuses"
    lines = [f"{what}: {show(engine_advice.sentence(error), 400)}"]
    place = engine_advice.place(error)
    lines.append(f"{show(error.type, 100)}{f' at {show(place, 200)}' if place else ''}")
    return CHECK.verdict(
        "block",
        "\n".join(lines),
        _WHY,
        show(engine_advice.way_out(error, profile), 400),
    )


def _ended(seen: EngineFacts, report: EngineReport, profile: Profile) -> Verdict:
    """The process is gone without a word of its own: a crash, an exit, or no end in sight."""
    doing = _DOING.get(report.step, "at work")
    words = show(seen.words, 300) or "without a word"
    if seen.end == "time":
        long = f"{doing} did not end within {seen.seconds:.0f} s; last words: {words}"
        return _cannot_tell(long, profile, "A deep preflight waits ten minutes for it. ")
    return CHECK.verdict(
        "block",
        f"the process ended by {show(seen.end, 40) or 'itself'} while {doing}: {words}",
        "The run's own process does the same before it loads anything.",
        f"Mend the installation: {show(profile.host.python, 200)} -m pip check, then -c "
        "'import vllm'",
    )


CHECK = Check(
    id="engine-config",
    title="Engine configuration accepted",
    needs=(PROBE,),
    judge=judge,
    silence="warn",
    silence_why="An import of vLLM that takes this long is a disk in trouble, or a broken "
    "installation.",
    silence_todo="Run the interpreter with: -c 'import vllm'.",
)
