"""vLLM's own way, which speculators 0.5 and later drive: extract_hidden_states and its connector.

``LLM.generate`` in place of speculators' HTTP client, which spares this peer the server.
The connector writes one file a request; the files are then renamed as speculators
does, and synced.  On a CPU the stock connector asks for pinned memory and fails:
``connector_cpu`` is it without pinning.
"""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path
from typing import Any

from . import files
from .plain import arguments
from .spec import Round, Spec, rows
from .versions import versions


class Connector:
    """See ``spec.Side``."""

    def __init__(self, spec: Spec) -> None:
        import torch

        from vllm import LLM, SamplingParams

        self._spec = spec
        self._prompts: list[Any] = [{"prompt_token_ids": row} for row in rows(spec.data)]
        self._tokens = sum(len(p["prompt_token_ids"]) for p in self._prompts)
        self._staged = files.emptied(f"{spec.out}.staged")
        transfer: dict[str, Any] = {
            "kv_connector": "ExampleHiddenStatesConnector",
            "kv_role": "kv_producer",
            "kv_connector_extra_config": {"shared_storage_path": str(self._staged)},
        }
        if not torch.cuda.is_available():
            transfer["kv_connector"] = "UnpinnedConnector"
            transfer["kv_connector_module_path"] = "bench.extraction.connector_cpu"
        self._llm: Any = LLM(
            **arguments(spec),
            speculative_config={
                "method": "extract_hidden_states",
                "num_speculative_tokens": 1,
                # vLLM's ids name the input of a layer: one more than ours
                "draft_model_config": {
                    "hf_config": {"eagle_aux_hidden_state_layer_ids": [i + 1 for i in spec.layers]}
                },
            },
            kv_transfer_config=transfer,
        )
        self._sampling = SamplingParams(max_tokens=1, temperature=0.0, detokenize=False)
        self._finish(self._llm.generate(self._prompts[:1], self._sampling, use_tqdm=False))
        self.about = {**versions(), "connector": transfer["kv_connector"]}

    def _finish(self, found: list[Any]) -> Path:
        folder = files.emptied(self._spec.out)
        for number, output in enumerate(found):
            path = output.kv_transfer_params["hidden_states_path"]
            lock = f"{path}.lock"
            if os.path.exists(lock):
                with open(lock, "rb") as file:
                    fcntl.flock(file, fcntl.LOCK_SH)  # held until the file is written
                os.remove(lock)
            os.rename(path, folder / f"hs_{number}.safetensors")
        return folder

    def round(self) -> Round:
        began = time.perf_counter()
        found = self._llm.generate(self._prompts, self._sampling, use_tqdm=False)
        seconds = time.perf_counter() - began
        folder = self._finish(found)
        closed = time.perf_counter() - began
        files.sync(folder, "hs_*.safetensors")
        durable = time.perf_counter() - began
        written = files.size(folder, "hs_*.safetensors", len(self._prompts))
        files.emptied(self._spec.out)
        return Round(self._tokens, seconds, 0.0, durable, written, {"closed": closed})

    def close(self) -> None:
        self._llm.llm_engine.engine_core.shutdown()
        files.emptied(str(self._staged))
