"""Typed surface of the native engine (built from native/, bound in native/bindings/).

Import it through `medusa_cli.native`, never directly: llama_cpp must be loaded first.
Every failure a person can cause raises NativeError with a one-line message: what, where, what to do.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

LLAMA_CPP_PYTHON: str
"""The llama-cpp-python version this module was built against."""

class NativeError(RuntimeError):
    """Something the person can put right, in one line: str() is that line, as on the command line.

    args[0]: its text, with a slot {name} for each option that it names, by the option's field; values: {}, which says
    that braces are slots (support.errors.worded).
    """

    values: dict[str, object]

class OutOfMemoryError(NativeError):
    """What was asked for does not fit into the memory of a device or of the machine: less of it may."""

def libllama_version() -> str:
    """Version text of the libllama that is loaded in this process."""

def system_info() -> dict[str, Any]:
    """{"devices": [{"name", "backend", "description", "type", "memory_total", "memory_free"}], "cpu_features": [...]}.

    type: "cpu", "gpu", "igpu" or "accel". Memory in bytes; zeros where a device does not tell.
    """

def load_backend(path: str) -> None:
    """Adds the devices of a ggml backend that was built as a module. Before the first model is loaded.

    NativeError where it does not load. medusa_cli.native does this for the module that GGML_BACKEND_PATH names.
    """

def physical_cores() -> int:
    """Cores that this process may run on, hyper-threads counted once; what n_threads=0 means at most."""

def buffers_are_lazy() -> bool:
    """Whether a cache takes memory only where it is written; elsewhere all of it at once. GPUs always take it all."""

def thread_advice() -> tuple[int, float | None]:
    """With how many threads an answer would begin, and how many cores other programs use (None: not known)."""

def use_kernels(wanted: bool) -> None:
    """Whether models that are loaded from now on get our kernels, and attention runs on them; yes at first.

    Weights stay where they are. Not while another thread decodes.
    """

def forward_log(wanted: bool) -> None:
    """Whether llama.cpp's log goes to whoever read it before this module was loaded, too; no at first."""

def kernel_info() -> dict[str, Any]:
    """The kernels of this process.

    {"used", "selected", "requested", "reason", "late", "supported", "attention", "types", "buffer"}.

    used: new models get them. selected: name of the instruction set whose kernels these are; None: llama.cpp's run, and
    "reason" says why. late: because a model was loaded before them. requested: MEDUSA_ISA when the module was loaded.
    supported: what this processor has, the best last. attention: whether the selected ones have one of their own.
    types: ggml types that have kernels. buffer: name of the buffer type that holds the weights the kernels multiply
    with.
    """

# --- files ---------------------------------------------------------------------------------------

class GgufTensor:
    name: str
    type: str
    """ggml type name as ggml prints it: "q4_1", "q4_K", "f16", "i8"."""
    shape: tuple[int, ...]
    """ggml order: the contiguous dimension first."""
    offset: int
    """Absolute byte offset in the file."""
    nbytes: int

class GgufFile:
    path: str
    version: int
    alignment: int
    data_offset: int
    file_size: int
    """Of all parts together."""
    part_count: int
    """Of a split model, given by its first part; else 1."""
    metadata: dict[str, Any]
    """Built anew each time it is read."""
    """All key-values in file order; arrays are lists."""
    tensors: list[GgufTensor]
    def get(self, key: str) -> Any:
        """The value of one key of the metadata; None without it."""

def read_gguf(path: str) -> GgufFile:
    """Reads and checks a GGUF header; every tensor is checked to lie inside the file. No model is loaded.

    Of a split model the first part is given; the tensors are those of all parts.
    """

# --- trees ---------------------------------------------------------------------------------------

class Tree:
    """Static draft tree. Node 0 is the root; nodes 1.. are the choices, stably ordered by depth."""

    def __init__(self, choices: Sequence[Sequence[int]]) -> None:
        """choices: paths of ranks. NativeError for duplicates, empty or negative entries, orphans, over 255 nodes."""
    @staticmethod
    def from_parents(parents: Sequence[int]) -> Tree:
        """The tree whose node i hangs below parents[i] (-1: the root, first), siblings ranked in order.

        NativeError when a child comes before its parent or before a node of lesser depth.
        """
    def clipped(self, head_count: int, ranks: int, max_nodes: int = 256) -> Tree:
        """Without the choices deeper than head_count or with a rank >= ranks; at most max_nodes nodes with root."""
    @property
    def choices(self) -> list[list[int]]: ...
    @property
    def size(self) -> int:
        """Nodes including the root."""
    @property
    def depth(self) -> int:
        """Deepest drafted depth (0: root only)."""
    @property
    def max_rank(self) -> int:
        """Largest rank used, -1 when there is none."""
    @property
    def parents(self) -> list[int]:
        """Parent index of each node; -1 for the root."""
    @property
    def leaf_count(self) -> int: ...
    @property
    def sequences(self) -> list[list[int]]:
        """Leaf indices below each node: the sequence ids the node is decoded with."""

# --- model and heads -----------------------------------------------------------------------------

class Placement:
    """Weights of a loaded model that have one role, one type and one kind of buffer."""

    role: str
    """"matrix" (multiplied with) | "experts" (a stack of them) | "embedding" (looked up) | "other" (norms, biases)."""
    type: str
    """ggml type name: "q4_1", "q4_K"."""
    buffer: str
    """Name of the buffer type; kernel_info()["buffer"] where our kernels multiply."""
    tensors: int
    nbytes: int
    """Size in the type's own layout."""

class DeviceUse:
    """What a device, or the CPU, holds of a model."""

    name: str
    """As in system_info(): "CUDA0", "CPU"."""
    layers: int
    output: bool
    """Whether it holds the output matrix, which is where heads run."""
    nbytes: int
    """Of weights."""

class AttentionUse:
    """What became of a forward pass's fused attention operators on the CPU. Zeros: another device ran them, or none."""

    served: int
    """Run by our kernels."""
    left: int
    """Run by llama.cpp."""
    reason: str
    """Why the last of those was left; "" when none was."""

def attention_use(model: Model, *, type_k: str = "f16", type_v: str = "f16") -> AttentionUse:
    """Of one token, tried out with such a cache; NativeError when the model cannot decode it."""

def step_transfers(
    tree: Tree,
    n_vocab: int,
    n_embd: int,
    *,
    kind: str | None = None,
    head_count: int = 0,
    output_rows: int = 0,
    has_prefix: bool = False,
    recycled: int = 0,
) -> dict[str, int]:
    """Bytes that a step with this tree sends from a device, which has the output matrix, to the host.

    kind: of the draft heads, None without any. recycled: nodes that recycled tokens are learned from.
    "logits", "states", "heads" (rows of their output matrices): where the host samples, accepts and drafts. "greedy":
    where the model's graph accepts and drafts at temperature 0; "grown": the same of dynamic trees; "sampled": where
    it names the likeliest tokens of each node.
    """

def draft_memory(model: Model) -> str:
    """How the model's memory follows drafts.

    "cells": of one token each, which a tree shares out. Recurrent models have one running state, which follows a chain:
    "snapshots": it steps back over what is refused; "copies": it is kept before a draft, and what is accepted of one
    that was refused is decoded again. "none": the model can only decode plainly.
    """

class Model:
    def __init__(
        self,
        path: str,
        *,
        n_gpu_layers: int = -1,
        repack: bool = True,
        on_progress: Callable[[float], bool | None] | None = None,
        devices: Sequence[str] | None = None,
    ) -> None:
        """Loads a GGUF (plain, or the base part of a single file). n_gpu_layers < 0: all, when there is a GPU.

        devices: names of those to use, none of them for the CPU alone; None: llama.cpp's choice. OutOfMemoryError when
        the layers do not fit.

        repack: weights are copied for faster kernels; without, they stay pages of the file, which the system can take
        back at any time. on_progress gets 0..1 and may return False to abort.
        """
    path: str
    description: str
    """For example "llama 135M Q4_1"."""
    architecture: str
    n_vocab: int
    n_embd: int
    n_layer: int
    n_ctx_train: int
    n_params: int
    size_bytes: int
    can_draft: bool
    """False: llama.cpp cannot follow drafts with this architecture."""
    is_recurrent: bool
    """Recurrent or hybrid: follows chains of drafts, no trees."""
    chat_template: str | None
    bos_text: str
    eos_text: str
    add_bos: bool
    has_heads: bool
    """The file carries head tensors (single file)."""
    gpu: bool
    """Weights were placed on a GPU device."""
    backend: str
    """Of the device that holds the output matrix, as ggml calls it: "CPU", "CUDA", "ROCm", "MTL" (Metal), "Vulkan"."""
    device: str
    """That device, described by its backend: "NVIDIA GeForce RTX 4090"."""
    placement: list[Placement]
    """Where the weights lie, by role, largest first; empty where the platform does not tell (Windows)."""
    devices: list[DeviceUse]
    """Which devices hold what, the CPU included; empty where the platform does not tell (Windows)."""
    def tokenize(self, text: str, *, add_special: bool = True, parse_special: bool = True) -> list[int]: ...
    def detokenize(self, tokens: Sequence[int], *, special: bool = False) -> str: ...
    def token_piece(self, token: int, *, special: bool = False) -> bytes: ...
    def is_eog(self, token: int) -> bool: ...

class Heads:
    """Draft heads of a sidecar or single file, validated against the base, on the base's output device."""

    def __init__(self, model: Model, path: str) -> None: ...
    kind: str
    has_prefix: bool
    """Whether an attention layer over the states of all tokens comes before the heads: Hydra++, and Medusa heads that
    say so."""
    head_count: int
    block_count: int
    lm_head: str
    """"own" | "base" | "draft_vocab"."""
    output_rows: int
    """Rows of the lm_head that is read (vocabulary or draft vocabulary size)."""
    accuracy: list[list[float]]
    """[head][rank]; empty when the file has none."""
    tree: list[list[int]]
    """Choices stored in the file; empty when it has none."""
    nbytes: int
    def probabilities(self, hidden: NDArray[np.float32], path: Sequence[int] = ()) -> NDArray[np.float32]:
        """hidden [n_embd] -> probabilities [head_count, output_rows] of the step that starts there.

        hidden can also be [n, n_embd], the states of consecutive tokens, the newest last: prefix layers read them all.
        path: token ids, the root first, then the tokens of depth 1, 2, ... that each next head is to follow. Medusa
        heads do not read it; Hydra heads do, and the result has a row for each of its first head_count tokens.
        """
    def draft_tokens(self, hidden: NDArray[np.float32], ranks: int, path: Sequence[int] = ()) -> list[list[int]]:
        """The `ranks` most probable base token ids of each of those rows, most probable first."""
    def draft(self, hidden: NDArray[np.float32], root: int, tree: Tree) -> tuple[list[int], list[float]]:
        """Fills a tree: the token of each node (the root first), and its probability given the path to it."""

# --- decoding ------------------------------------------------------------------------------------

LOWEST_TEMPERATURE: float
"""Below, the likeliest token is always taken."""

def defaults() -> dict[str, Any]:
    """What sessions (n_ctx) and answers (top_k, top_p, ..., epsilon, delta) go by, by the names of the parameters."""

class Sampling:
    """Sampler chain: logit bias, penalties, top-k, top-p, min-p, temperature. temperature <= 0: argmax."""

    def __init__(
        self,
        *,
        temperature: float = 0.0,
        top_k: int = 40,
        top_p: float = 0.95,
        min_p: float = 0.05,
        repeat_penalty: float = 1.0,
        frequency_penalty: float = 0.0,
        presence_penalty: float = 0.0,
        repeat_last_n: int = 64,
        logit_bias: dict[int, float] | None = None,
        seed: int = 0,
    ) -> None: ...

class Accept:
    """kind: "greedy" | "exact" | "rejection" (both keep the distribution; rejection draws its drafts: SpecInfer's
    multi-round sampling) | "typical" (Medusa 2.3.1: p > min(epsilon, delta * exp(-H))) | "nucleus" (the Medusa
    repository's: the longest path whose tokens are drawn again from the top_p nucleus).

    model_alone: typical takes p and H of softmax(logits / temperature) instead of the chain's output, as published;
    nucleus always does. greedy_root: both continue with the likeliest token instead of a draw.
    "synthetic" accepts each first child with probability synthetic_rate, whatever the model says: for timing alone.
    """

    def __init__(
        self,
        kind: str,
        *,
        epsilon: float = 0.09,
        delta: float = 0.3,
        model_alone: bool = False,
        greedy_root: bool = False,
        synthetic_rate: float = 0.0,
    ) -> None: ...

class Piece:
    """One emitted token and the text that became printable with it (whole UTF-8 characters only)."""

    token: int
    text: str
    drafted: bool
    """Accepted draft (False: sampled from the base model's own logits as the next root)."""
    logprob: float | None
    """ln p of the token, by the model alone: before temperature, penalties and biases; None where not asked for."""
    top: list[tuple[int, float]]
    """The likeliest tokens in its place and their ln p, likeliest first."""

class Generation:
    tokens: list[int]
    parents: list[list[int]]
    """The tree of each step, as Tree.parents."""
    paths: list[list[int]]
    """Accepted tree nodes of each step, from the root downwards."""
    text: str
    stop_reason: str
    """"eos" | "stop" | "length" | "context_full" | "cancelled" | "loop"."""
    loop_tokens: int
    """Of a loop that ended it: the tokens of a round; else 0."""
    prompt_tokens: int
    reused_tokens: int
    """Prompt tokens that were already in the cache."""
    stats: dict[str, Any]
    """The keys of docs/design.md, Reporting, but those that need more than this generation."""

class DynamicTree:
    """Trees that are grown in each step, by what the heads say there. What is not known is learned while decoding."""

    def __init__(
        self,
        *,
        calibration: Sequence[Sequence[float]] = (),
        costs: Sequence[tuple[int, float]] = (),
        learns_costs: bool = True,
        max_nodes: int = 256,
    ) -> None:
        """calibration: as Session.calibration. costs: (nodes with root, cost of a step in plain steps); learns_costs
        False: they hold throughout, so that runs repeat. max_nodes: of a step, root included."""
    @property
    def calibration(self) -> list[list[float]]: ...
    @property
    def costs(self) -> list[tuple[int, float]]: ...

class Lookahead:
    """Lookahead decoding: columns of the window, tokens of an n-gram, n-grams verified in a step at most."""

    def __init__(self, window: int = 4, ngram: int = 3, guesses: int = 4) -> None: ...
    @property
    def window(self) -> int: ...
    @property
    def ngram(self) -> int: ...
    @property
    def guesses(self) -> int: ...

class Cancellation:
    """Ends the answers that it was given to, within one step, with stop_reason "cancelled"."""

    def __init__(self) -> None: ...
    def cancel(self) -> None:
        """From any thread, before an answer begins or while it is written."""
    @property
    def requested(self) -> bool:
        """Whether cancel() was called."""

class Session:
    """One conversation: a KV cache, a tree, counters. generate() reuses the longest cached prefix of the prompt."""

    def __init__(
        self,
        model: Model,
        heads: Heads | None = None,
        *,
        tree: Tree | None = None,
        n_ctx: int = 0,
        n_threads: int = 0,
        type_k: str = "f16",
        type_v: str = "f16",
        lookup: bool = False,
        recycling: bool = False,
        dynamic: DynamicTree | None = None,
        draft_model: Model | None = None,
        draft_max: int = 0,
        lookahead: Lookahead | None = None,
    ) -> None:
        """n_ctx 0: min(n_ctx_train, 4096). n_threads 0: as many as there are physical cores, or fewer where other
        programs need them. tree None: root only.

        dynamic: in place of a tree; .tree is then a chain of all heads.

        draft_model: fills the tree, or dynamic trees draft_max deep, in place of heads. Its cache is the session's own.

        lookahead: drafts alone.

        lookup: steps also draft what followed an earlier occurrence of the newest tokens; needs no heads.

        recycling: steps also draft what the model found likely after the same one or two tokens; with heads it needs
        dynamic trees, as these alone hold the drafts of both.
        """
    n_ctx: int
    tree: Tree
    """What the heads fill in each step; lookup adds to it."""
    threads: int
    """Of the newest forward pass."""
    calibration: list[list[float]] | None
    """[head][bin]: how often a token comes of which the head gives log-odds within the bin's 24th of -6..6, as known by
    now; None without dynamic trees."""
    def generate(
        self,
        prompt: Sequence[int],
        *,
        max_tokens: int = -1,
        sampling: Sampling | None = None,
        accept: Accept | None = None,
        stop: Sequence[str] = (),
        ignore_eos: bool = False,
        stop_loops: bool = False,
        logprobs: int = -1,
        watchdog: bool = False,
        cancellation: Cancellation | None = None,
        on_step: Callable[[list[Piece]], None] | None = None,
    ) -> Generation:
        """Decodes until a stop condition. max_tokens < 0: until the context is full.

        logprobs: how many of the likeliest tokens each piece tells beside its own; < 0: none, nor its own.

        watchdog: steps may leave out the drafts where these do not pay by the clock (`plain_steps` counts them); what
        it learns stays with the session.

        on_step runs once per step with the GIL held. A Python exception in it, or a pending signal on the main thread
        (asked for every 20 ms), ends the generation within one step and is raised; the tokens emitted so far stay
        available as `last`. accept None: greedy at temperature 0, exact above.
        """
    @property
    def recycled(self) -> bytes:
        """What recycling has learned, for another session: holds token ids of the text."""
    def recall(self, recycled: bytes) -> None:
        """Goes on from what another session's `recycled` was. NativeError, and nothing changes, where it is damaged."""
    last: Generation | None
    """The newest generation, also when it was cut short by an exception (stop_reason "cancelled")."""
    def reset(self) -> None: ...
    def host_reason(self, *, sampling: Sampling | None = None, accept: Accept | None = None) -> str:
        """Why steps of such an answer are accepted and drafted on the host; "" where the model's own graph does both.

        sampling, accept: as in generate().
        """
    @property
    def cached_tokens(self) -> list[int]: ...

def collect(
    model: Model,
    prompts: Sequence[Sequence[int]],
    temperatures: Sequence[float],
    *,
    max_tokens: int,
    n_parallel: int = 32,
    seed: int = 0,
    n_threads: int = 0,
    hidden: bool = True,
    on_sequence: Callable[[int, list[int], NDArray[np.float16] | None], bool | None],
    on_progress: Callable[[int], None] | None = None,
    on_partial: Callable[[int, list[int]], bool | None] | None = None,
) -> None:
    """Generates one continuation per prompt, n_parallel at a time (training data).

    on_sequence(index, tokens, states): tokens are the generated ids (the end-of-generation token included when it
    came), states [len(tokens), n_embd]: states[i] is the post-norm hidden state from which tokens[i] was sampled, so
    head k (1-based) learns states[i] -> tokens[i + k]. Returning False ends the run. on_progress(total tokens so far).
    on_partial(index, tokens so far), after every 32 tokens of a continuation: returning False ends that continuation.
    Sampling: temperature, top-k 40, top-p 0.95, min-p 0.05; temperature 0 is argmax.
    """

def quantize_model(
    source: str,
    target: str,
    *,
    file_type: int,
    n_threads: int = 0,
    allow_requantize: bool = False,
    pure: bool = False,
    on_tensor: Callable[[int, int], None] | None = None,
) -> None:
    """Writes the base model `source` as `target` in another file type (GGUF's general.file_type, libllama's recipes).

    pure: all matrices in one type, not the recipe's mix; llama.cpp chooses another where rows do not fill the blocks.
    Cannot be interrupted. on_tensor(number, count): before each tensor.
    """

def quantize_rows(type: str, values: NDArray[np.float32]) -> bytes:
    """values [rows, columns] as the bytes of a ggml type ("f16", "q8_0", "q4_k", ...)."""

def dequantize_rows(type: str, data: bytes, columns: int) -> NDArray[np.float32]:
    """Inverse of quantize_rows: [rows, columns]."""

def teacher_forced(
    model: Model,
    tokens: Sequence[int],
    *,
    prompt_length: int,
    parents: Sequence[Sequence[int]] = (),
    paths: Sequence[Sequence[int]] = (),
    n_threads: int = 0,
) -> tuple[list[int], list[float]]:
    """The model's argmax after tokens[:i] for i in prompt_length .. len(tokens), and its logits after all of them.

    Step i verifies the tree of parents[i] with the next tokens on the nodes of paths[i] and fillers on the others;
    where these have ended, it decodes plainly. With `parents` and `paths` of a Generation it repeats the batch widths
    and the cache layout without the drafts and their acceptance (docs/design.md, Lossless: tier 3).
    """

def score(model: Model, tokens: Sequence[int], *, width: int = 64, n_threads: int = 0) -> tuple[list[int], list[float]]:
    """Decodes a text `width` tokens at a time (1..512; the last pass takes what is left), from an empty cache.

    Returns the model's argmax after each token, and -ln p of each token but the first, given those before it.
    """

class States:
    """What a model computes for a text of T tokens, float32."""

    after_layer: NDArray[np.float32] | None
    """[T, n_embd] states after the tapped layer; None without one."""
    post_norm: NDArray[np.float32] | None
    """[T, n_embd] states after the final norm; None, as best and last_logits are empty, where no outputs are asked."""
    best: list[int]
    """The argmax after each token."""
    last_logits: list[float]
    """Behind the last token."""

class StatesReader:
    """Reads one text after another, each from an empty cache."""

    def __init__(
        self, model: Model, longest: int, *, tap_layer: int | None = None, outputs: bool = False, n_threads: int = 0
    ) -> None:
        """longest: most tokens of a text. tap_layer: from 0, not the last one. outputs: also what the final norm and
        the output matrix give, for which each token pays. NativeError where the layer cannot be read."""
    def read(self, tokens: Sequence[int]) -> States: ...

class StreamReader:
    """What streams draft along one text after another, each from an empty cache."""

    def __init__(self, model: Model, heads: Heads, longest: int, *, n_threads: int = 0) -> None:
        """longest: most tokens of a text. NativeError for heads of another kind or model."""
    def draft_tokens(self, tokens: Sequence[int], ranks: int, first: int = 0) -> list[list[list[int]]]:
        """[position][stream][ranks] behind tokens[first] .. tokens[-2], the next token being the root of each."""
    def probabilities(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        """[streams, output_rows] behind tokens[-2], with tokens[-1] as the root."""

def time_verify(model: Model, width: int, *, position: int = 64, repeats: int = 5, n_threads: int = 0) -> list[float]:
    """Milliseconds of each of `repeats` forward passes over a root and width - 1 leaves behind `position` tokens."""

class ProductTimes:
    nbytes: int
    """Of all matrices of the type, in the type's own layout."""
    products: int
    """Multiply-adds for one column."""
    ms: list[float]
    """Of each pass over all of them."""

def time_products(model: Model, type: str, columns: int, *, repeats: int = 3, n_threads: int = 0) -> ProductTimes:
    """Every 2-D matrix of `type` times `columns` random columns, with the kernels that a forward pass uses."""

def machine_limits(*, n_threads: int = 0, rounds: int = 3) -> tuple[float, float | None, float | None]:
    """What the kernels are judged by: bytes per second read from memory, and multiplications per second in registers,
    of bytes (matrices) and of floats (attention).

    The best of all rounds, all threads together. The latter two are of the selected kernels' instruction set; None
    where they are not known.
    """

class VerifyTimer:
    """Forward passes of several widths behind the same `position` tokens, which are decoded once (at construction)."""

    def __init__(
        self,
        model: Model,
        widest: int,
        *,
        position: int = 64,
        n_ctx: int = 0,
        hidden: bool = True,
        tap_layer: int | None = None,
        n_threads: int = 0,
    ) -> None:
        """widest: up to 256. n_ctx: size of the cache, which alone changes the cost: give that of the sessions (0: as
        small as it can be). hidden: the passes give hidden states, too, as those of a drafting session do; with
        tap_layer those after that layer, which are read within the time."""
    def time(self, width: int, *, passes: int = 3) -> list[float]:
        """Milliseconds of each of `passes` passes in a row over a root and width - 1 leaves; the first is slower
        where the width changed."""

def time_prefill(model: Model, width: int, *, position: int = 64, repeats: int = 5, n_threads: int = 0) -> list[float]:
    """The same for `width` tokens of a prompt."""
