"""The checkpoint's own Python: needed, allowed, or not to be told; and whom the libraries know."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from eagle3_agent.preflight.check import Facts, known
from eagle3_agent.preflight.model import natives, remote_code
from eagle3_agent.preflight.model.model_facts import PROBE as MODEL
from eagle3_agent.preflight.model.model_facts import ModelFacts
from eagle3_agent.preflight.model.natives import PROBE, NativeFacts
from eagle3_agent.protocol.values import EngineName, Verdict
from support import models
from support.preflight import gather, profile

MAP = {"AutoConfig": "configuration_x.XConfig"}


def verdict(
    seen: NativeFacts,
    auto_map: dict[str, str] | None = None,
    trust: bool = False,
    engine: EngineName = "vllm",
    problem: str = "",
) -> Verdict:
    model = ModelFacts("/m", problem, model_type="x", auto_map=auto_map or {})
    facts = known((MODEL, model), (PROBE, seen))
    return remote_code.CHECK.decide(
        facts, profile(model_trust_remote_code=trust, engine_name=engine)
    )


def test_without_python_of_its_own() -> None:
    found = verdict(NativeFacts())
    assert (found.status, found.saw) == ("pass", "the checkpoint brings no Python of its own")
    assert "true and not needed" in verdict(NativeFacts(), trust=True).saw


@pytest.mark.parametrize("trust", [True, False])
def test_a_type_that_a_library_knows_does_not_need_it(trust: bool) -> None:
    for seen, who in (
        (NativeFacts(transformers=True), "transformers"),
        (NativeFacts(transformers=False, vllm=True), "vLLM"),
    ):
        found = verdict(seen, MAP, trust)
        assert found.status == "pass"
        assert f"not needed: the interpreter's {who} knows x" in found.saw


def test_what_vllm_knows_does_not_help_transformers() -> None:
    found = verdict(NativeFacts(transformers=False, vllm=True), MAP, engine="transformers")
    assert found.status == "warn"


def test_an_unknown_type_warns_unless_it_is_allowed() -> None:
    found = verdict(NativeFacts(transformers=False, vllm=False), MAP)
    assert found.status == "warn"
    assert "no library of the interpreter lists x; trust_remote_code is false" in found.saw
    found = verdict(NativeFacts(transformers=False), MAP, trust=True)
    assert found.status == "pass"
    assert "allowed by trust_remote_code" in found.saw


def test_what_cannot_be_told_is_said() -> None:
    found = verdict(NativeFacts(), MAP)
    assert found.status == "warn"
    assert "cannot be told without loading" in found.saw
    assert verdict(NativeFacts(), MAP, problem="does not exist").status == "skip"
    silent = Facts(silent={"natives": "did not answer within 30 s"})
    assert remote_code.CHECK.decide(silent, profile()).status == "warn"


def test_files_that_are_not_there_block_where_they_would_be_run() -> None:
    seen = NativeFacts(transformers=False, code=("modeling_x.py",))
    found = verdict(seen, MAP, trust=True)
    assert found.status == "block"
    assert "auto_map names modeling_x.py, not in the folder" in found.saw
    assert verdict(seen, MAP).status == "warn"
    assert verdict(NativeFacts(transformers=True, code=("modeling_x.py",)), MAP, True).status == (
        "pass"
    )


def test_a_tokenizer_of_its_own() -> None:
    seen = NativeFacts(
        transformers=True, tokenizer=False, tokenizer_class="OwnTokenizer",
        tokenizer_map="tokenization_x.OwnTokenizer",
    )  # fmt: skip
    found = verdict(seen, MAP)
    assert found.status == "warn"
    assert "the tokenizer OwnTokenizer is Python of the checkpoint" in found.saw
    assert verdict(seen, MAP, trust=True).status == "pass"


# ------------------------------------------------------------------ real folders


def site(folder: Path, v5: bool = False) -> Path:
    auto = folder / "transformers" / "models" / "auto"
    auto.mkdir(parents=True)
    table = 'M = OrderedDict([\n    ("llama", "LlamaConfig"),\n    ("gpt-sw3", "GPT2Config"),\n])\n'
    (auto / ("auto_mappings.py" if v5 else "configuration_auto.py")).write_text(table)
    (auto / "tokenization_auto.py").write_text(
        '("llama", ("LlamaTokenizer", "LlamaTokenizerFast"))'
    )
    utils = folder / "vllm" / "transformers_utils"
    utils.mkdir(parents=True)
    (utils / "config.py").write_text('R = LazyConfigDict(\n    kimi_k25="KimiK25Config",\n)\n')
    return folder


def look(tmp_path: Path, site_: Path | None, **config: Any) -> NativeFacts:
    folder = models.make_checkpoint(tmp_path / "m", **config)
    (folder / "tokenizer_config.json").write_text(
        json.dumps(
            {
                "tokenizer_class": "TikTokenTokenizer",
                "auto_map": {"AutoTokenizer": ["tokenization_kimi.TikTokenTokenizer", None]},
            }
        )
    )
    python = tmp_path / "venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text("")
    if site_ is not None:
        lib = tmp_path / "venv" / "lib" / "python3.12"
        lib.mkdir(parents=True)
        (lib / "site-packages").symlink_to(site_)
    asked = profile(model_path=str(folder), host_python=str(python))
    return gather(PROBE, asked).get(PROBE)


@pytest.mark.parametrize("v5", [False, True])
def test_the_libraries_tables_are_read(tmp_path: Path, v5: bool) -> None:
    seen = look(
        tmp_path, site(tmp_path / "site", v5), model_type="kimi_k25",
        auto_map={"AutoConfig": "configuration_kimi.K", "AutoModel": "other/repo--modeling.M"},
    )  # fmt: skip
    assert (seen.transformers, seen.vllm, seen.tokenizer) == (False, True, False)
    assert seen.tokenizer_map == "tokenization_kimi.TikTokenTokenizer"
    assert seen.code == (
        "configuration_kimi.py", "other/repo--modeling.M", "tokenization_kimi.py"
    )  # fmt: skip


def test_a_known_type(tmp_path: Path) -> None:
    seen = look(tmp_path, site(tmp_path / "site"))
    assert (seen.transformers, seen.vllm) == (True, False)


def test_an_interpreter_without_the_libraries_tells_nothing(tmp_path: Path) -> None:
    seen = look(tmp_path, None)
    assert (seen.transformers, seen.vllm) == (None, None)


def test_where_packages_are_looked_for(tmp_path: Path) -> None:
    places = natives.site_packages(str(tmp_path / "bin/python"), {"PYTHONPATH": f"/a{os.pathsep}b"})
    assert places == ["/a"]
    assert natives.site_packages("no-such-python", {"PATH": "/nonexistent"}) == []
    assert natives.site_packages("/x\0y/python", {}) == []


def test_old_forms_of_auto_map(tmp_path: Path) -> None:
    folder = models.make_checkpoint(tmp_path / "m")
    for auto_map in (["a.Slow", "a.Fast"], {"AutoTokenizer": ["a.Slow", "a.Fast"]}):
        text = json.dumps({"auto_map": auto_map})
        (folder / "tokenizer_config.json").write_text(text)
        found = gather(PROBE, profile(model_path=str(folder))).get(PROBE)
        assert found.tokenizer_map == "a.Fast"
