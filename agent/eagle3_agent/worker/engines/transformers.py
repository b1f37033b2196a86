"""The reference engine: plain transformers and forward hooks, on a GPU or the CPU.

The model's own forward runs as it is; hooks on decoder layers look at what
comes out.  One sample at a time: without padding there is no mask that could
be wrong, so the result is the model's own, whatever the family.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from eagle3_agent.protocol.events import Load, Note
from eagle3_agent.protocol.values import Profile
from eagle3_agent.worker import model_info
from eagle3_agent.worker.writing.item import Item, States
from eagle3_agent.worker.writing.ledger import Measured
from eagle3_agent.worker.writing.pool import Pool, layout

from .base import Captured, Emit, EngineError, Loaded, Output, Sample, Watch

#: Parts of a multimodal model whose layers are not the decoder's.
_OTHER_TOWERS = re.compile(r"vision|visual|image|audio|speech|encoder|mtp|draft", re.IGNORECASE)


class TransformersEngine:
    """See ``base.Engine``."""

    name = "transformers"

    def __init__(self, dtype: str | None = None, device: str | None = None) -> None:
        """``dtype`` and ``device`` override the profile's and the best one: for a reference."""
        self._dtype, self._device = dtype, device
        self._decoder: Any = None
        self._layers: tuple[int, ...] = ()
        self._caught: dict[int, Any] = {}
        self._hooks: list[Any] = []
        self._pool: Pool | None = None

    def load(self, profile: Profile, emit: Emit) -> Loaded:
        path = Path(profile.model.path)
        info = model_info.read(path)
        dtype = self._dtype or model_info.run_dtype(profile.model.dtype, info)
        shards = len(model_info.shard_names(path))
        if shards:
            emit(Load(time.time(), 0, shards))
        model = _load(path, dtype, profile.model.trust_remote_code)
        device = self._device or _best_device(model, emit)
        self._decoder, layers = find_decoder(model, info.layers)
        # only the decoder moves: towers and the head are never run
        self._decoder.to(device).eval()
        self._device = device
        self._layers = profile.capture.layers
        for index in set(self._layers):
            self._hooks.append(layers[index].register_forward_hook(self._hook(index)))
        if shards:
            emit(Load(time.time(), shards, shards))
        return Loaded(
            dtype=dtype,
            hidden=info.hidden,
            layers=len(layers),
            vocab=int(self._decoder.get_input_embeddings().weight.shape[0]),
            device=_device_name(device),
        )

    def capture(self, samples: Sequence[Sample]) -> Iterator[Captured]:
        for sample in samples:
            self._forward(sample)
            states = tuple(self._state(layer).to("cpu") for layer in self._layers)
            self._caught.clear()
            yield Captured(sample, states)

    def extract(self, samples: Iterator[Sample], output: Output, watch: Watch) -> None:
        pool = self._pool = Pool(output)
        times = _Times()
        for sample in samples:
            watch()
            times.start()
            self._forward(sample)
            times.took("prefill")
            item = self._item(sample, output)
            times.took("copy")
            pool.submit(item)
            times.took("wait")
            times.tokens += len(sample.input_ids)
            times.steps += 1
            if times.due():
                pool.tell(times.measured(pool))
        pool.finish(watch)
        pool.tell(times.measured(pool))

    def _forward(self, sample: Sample) -> None:
        """Run the decoder over one sample; its hooks keep what came out of each asked layer."""
        import torch

        self._caught.clear()
        ids = torch.tensor([list(sample.input_ids)], dtype=torch.long, device=self._device)
        with torch.inference_mode():
            self._decoder(input_ids=ids, use_cache=False)
        if ids.is_cuda:
            torch.cuda.synchronize(ids.device)  # or the copy would be charged for the model

    def _item(self, sample: Sample, output: Output) -> Item:
        """The states in memory of their own, laid out as the file will have them."""
        import torch

        tokens, layers = len(sample.input_ids), len(self._layers)
        by_layer = layout(output.kind) == "LSH"
        shape = (layers, tokens) if by_layer else (tokens, layers)
        states = torch.empty((*shape, output.hidden), dtype=getattr(torch, output.dtype))
        for place, layer in enumerate(self._layers):
            (states[place] if by_layer else states[:, place]).copy_(self._state(layer))
        self._caught.clear()
        whole = States.of(states)
        return Item(sample.index, sample.input_ids, sample.loss_mask, whole, _nothing, _nothing)

    def close(self) -> None:
        if self._pool is not None:
            self._pool.abort()
            self._pool = None
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        self._caught.clear()
        self._decoder = None
        if self._device is not None and self._device.startswith("cuda"):
            import torch

            torch.cuda.empty_cache()

    def _hook(self, index: int) -> Any:
        def caught(_module: Any, _inputs: Any, output: Any) -> None:
            state = output[0] if isinstance(output, (tuple, list)) else output
            # a copy: a later layer may add to its input in place
            self._caught[index] = state.clone()

        return caught

    def _state(self, layer: int) -> Any:
        state = self._caught.get(layer)
        if state is None or state.dim() != 3 or state.shape[0] != 1:
            seen = "nothing" if state is None else f"shape {tuple(state.shape)}"
            raise EngineError(
                f"decoder layer {layer} gave {seen} instead of [1, tokens, hidden]: "
                "this model's layers cannot be read by hooks"
            )
        return state[0]


def _nothing() -> None:
    """The states are there from the start, and their memory goes with the last reference."""


class _Times:
    """Sums of one extraction, by the clock between two calls of ``took``."""

    def __init__(self) -> None:
        self.tokens = self.steps = 0
        self._spent = {"prefill": 0.0, "copy": 0.0, "wait": 0.0}
        self._last = self._told = time.perf_counter()

    def start(self) -> None:
        """What came before, reading the data say, is nobody's."""
        self._last = time.perf_counter()

    def took(self, what: str) -> None:
        """Count the time since the last call as ``what``'s."""
        now = time.perf_counter()
        self._spent[what] += now - self._last
        self._last = now

    def due(self) -> bool:
        """Once a second."""
        if self._last - self._told < 1.0:
            return False
        self._told = self._last
        return True

    def measured(self, pool: Pool) -> Measured:
        """One sample a step: nothing is padded, and there is no budget that could be unused."""
        return Measured(
            tokens=self.tokens,
            steps=self.steps,
            capture=0.0,  # hooks run inside of the forward
            write=pool.seconds,
            padding=0.0,
            fill=1.0,
            buffer_peak=pool.peak,
            prefill=self._spent["prefill"],
            copy=self._spent["copy"],
            wait=self._spent["wait"],
        )


def find_decoder(model: Any, count: int) -> tuple[Any, Any]:
    """The text decoder and its ``count`` layers, also inside of a multimodal wrapper.

    Found by structure: a list of ``count`` modules whose owner embeds token ids.  Raises
    EngineError when there is none, or more than one.
    """
    import torch

    modules = dict(model.named_modules())
    found = []
    for name, module in modules.items():
        owner = modules.get(name.rpartition(".")[0], model)
        if (
            isinstance(module, torch.nn.ModuleList)
            and len(module) == count
            and not _OTHER_TOWERS.search(name)
            and _embeds(owner)
        ):
            found.append((owner, module))
    if len(found) != 1:
        raise EngineError(
            f"{type(model).__name__} has {len(found)} lists of {count} decoder layers, "
            "one is needed: engine transformers cannot read this model"
        )
    return found[0]


def _embeds(module: Any) -> bool:
    try:
        return module.get_input_embeddings() is not None
    except (AttributeError, NotImplementedError):
        return False


def _load(path: Path, dtype: str, trust_remote_code: bool) -> Any:
    import torch
    import transformers

    options = {
        "dtype": getattr(torch, dtype),
        "local_files_only": True,
        "trust_remote_code": trust_remote_code,
    }
    config = transformers.AutoConfig.from_pretrained(
        str(path), local_files_only=True, trust_remote_code=trust_remote_code
    )
    kind = transformers.AutoModelForCausalLM
    if hasattr(config, "text_config") and type(config) not in kind._model_mapping:
        kind = transformers.AutoModelForImageTextToText
    return kind.from_pretrained(str(path), config=config, **options)


def _best_device(model: Any, emit: Emit) -> str:
    """The GPU with the most free memory if the model fits, else the CPU, with a note."""
    import torch

    if not torch.cuda.is_available():
        return "cpu"
    need = sum(p.numel() * p.element_size() for p in model.parameters())
    free = [torch.cuda.mem_get_info(i)[0] for i in range(torch.cuda.device_count())]
    best = max(range(len(free)), key=free.__getitem__)
    if need * 1.2 < free[best]:
        return f"cuda:{best}"
    text = (
        f"the model needs {need >> 20} MiB, the emptiest GPU has {free[best] >> 20} MiB free: "
        "running on the CPU"
    )
    emit(Note(time.time(), "warning", text))
    return "cpu"


def _device_name(device: str) -> str:
    import torch

    return f"{device} ({torch.cuda.get_device_name(device)})" if device != "cpu" else "cpu"
