"""Which model types the interpreter's transformers and vLLM know by themselves, from their sources.

Their tables are read as text: nothing is imported, so this takes milliseconds and runs no code.
transformers keeps ``("llama", "LlamaConfig")`` in ``models/auto/configuration_auto.py`` (4.x) or
``auto_mappings.py`` (5.x) and tokenizer classes in ``tokenization_auto.py``; vLLM keeps configs of
its own, ``kimi_k25="KimiK25Config"``, in ``transformers_utils/config.py``.
"""

from __future__ import annotations

import glob
import os
import re
import shutil
from dataclasses import dataclass

from eagle3_agent.preflight.check import Ask, Probe
from eagle3_agent.preflight.files import open_regular

from . import config as configs
from . import jsonfile
from .model_facts import CONFIG_LIMIT

_SOURCE_LIMIT = 4 * 1024 * 1024
_AUTO = os.path.join("transformers", "models", "auto")
_OWN = os.path.join("vllm", "transformers_utils", "config.py")
_PAIR = re.compile(r"""\(\s*"([\w.-]+)",\s*"\w+Config"\s*,?\s*\)""")
_KEYWORD = re.compile(r"""^\s+(\w+)="\w+Config",""", re.MULTILINE)
_CLASS = re.compile(r"""["'](\w+)["']""")


@dataclass(frozen=True)
class NativeFacts:
    """None where the library's table was not found or not understood."""

    transformers: bool | None = None
    """It knows the model's type."""
    vllm: bool | None = None
    """vLLM has a config of its own for the model's type."""
    tokenizer_class: str = ""
    """As tokenizer_config.json names it."""
    tokenizer: bool | None = None
    """transformers knows that class."""
    code: tuple[str, ...] = ()
    """Files of Python that ``auto_map`` names and that are not in the model folder."""
    tokenizer_map: str = ""
    """``module.Class`` of a tokenizer that the checkpoint brings."""


def _collect(ask: Ask) -> NativeFacts:
    path = ask.profile.model.path
    body, _ = jsonfile.read(os.path.join(path, "config.json"), CONFIG_LIMIT)
    config = configs.interpret(body)
    own, _ = jsonfile.read(os.path.join(path, "tokenizer_config.json"), CONFIG_LIMIT)
    kind = configs.word(own.get("tokenizer_class"))
    mapped = configs.auto_map(own).get("AutoTokenizer", "")
    places = site_packages(ask.profile.host.python, ask.profile.host.env)
    types = _union(places, _AUTO, ("configuration_auto.py", "auto_mappings.py"), _PAIR)
    classes = _union(places, _AUTO, ("tokenization_auto.py",), _CLASS)
    vllm = _union(places, os.path.dirname(_OWN), (os.path.basename(_OWN),), _KEYWORD)
    kinds = {kind, kind + "Fast"} if kind else {"PreTrainedTokenizerFast"}
    generic = {"PreTrainedTokenizerFast", "TokenizersBackend"}
    return NativeFacts(
        transformers=config.model_type in types if types else None,
        vllm=config.model_type in vllm if vllm else None,
        tokenizer_class=kind,
        tokenizer=bool(kinds & (classes | generic)) if classes else None,
        code=_missing_code(path, [*config.auto_map.values(), mapped]),
        tokenizer_map=mapped,
    )


def site_packages(python: str, env: dict[str, str]) -> list[str]:
    """Folders in which this interpreter finds its packages, as far as their names tell."""
    found = [p for p in env.get("PYTHONPATH", "").split(os.pathsep) if os.path.isabs(p)]
    whole = python if "/" in python else shutil.which(python, path=env.get("PATH")) or ""
    if not whole or "\0" in whole:
        return found
    # a venv's python is a symlink out of it: the packages are beside the link
    for start in dict.fromkeys((os.path.abspath(whole), os.path.realpath(whole))):
        prefix = os.path.dirname(os.path.dirname(start))
        for base in (prefix, os.path.join(prefix, "local")):
            for lib in ("lib", "lib64"):
                for kind in ("site-packages", "dist-packages"):
                    pattern = os.path.join(glob.escape(base), lib, "python3*", kind)
                    found += sorted(glob.glob(pattern))
    return list(dict.fromkeys(found))


def _union(
    places: list[str], folder: str, names: tuple[str, ...], what: re.Pattern[str]
) -> set[str]:
    """Everything that the pattern finds in the first of the places that has these files."""
    for place in places:
        found: set[str] = set()
        for name in names:
            found.update(what.findall(_source(os.path.join(place, folder, name))))
        if found:
            return found
    return set()


def _source(path: str) -> str:
    try:
        file, _ = open_regular(path)
        with file:
            return file.read(_SOURCE_LIMIT).decode("utf-8", "replace")
    except OSError:
        return ""


def _missing_code(path: str, values: list[str]) -> tuple[str, ...]:
    """Of ``configuration_x.XConfig`` the file; of ``owner/name--module.Class`` the whole."""
    missing = []
    for value in values:
        if "--" in value:
            missing.append(value)  # another repository's code: never in this folder
        elif value:
            name = value.rpartition(".")[0] + ".py"
            if "\0" in name or not os.path.isfile(os.path.join(path, os.path.basename(name))):
                missing.append(name)
    return tuple(dict.fromkeys(missing))[:8]


PROBE = Probe("natives", NativeFacts, _collect, timeout=30.0)
