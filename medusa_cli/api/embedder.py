"""Embeddings: texts in, one vector for each."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from medusa_cli.api.arguments import engine_options, in_python_names
from medusa_cli.decoding.fields import check_text
from medusa_cli.support.errors import MedusaError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from typing_extensions import Self

    from medusa_cli import native
    from medusa_cli.decoding.options import EngineOptions


class Embedder:
    """A loaded embedding model. One call at a time: others wait.

    embedder = Embedder("nomic-embed-text-v1.5.Q8_0.gguf")
    near = embedder.embed(["search_query: tides", "search_document: The moon pulls at the sea."])
    print(near[0] @ near[1])
    """

    def __init__(
        self,
        model: str | Path,
        *,
        quiet: bool = False,
        ctx_size: int = 0,
        threads: int = 0,
        n_gpu_layers: int = -1,
        device: str | None = None,
    ) -> None:
        """model: a GGUF file or org/repo[:QUANT] on the Hub. ctx_size: most tokens of a text; 0: what the model was
        trained on, at most 8192. The others are those of Model. MedusaError, one line, for models of another kind.
        """
        given = {"ctx_size": ctx_size, "threads": threads, "n_gpu_layers": n_gpu_layers, "device": device}
        with in_python_names():
            self.name, self._model, self._engine = _opened(str(model), engine_options(given)[0], quiet)
        self._lock = threading.Lock()

    @property
    def n_ctx(self) -> int:
        """Most tokens of a text."""
        return self._engine.n_ctx

    @property
    def width(self) -> int:
        """Numbers of an embedding."""
        return self._engine.width

    @property
    def n_vocab(self) -> int:
        """Token ids are below this number."""
        return self._model.n_vocab

    def tokens(self, text: str) -> list[int]:
        """Token ids, with those that the model begins and ends texts with."""
        check_text("the text", text)
        with in_python_names():
            return self._model.tokenize(text)

    def embed(
        self, texts: Sequence[str | Sequence[int]], on_progress: Callable[[], bool | None] | None = None
    ) -> NDArray[np.float32]:
        """[texts, width], each row of length one. texts: each a text or its token ids.

        on_progress: called every 50 ms; returning False ends the computation, and there are no rows then. MedusaError,
        one line, for a text that is empty or has more than n_ctx tokens.
        """
        if isinstance(texts, str):
            raise MedusaError("give a list of texts")
        ids = [self.tokens(text) if isinstance(text, str) else list(text) for text in texts]
        with self._lock, in_python_names():
            return self._engine.embed(ids, on_progress=on_progress)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Gives the memory back."""
        with self._lock:
            del self._engine, self._model


def _opened(reference: str, options: EngineOptions, quiet: bool) -> tuple[str, native.Model, native.Embedder]:
    from rich.console import Console

    from medusa_cli import native
    from medusa_cli.decoding import runtime
    from medusa_cli.decoding.options import DraftOptions
    from medusa_cli.models import references
    from medusa_cli.support import console

    messages = Console(quiet=True) if quiet else console.messages()
    ref = references.resolve(reference, messages)

    def load(layers: int) -> tuple[native.Model, native.Embedder]:
        model = runtime.load_model(ref.path, layers, messages, options.device, embeds=True)
        return model, native.Embedder(model, n_ctx=options.ctx_size, n_threads=options.threads)

    return ref.name, *runtime.within_memory(ref, options, DraftOptions(no_spec=True), messages, load)
