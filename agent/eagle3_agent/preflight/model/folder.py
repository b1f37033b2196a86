"""Check ``model``: the folder is there, its config parses, its shards are whole and fit."""

from __future__ import annotations

import re
import shlex

from eagle3_agent.preflight.check import Check, Facts
from eagle3_agent.preflight.text import listed, number, plural, show, size
from eagle3_agent.protocol.values import Profile, Verdict

from .model_facts import PROBE, Count, ModelFacts

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
    if seen.found_layers.missing:
        return _missing_layers(seen, path)
    return _whole(seen)


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
    if seen.partial:
        lines.append(f"unfinished downloads: {_names(seen.partial)}")
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
    partial = f"; unfinished downloads: {_names(seen.partial)}" if seen.partial else ""
    return CHECK.verdict(
        "block",
        f"{path} holds config.json and no weights{partial}",
        "There is nothing to load.",
        "Download the weights as well (an interrupted download leaves just the small files).",
    )


def _missing_layers(seen: ModelFacts, path: str) -> Verdict:
    found = seen.found_layers
    shown = listed([str(i) for i in found.missing[: found.missing_count]], 8)
    more = found.missing_count - len(found.missing)
    return CHECK.verdict(
        "block",
        f"{path}: no tensor of {plural(found.missing_count, 'layer')} is in any shard "
        f"({show(found.prefix, 80)}.{shown}{f' and {more} further' if more else ''}); "
        f"config.json says {number(seen.layers or 0)} layers",
        "A load without all weights fails at its end, or goes on with weights left as they were.",
        "Copy the checkpoint again, or the config.json that belongs to it.",
    )


def _whole(seen: ModelFacts) -> Verdict:
    dims = [f"{number(seen.layers)} layers"] if seen.layers else []
    dims += [f"hidden {number(seen.hidden)}"] if seen.hidden else []
    kind = show(seen.architecture or seen.model_type, 80) or "unknown architecture"
    form = ", ".join(show(x, 40) for x in (seen.dtype, seen.quantization) if x)
    saw = (
        f"{kind}, {', '.join(dims) or 'unknown size'}{f', {form}' if form else ''}: "
        f"{plural(seen.shards, 'shard')} whole, {size(seen.bytes)}"
    )
    doubts = [*_mixed(seen), *_unlike(seen)]
    if not doubts:
        if seen.layers and not seen.found_layers.prefix:
            saw += "; the layers were not recognised in its tensors' names"
        return CHECK.verdict("pass", saw)
    return CHECK.verdict(
        "warn",
        "\n".join([saw, *(what for what, _ in doubts)]),
        "A folder that holds parts of two checkpoints loads, and computes something else.",
        " ".join(dict.fromkeys(todo for _, todo in doubts)),
    )


def _mixed(seen: ModelFacts) -> list[tuple[str, str]]:
    """(what, what to do) for files and tensors that the index does not account for."""
    found = []
    if seen.extra_count:
        names = _names(seen.extra, seen.extra_count)
        found.append(
            (
                f"{plural(seen.extra_count, 'safetensors file')} beside the checkpoint: {names}",
                "Move out of the folder what is no part of this checkpoint.",
            )
        )
    for count, what in (
        (seen.unindexed, "in the shards, not in the index"),
        (seen.doubled, "in two shards at once"),
    ):
        if count.count:
            found.append((_tensors(count, what), "Copy index and shards from one source again."))
    if seen.index_total is not None and seen.index_total != seen.data:
        found.append(
            (
                f"the index says {number(seen.index_total)} bytes of tensors (total_size), the "
                f"shards hold {number(seen.data)}",
                "Harmless if the index was written by a converter: no loader reads that figure.",
            )
        )
    if seen.partial:
        found.append(
            (
                f"unfinished downloads: {_names(seen.partial)}",
                "Let the download end, or remove these files if none is running.",
            )
        )
    return found


def _unlike(seen: ModelFacts) -> list[tuple[str, str]]:
    """Where config.json describes another model than the weights are."""
    found = []
    again = "Copy the config.json that belongs to these weights."
    layers = seen.found_layers
    if layers.beyond > seen.extra_layers:
        found.append(
            (
                f"the shards hold {plural(layers.beyond, 'layer')} past the last of "
                f"config.json's {number(seen.layers or 0)}",
                again,
            )
        )
    if len(seen.embedding) == 2:
        rows, width = seen.embedding
        if seen.hidden and width != seen.hidden:
            found.append(
                (
                    f"the embedding is {number(width)} wide, config.json's hidden size is "
                    f"{number(seen.hidden)}",
                    again,
                )
            )
        if seen.vocab and rows < seen.vocab:
            found.append(
                (
                    f"the embedding has {number(rows)} rows, config.json's vocabulary "
                    f"{number(seen.vocab)}",
                    again,
                )
            )
    return found


def _tensors(count: Count, what: str) -> str:
    return f"{plural(count.count, 'tensor')} {what}, such as {show(count.example, 120)}"


def _names(names: tuple[str, ...], count: int = 0) -> str:
    shown = [show(n, 80) for n in names]
    rest = max(count, len(shown)) - min(3, len(shown))
    return ", ".join(shown[:3]) + (f" and {rest} more" if rest > 0 else "")


CHECK = Check(
    id="model",
    title="Model folder complete",
    needs=(PROBE,),
    judge=judge,
    silence="block",
    silence_why="The load reads the same files and would hang at the same place.",
    silence_todo="Look at the mount that holds the model (ls, then mount and dmesg).",
)
