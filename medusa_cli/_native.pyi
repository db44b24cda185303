"""Typed surface of the native engine (built from native/, bound in native/bindings/).

Import it through `medusa_cli.native`, never directly: llama_cpp must be loaded first.
Every failure a person can cause raises NativeError with a one-line message: what, where, what to do.
"""

from collections.abc import Callable, Mapping, Sequence
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

class testing:
    """A deterministic model without weights, for tests of the algorithm. In truth a submodule."""

    @staticmethod
    def pretend_device() -> None:
        """Adds a GPU that is none to the process. Before the first model is loaded; NativeError on Windows."""

    @staticmethod
    def set_device(
        *,
        delay_us: int = 0,
        delays_heads: bool = True,
        passes_us: Sequence[tuple[int, int]] = [],
        memory: int = 8589934592,
        failing_allocation: int = 0,
        failing_graph: int = 0,
        lost: bool = False,
        missing_operators: Sequence[str] = [],
    ) -> None:
        """How it behaves from now on.

        delay_us: that each graph takes more, those of heads only where delays_heads. passes_us: (tokens, microseconds),
        ascending: a graph of the model over at most so many tokens takes at least so long. memory: bytes it has.
        failing_allocation, failing_graph: the n-th one from now on fails (0: none). lost: all graphs from then on do.
        missing_operators: ggml's names.
        """

    @staticmethod
    def take_device_counters() -> dict[str, int]:
        """Since the last call: graphs, to_device, to_device_bytes, to_host, to_host_bytes, waits, logits (rows)."""

    @staticmethod
    def take_device_operators() -> list[str]:
        """Operators of graphs since the last call, each once: "ADD f32", of copies "CPY f32 i32"."""

    @staticmethod
    def reused_graphs(session: Session) -> int:
        """Decodes of a model's session whose graph was that of the decode before."""

    @staticmethod
    def accept_in_graph(
        tree: Tree, logits: Sequence[NDArray[np.float32]], tokens: Sequence[Sequence[int]], device: str | None = None
    ) -> list[tuple[int, int] | None]:
        """Greedy acceptance as the model's graph does it: (deepest accepted node, token after it).

        Of each logits [nodes, vocabulary] and tokens by themselves. None where a row holds NaN. device: None for the
        CPU.
        """

    @staticmethod
    def ranked_in_graph(rows: NDArray[np.float32]) -> list[list[tuple[int, float]]]:
        """Of each row the likeliest tokens and their logits; empty where NaN or equals leave them open."""

    @staticmethod
    def largest_in_graph(rows: NDArray[np.float32], count: int, device: str | None = None) -> NDArray[np.float32]:
        """Places of the `count` largest numbers of each row, largest first."""

    class FakeSession(Session):
        def __init__(
            self,
            tree: Tree,
            *,
            vocab_size: int = 32,
            context_size: int = 512,
            acceptance: float = 0.5,
            seed: int = 0,
            sharpness: float = 8.0,
            lookup: bool = False,
            memory: int = 0,
            dynamic: bool = False,
            recycling: bool = False,
            draft_model: bool = False,
            lookahead: Lookahead | None = None,
            heads_ms: float = 0.0,
            snapshots: int | None = None,
            ends_after: int | None = None,
        ) -> None:
            """memory: how many tokens the next one depends on (0: all); with few, the text comes to repeat itself.

            draft_model: a second model guesses, with branches and a cache of its own, in place of heads. heads_ms: each
            level of the heads takes so long, and costs are learned.
            dynamic: trees are grown, as deep as `tree`. snapshots: a recurrent model that can step back by so many
            tokens (0: it cannot); it follows chains. ends_after: so many drafts of an answer later, there are no more.
            """
        def logits_after(self, tokens: Sequence[int]) -> list[float]: ...
        def sequence(self, id: int) -> list[int]: ...
        @property
        def cell_count(self) -> int: ...
        @property
        def cache_calls(self) -> int: ...

    class Watchdog:
        """The policy itself, told what steps cost: milliseconds and committed tokens."""

        def __init__(self) -> None: ...
        def begin_generation(self) -> None: ...
        def speculate(self) -> bool: ...
        def report(self, speculative: bool, ms: float, tokens: int) -> None: ...

    class StreamProbe:
        """A target and its streams without a session."""

        def __init__(self, model: Model, heads: Heads, n_ctx: int, n_threads: int = 1) -> None: ...
        def prefill(self, tokens: Sequence[int]) -> None: ...
        def verify(self, tree: Tree, tokens: Sequence[int]) -> None: ...
        def commit(self, tree: Tree, path: Sequence[int]) -> None: ...
        def discard(self) -> None: ...
        def truncate(self, count: int) -> int: ...
        def logits(self, row: int) -> NDArray[np.float32]:
            """[1, n_vocab], behind a row of the newest decode."""
        def probabilities(self, context: Sequence[int], row: int) -> NDArray[np.float32]:
            """[streams, output_rows]. context: the committed tokens, whose last one is that row's, and the root."""

    @staticmethod
    def allowed_cores_cpu_ms() -> float:
        """How long the cores that this process may run on have worked for programs that do not give way to it."""

    class PrefixLayer:
        """The attention layer of Hydra++ heads by itself, with its cache."""

        def __init__(self, heads: Heads) -> None: ...
        def append(self, position: int, state: NDArray[np.float32]) -> None:
            """The token of `position`, which follows the last one, or starts the layer anew."""
        def roll_back(self, position: int) -> None:
            """Drops the tokens from `position` on."""
        def newest(self) -> NDArray[np.float32]:
            """[1, n_embd], the layer's output at the last token."""
        @property
        def graph_count(self) -> int:
            """Graphs that it keeps for later states."""

    class HeadCalibration:
        def __init__(self, depth: int, known: Sequence[Sequence[float]] = ()) -> None: ...
        def record(self, depth: int, q: float, came: bool) -> None: ...
        def probability(self, depth: int, q: float) -> float: ...
        @property
        def table(self) -> list[list[float]]: ...

    class DraftCost:
        def __init__(self, curve: Sequence[tuple[int, float]], learns: bool) -> None: ...
        def record(self, nodes: int, leaves: int, ms: float) -> None: ...
        def verify_ms(self, nodes: int, leaves: int) -> float: ...
        def record_level(self, depth: int, ms: float) -> None: ...
        def record_step(self, ms: float, tokens: int) -> None: ...
        @property
        def rate(self) -> float:
            """Tokens per millisecond."""

    class ThreadControl:
        """With how many threads the next pass runs, told what passes take."""

        too_many_waiting: float
        def __init__(self, most: int, start: int) -> None: ...
        @property
        def threads(self) -> int: ...
        @property
        def is_slower(self) -> bool:
            """Whether there are not more since more were slower; otherwise other programs are the reason."""
        def patience_ms(self, rows: int) -> float: ...
        def report(self, threads: int, rows: int, ms: float, waiting: float = 0.0, given_up: bool = False) -> None: ...
        def set_room(self, cores: float) -> None: ...

    class Prices:
        """What drafting learns of costs, told of steps as a session tells it."""

        def __init__(self) -> None: ...
        def report(self, threads: int, nodes: int, ms: float, tokens: int = 1, disturbed: bool = False) -> None: ...
        def verify_ms(self, nodes: int) -> float: ...
        @property
        def rate(self) -> float:
            """Tokens per millisecond."""

    class DynamicTree:
        """Trees grown from a table: (token, probability) by path from the root."""

        def __init__(
            self,
            table: Mapping[tuple[int, ...], Sequence[tuple[int, float]]],
            depth: int,
            *,
            max_nodes: int = 32,
            ranks: int = 8,
            width: int = 8,
        ) -> None: ...
        def grow(
            self,
            root: int,
            room: int,
            calibration: testing.HeadCalibration,
            cost: testing.DraftCost,
            chain: Sequence[tuple[int, float]] = (),
        ) -> tuple[list[int], list[int], list[float], list[int]]:
            """Parents, tokens and probabilities of the nodes, and the paths that each level was asked for."""
        def learn(self, came: Sequence[int], calibration: testing.HeadCalibration) -> None: ...

    DYNAMIC_SIZES: tuple[int, ...]

    class LookupIndex:
        def __init__(self, min_length: int, max_length: int) -> None: ...
        def append(self, token: int) -> None: ...
        def clear(self) -> None: ...
        @property
        def match(self) -> tuple[int, int]:
            """Length of the longest suffix that occurred before (0: none), and where that occurrence ended last."""
        def continuation(self, count: int) -> list[int]: ...

    class StepCost:
        def __init__(self, prior: float) -> None: ...
        def record(self, nodes: int, ms: float) -> None: ...
        @property
        def per_node(self) -> float:
            """Cost of one more node, in steps of the root alone."""

    class LookupAccuracy:
        def __init__(self, min_length: int, max_length: int) -> None: ...
        def record(self, length: int, came: bool) -> None: ...
        def probability(self, length: int) -> float: ...

    @staticmethod
    def script(session: Session, speculate: Sequence[bool]) -> None:
        """With watchdog=True: step i drafts if speculate[i % len]; in place of the watchdog."""
    @staticmethod
    def stream(pieces: Sequence[bytes], stops: Sequence[str]) -> tuple[list[str], bool]: ...
    @staticmethod
    def distribution(
        logits: Sequence[float], sampling: Sampling, history: Sequence[int] = ()
    ) -> list[tuple[int, float]]: ...
    @staticmethod
    def rejection_chances(
        tokens: Sequence[int],
        drawn: Sequence[bool],
        proposal: Sequence[tuple[int, float]],
        p: Sequence[tuple[int, float]],
    ) -> tuple[list[tuple[int, float]], list[tuple[int, float]]]:
        """Below a node with these children: the chance of each that is tested, where those before it were rejected; and
        what the next token is drawn from after them all. p: in token order."""
    @staticmethod
    def proposal(tokens: Sequence[int], q: Sequence[float], sampling: Sampling) -> list[tuple[int, float]]:
        """What children are drawn from; tokens and q: a drafter's likeliest."""
    @staticmethod
    def draws(proposal: Sequence[tuple[int, float]], count: int, seed: int, emitted: int) -> list[int]: ...
    @staticmethod
    def uniform(seed: int, index: int) -> float: ...
    @staticmethod
    def argmax(logits: Sequence[float]) -> int: ...
    @staticmethod
    def loop_end(text: Sequence[int]) -> tuple[int, int] | None:
        """Of the shortest beginning that ends in a loop: its length, and the tokens of a round."""
    @staticmethod
    def kernel_names() -> list[str]:
        """Instruction sets of this processor that have kernels, "scalar" (the reference) first, the best last."""
    @staticmethod
    def kernel_types() -> list[str]: ...
    @staticmethod
    def attention_names() -> list[str]:
        """The kernel sets of this processor that have an attention of their own."""
    @staticmethod
    def kernel_attention(
        isa: str,
        q: NDArray[np.float32],
        k: NDArray[np.uint8],
        v: NDArray[np.uint8],
        key_type: str,
        value_type: str,
        mask: NDArray[np.uint16],
        sinks: NDArray[np.float32],
        scale: float,
        cap: float,
        threads: int,
        shares_cells: bool,
        batch: int,
    ) -> NDArray[np.float32]:
        """q [tokens, heads, size], k and v as the bytes of a cache ("f16", "q8_0", "q4_0") [cells, key heads, bytes],
        mask [tokens, cells] as half bits, sinks [heads] or [0] -> [tokens, heads * value size]. The threads share out
        the cells, or the rows, of which `batch` are worked on together."""
    @staticmethod
    def kernel_product(
        isa: str, type: str, weights: bytes, columns: int, x: NDArray[np.float32]
    ) -> NDArray[np.float32]:
        """weights: [rows, columns] as the bytes of a ggml type; x [n, columns] -> [n, rows], between guard bytes."""
