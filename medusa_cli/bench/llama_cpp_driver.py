"""llama-cpp-python's own speculative decoding: its Llama class with one of its draft models, as its users run it.

The loop is Python, and llama.cpp's kernels do the work. Our engine is still imported first: it disables ggml's AMX
kernels, which crash in some builds.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from llama_cpp.llama_speculative import LlamaDraftModel, LlamaPromptLookupDecoding
from numpy.typing import NDArray

from medusa_cli import native
from medusa_cli.bench.protocol import Order, Ready, Spec
from medusa_cli.converters.heads.schema import KIND_KEY
from medusa_cli.decoding.options import EngineOptions
from medusa_cli.decoding.prompts import chat_tokens
from medusa_cli.decoding.settings import Settings, engine_default
from medusa_cli.models import references
from medusa_cli.support.console import messages
from medusa_cli.support.errors import MedusaError

DRAFT_MAX_CPU, DRAFT_MAX_GPU = 2, 10
"""Tokens drafted at a time, as llama-cpp-python advises."""

Drafter = Callable[[NDArray[np.intc]], NDArray[np.intc]]


class TimedDrafter(LlamaDraftModel):
    """A draft model in llama-cpp-python's sense, with the milliseconds it took."""

    def __init__(self, drafter: Drafter) -> None:
        self._drafter = drafter
        self.ms = 0.0

    def __call__(self, input_ids: NDArray[np.intc], /, **_: Any) -> NDArray[np.intc]:
        begun = time.perf_counter()
        drafted = self._drafter(input_ids)
        self.ms += 1e3 * (time.perf_counter() - begun)
        return drafted


def continued(llama: Any, most: int, input_ids: NDArray[np.intc]) -> NDArray[np.intc]:
    """Drafts the greedy continuation of a second, smaller model."""
    count = min(most, llama.n_ctx() - len(input_ids) - 1)
    drafted = itertools.islice(llama.generate(input_ids.tolist(), temp=0.0), max(0, count))
    return np.array(list(drafted), dtype=np.intc)


def load(path: str, options: EngineOptions, drafter: TimedDrafter | None = None) -> Any:
    """A Llama with the options' context, threads, layers and cache types. MedusaError when it does not load."""
    import llama_cpp

    if options.device is not None:
        raise MedusaError("llama-cpp-python does not let us choose devices: leave out --device, or this method")
    metadata = native.read_gguf(path).metadata
    if KIND_KEY in metadata:
        raise MedusaError(f"{path} holds heads, which llama-cpp-python cannot load: take it apart with `medusa split`")
    most = engine_default("n_ctx")
    trained = metadata.get(f"{metadata.get('general.architecture')}.context_length", most)
    try:
        return llama_cpp.Llama(
            path,
            n_ctx=options.ctx_size or min(trained, most),
            n_gpu_layers=options.n_gpu_layers,
            n_threads=options.threads or native.physical_cores(),
            n_threads_batch=options.threads or native.physical_cores(),
            flash_attn=options.cache_type_v.value not in ("f32", "f16", "bf16"),
            type_k=getattr(llama_cpp, f"GGML_TYPE_{options.cache_type_k.value.upper()}"),
            type_v=getattr(llama_cpp, f"GGML_TYPE_{options.cache_type_v.value.upper()}"),
            logits_all=drafter is not None,
            draft_model=drafter,
            verbose=False,
        )
    except ValueError as error:
        raise MedusaError(f"llama-cpp-python cannot load {path} ({error})") from error


class LlamaTokenizer:
    """A Llama as a prompts.Tokenizer, so that it gets the same prompts as our engine."""

    def __init__(self, llama: Any, vocabulary: Any) -> None:
        """vocabulary: llama.cpp's handle on the model's vocabulary."""
        import llama_cpp

        def special(name: str) -> str:
            id = int(llama.metadata.get(f"tokenizer.ggml.{name}_token_id", -1))
            return llama_cpp.llama_vocab_get_text(vocabulary, id).decode() if id >= 0 else ""

        self._llama = llama
        self.chat_template: str | None = llama.metadata.get("tokenizer.chat_template")
        self.bos_text, self.eos_text = special("bos"), special("eos")

    def tokenize(self, text: str, *, add_special: bool = True, parse_special: bool = True) -> list[int]:
        return self._llama.tokenize(text.encode(), add_bos=add_special, special=parse_special)


class LlamaCppDriver:
    """Decodes with prompt lookup, or with a draft model if the spec names one."""

    def __init__(self, spec: Spec) -> None:
        import llama_cpp

        count = spec.draft.draft_max or (DRAFT_MAX_GPU if llama_cpp.llama_supports_gpu_offload() else DRAFT_MAX_CPU)
        drafter: Drafter = LlamaPromptLookupDecoding(num_pred_tokens=count)
        self._small = None
        if spec.draft.draft_model is not None:
            self._small = load(str(spec.draft.draft_model), spec.engine)
            drafter = partial(continued, self._small, count)
        self._drafter = TimedDrafter(drafter)
        path = str(references.resolve(spec.model, messages()).path)
        self._llama = load(path, spec.engine, self._drafter)
        if self._small is not None and self._small.n_vocab() != self._llama.n_vocab():
            raise MedusaError(
                f"{spec.draft.draft_model} has {self._small.n_vocab()} tokens, {path} has {self._llama.n_vocab()}: "
                "give a draft model of the same family"
            )
        self._vocabulary = llama_cpp.llama_model_get_vocab(self._llama.model)
        self._tokenizer = LlamaTokenizer(self._llama, self._vocabulary)
        self._n_draft = count

    def loaded(self) -> Ready:
        """What was loaded."""
        return Ready(self._llama.metadata.get("general.name", ""), self._llama.n_ctx())

    def generate(self, order: Order) -> dict[str, Any]:
        """An incomplete last step counts neither as a step nor for acceptance."""
        import llama_cpp

        prompt = chat_tokens(self._tokenizer, [{"role": "user", "content": order.prompt}])
        room = self._llama.n_ctx() - len(prompt)
        if room <= 0:
            raise MedusaError(f"the prompt has {len(prompt)} tokens, the context holds {self._llama.n_ctx()}")
        clock = StepClock(self._llama, self._drafter)
        self._llama.reset()
        if self._small is not None:
            self._small.reset()
        self._llama.set_seed(order.seed)
        tokens: list[int] = []
        reason = "length" if order.max_tokens <= room else "context_full"
        defaults = Settings(temperature=order.temperature)
        with clock:
            for token in self._llama.generate(
                prompt, top_k=defaults.top_k, top_p=defaults.top_p, min_p=defaults.min_p, temp=order.temperature
            ):
                clock.token()
                if llama_cpp.llama_vocab_is_eog(self._vocabulary, token):
                    reason = "eos"
                    break
                tokens.append(token)
                if len(tokens) == min(order.max_tokens, room):
                    break
        return {
            "tokens": tokens,
            "prompt_tokens": len(prompt),
            "stop_reason": reason,
            "accept": "greedy" if order.temperature <= 0 else "exact",
            "tree_nodes": 1 + self._n_draft,
            "peak_rss_bytes": peak_rss_bytes(),
            **clock.stats(len(prompt), len(tokens), self._n_draft),
        }

    def predict(self, position: int) -> None:
        """Nothing is known about these drafts beforehand."""


class StepClock:
    """Times a Llama's forward passes and counts the tokens that each one brings."""

    def __init__(self, llama: Any, drafter: TimedDrafter) -> None:
        self._llama, self._drafter, self._eval = llama, drafter, llama.eval
        self._brought: list[int] = []
        self._eval_ms = self._first_eval_ms = self._first_token = self._last_token = 0.0
        self._draft_ms = 0.0

    def __enter__(self) -> None:
        self._begun = time.perf_counter()
        self._drafter.ms = 0.0
        self._llama.eval = self._timed_eval

    def __exit__(self, *_: object) -> None:
        self._llama.eval = self._eval

    def _timed_eval(self, tokens: list[int]) -> None:
        begun = time.perf_counter()
        self._eval(tokens)
        ms = 1e3 * (time.perf_counter() - begun)
        if self._brought:
            self._eval_ms += ms
        else:
            self._first_eval_ms = ms
        self._brought.append(0)

    def token(self) -> None:
        """Notes that a token came out of the newest pass."""
        self._last_token = time.perf_counter()
        self._first_token = self._first_token or self._last_token
        self._draft_ms = self._drafter.ms
        self._brought[-1] += 1

    def stats(self, prompt_tokens: int, tokens: int, n_draft: int) -> dict[str, Any]:
        """The keys of docs/design.md, Reporting, that need a clock."""
        brought = self._brought[1:]
        complete = brought[:-1] or brought
        decode_ms = 1e3 * (self._last_token - self._first_token)
        other_ms = max(0.0, decode_ms - self._eval_ms - self._draft_ms)
        return {
            "tokens_per_second": 1e3 * max(0, tokens - 1) / decode_ms if decode_ms > 0 else 0.0,
            "prompt_tokens_per_second": 1e3 * prompt_tokens / self._first_eval_ms,
            "ttft_ms": 1e3 * (self._first_token - self._begun),
            "steps": len(brought),
            "tokens_per_step": sum(complete) / len(complete) if complete else 0.0,
            "acceptance_per_depth": [
                sum(count > depth for count in complete) / len(complete) if complete else 0.0
                for depth in range(1, n_draft + 1)
            ],
            "timings_ms": {
                "draft": self._draft_ms,
                "verify": self._eval_ms,
                "accept": 0.0,
                "commit": 0.0,
                "other": other_ms,
            },
        }


def peak_rss_bytes() -> int:
    """The most memory that this process has held; 0 on Windows, where Python's own library does not tell."""
    try:
        import resource
    except ImportError:
        return 0
    import sys

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
