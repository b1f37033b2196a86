"""Check ``model``: the folder is there, its config parses, every shard is whole."""

from __future__ import annotations

import re
import shlex

from eagle3_agent.preflight.check import Check, Facts
from eagle3_agent.preflight.text import number, plural, show, size
from eagle3_agent.protocol.values import Profile, Verdict

from .model_facts import PROBE, ModelFacts

_SHOWN = 5
_WHY_WHOLE = "The load reads every shard and fails at this one, at the end of the wait."


def judge(facts: Facts, profile: Profile) -> Verdict:
    seen = facts.get(PROBE)
    path = show(seen.path, 300)
    if seen.problem:
        return _no_folder(seen, path)
    if seen.config_problem:
        return CHECK.verdict(
            "block",
            f"{path}: {show(seen.config_problem)}",
            "vLLM and transformers read the architecture from config.json.",
            "Set model.path to the folder that holds config.json, or copy that file again.",
        )
    if seen.index_problem:
        return CHECK.verdict(
            "block",
            f"{path}: {show(seen.index_problem, 300)}",
            "The index says which shard holds which tensor.",
            "Copy the index and the missing shards again.",
        )
    if seen.bad:
        return _bad_shards(seen, path)
    if not seen.shards:
        return _no_safetensors(seen, path)
    return _whole(seen, profile)


def _no_folder(seen: ModelFacts, path: str) -> Verdict:
    if re.fullmatch(r"[\w-][\w.-]*/[\w.-]+", seen.path):
        name = seen.path.rpartition("/")[2]
        return CHECK.verdict(
            "block",
            f"{path} is not a folder on this host; it looks like the name of a model hub",
            "A run does not download: a load must not depend on somebody else's network.",
            f"huggingface-cli download {shlex.quote(seen.path)} --local-dir "
            f"{shlex.quote('/path/to/' + name)}, then set model.path to that folder.",
        )
    return CHECK.verdict(
        "block",
        f"{path} {show(seen.problem)}",
        "There is nothing to load.",
        "Set model.path to the whole path of the checkpoint's folder on this host.",
    )


def _bad_shards(seen: ModelFacts, path: str) -> Verdict:
    lines = [f"{show(b.name, 120)} {show(b.problem, 300)}" for b in seen.bad[:_SHOWN]]
    rest = seen.bad_count - len(lines)
    names = " ".join(shlex.quote(show(b.name, 120)) for b in seen.bad[:_SHOWN])
    return CHECK.verdict(
        "block",
        f"{seen.bad_count} of {plural(seen.shards, 'shard')} in {path} not whole:\n"
        + "\n".join(lines)
        + (f"\nand {rest} more" if rest > 0 else ""),
        _WHY_WHOLE,
        f"Copy again: {names}{' and the others' if rest > 0 else ''}. Nothing here can mend them.",
    )


def _no_safetensors(seen: ModelFacts, path: str) -> Verdict:
    if seen.other_weights:
        return CHECK.verdict(
            "warn",
            f"{path} holds no safetensors but {show(seen.other_weights[0], 120)} and the like",
            "Those formats say nothing that could be checked before the load.",
            "Convert the checkpoint to safetensors if the load fails.",
        )
    return CHECK.verdict(
        "block",
        f"{path} holds config.json and no weights",
        "There is nothing to load.",
        "Download the weights as well (an interrupted download leaves just the small files).",
    )


def _whole(seen: ModelFacts, profile: Profile) -> Verdict:
    dims = [f"{number(seen.layers)} layers"] if seen.layers else []
    dims += [f"hidden {number(seen.hidden)}"] if seen.hidden else []
    kind = show(seen.architecture or seen.model_type, 80) or "unknown architecture"
    form = ", ".join(show(x, 40) for x in (seen.dtype, seen.quantization) if x)
    saw = (
        f"{kind}, {', '.join(dims) or 'unknown size'}{f', {form}' if form else ''}: "
        f"{plural(seen.shards, 'shard')} whole, {size(seen.bytes)}"
    )
    if not seen.tokenizer:
        return CHECK.verdict(
            "warn",
            f"{saw}; no tokenizer file",
            "Conversations are turned into tokens by the model's own tokenizer.",
            "Copy the tokenizer's files too, unless the data holds input_ids.",
        )
    if seen.custom_code and not profile.model.trust_remote_code:
        return CHECK.verdict(
            "warn",
            f"{saw}; the checkpoint brings its own Python (auto_map), trust_remote_code is false",
            "A model type that the installed library does not know itself cannot be loaded then.",
            "If the load says so, read that code and set model.trust_remote_code = true.",
        )
    return CHECK.verdict("pass", saw)


CHECK = Check(
    id="model",
    title="Model folder complete",
    needs=(PROBE,),
    judge=judge,
    silence="block",
    silence_why="The load reads the same files and would hang at the same place.",
    silence_todo="Look at the mount that holds the model (ls, then mount and dmesg).",
)
