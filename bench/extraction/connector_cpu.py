"""vLLM's stock hidden-state connector without pinned memory, for machines that have no CUDA.

Loaded by vLLM; writes the same files by the same threads.
"""

from __future__ import annotations

from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1 import (
    example_hidden_states_connector as stock,
)


class _NoEvent:
    """Copies on a CPU are over when they return."""

    def record(self, stream: Any = None) -> None:
        pass

    def synchronize(self) -> None:
        pass

    def query(self) -> bool:
        return True


class _Stream:
    def __enter__(self) -> _Stream:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def wait_event(self, event: Any) -> None:
        pass


class _Cuda:
    Event = _NoEvent
    Stream = _Stream

    @staticmethod
    def stream(stream: _Stream) -> _Stream:
        return stream


class _Torch:
    """torch as the connector's module sees it."""

    cuda = _Cuda

    def __init__(self, module: Any) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)

    def empty_like(self, other: Any, **options: Any) -> Any:
        options.pop("pin_memory", None)
        return self._module.empty_like(other, **options)


class UnpinnedConnector(stock.ExampleHiddenStatesConnector):  # type: ignore[misc]
    """See ``stock``."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        if not isinstance(stock.torch, _Torch):
            stock.torch = _Torch(stock.torch)
        super().__init__(*args, **kwargs)
