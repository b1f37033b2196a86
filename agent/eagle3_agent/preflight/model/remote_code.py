"""Check ``trust-remote-code``: whether the checkpoint's own Python is needed, and allowed."""

from __future__ import annotations

from eagle3_agent.preflight.check import Check, Facts
from eagle3_agent.preflight.engine import ON_VLLM, resolve
from eagle3_agent.preflight.libraries.interpreter_facts import PROBE as INTERPRETER
from eagle3_agent.preflight.text import listed, show
from eagle3_agent.protocol.values import Profile, Verdict

from .model_facts import PROBE as MODEL
from .natives import PROBE as NATIVES
from .natives import NativeFacts

_WHY = "With trust_remote_code, files of the model folder run as this user."
_ALLOW = "Read that code, then set model.trust_remote_code = true."


def judge(facts: Facts, profile: Profile) -> Verdict:
    model, known = facts.get(MODEL), facts.get(NATIVES)
    if model.problem or model.config_problem:
        return CHECK.verdict("skip", "config.json was not read, so its auto_map is not known")
    trusted = profile.model.trust_remote_code
    if not model.auto_map and not known.tokenizer_map:
        words = "; trust_remote_code is true and not needed" if trusted else ""
        return CHECK.verdict("pass", f"the checkpoint brings no Python of its own{words}")
    brought = _brought(list(model.auto_map.values()), known)
    who = _who(known, resolve(facts, profile) in (*ON_VLLM, "auto"))
    kind = show(model.model_type, 60) or "its model type"
    if known.code and trusted and not (who and _tokenizer_known(known)):
        return CHECK.verdict(
            "block",
            f"auto_map names {listed([show(c, 80) for c in known.code], 3)}, not in the folder",
            "The load imports those files; fetching them needs a network, which a run never uses.",
            "Download the .py files of the checkpoint as well.",
        )
    if model.auto_map and not who:
        return _unknown(kind, brought, known, trusted)
    if known.tokenizer_map and not _tokenizer_known(known):
        return _tokenizer(known, trusted)
    if trusted:
        return CHECK.verdict(
            "pass", f"{brought}; trust_remote_code is true and not needed: {who} knows {kind}"
        )
    return CHECK.verdict("pass", f"{brought}, not needed: {who} knows {kind}")


def _brought(values: list[str], known: NativeFacts) -> str:
    names = [show(v, 60) for v in dict.fromkeys([*values, known.tokenizer_map]) if v]
    return f"Python of its own (auto_map: {listed(names, 2)})"


def _who(known: NativeFacts, on_vllm: bool) -> str:
    if known.transformers:
        return "the interpreter's transformers"
    return "the interpreter's vLLM" if known.vllm and on_vllm else ""


def _tokenizer_known(known: NativeFacts) -> bool:
    return not known.tokenizer_map or known.tokenizer is True


def _unknown(kind: str, brought: str, known: NativeFacts, trusted: bool) -> Verdict:
    sure = known.transformers is False
    told = (
        f"no library of the interpreter lists {kind}"
        if sure
        else "whether the interpreter's libraries know it cannot be told without loading"
    )
    if trusted:
        return CHECK.verdict("pass", f"{brought}, allowed by trust_remote_code; {told}")
    return CHECK.verdict(
        "warn",
        f"{brought}; {told}; trust_remote_code is false",
        "A model type that the libraries do not know cannot be loaded then." if sure else _WHY,
        _ALLOW if sure else f"If the load asks for it: {_ALLOW[0].lower()}{_ALLOW[1:]}",
    )


def _tokenizer(known: NativeFacts, trusted: bool) -> Verdict:
    name = show(known.tokenizer_class or known.tokenizer_map, 60)
    told = (
        "transformers does not list it"
        if known.tokenizer is False
        else "whether transformers knows it cannot be told without loading"
    )
    saw = f"the tokenizer {name} is Python of the checkpoint; {told}"
    if trusted:
        return CHECK.verdict("pass", f"{saw}; trust_remote_code is true")
    return CHECK.verdict(
        "warn",
        f"{saw}; trust_remote_code is false",
        f"Conversations cannot be tokenised then; rows of input_ids can be captured. {_WHY}",
        _ALLOW,
    )


CHECK = Check(
    id="trust-remote-code",
    title="Model's own Python allowed",
    needs=(MODEL, NATIVES),
    wants=(INTERPRETER,),
    judge=judge,
    silence="warn",
    silence_why="Whether the checkpoint brings Python of its own stands in its config.json.",
    silence_todo="Mend the check on the model first.",
)
