"""Typed surface of the tests' module (native/testing), which is built with -DMEDUSA_TESTING=ON.

It works on objects of the engine and raises its errors.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from medusa_cli._native import Heads, Lookahead, Model, Sampling, Session, Tree

def pretend_device() -> None:
    """Adds a GPU that is none to the process. Before the first model is loaded; NativeError on Windows."""

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

def take_device_counters() -> dict[str, int]:
    """Since the last call: graphs, to_device, to_device_bytes, to_host, to_host_bytes, waits, logits (rows)."""

def take_device_operators() -> list[str]:
    """Operators of graphs since the last call, each once: "ADD f32", of copies "CPY f32 i32"."""

def reused_graphs(session: Session) -> int:
    """Decodes of a model's session whose graph was that of the decode before."""

def accept_in_graph(
    tree: Tree, logits: Sequence[NDArray[np.float32]], tokens: Sequence[Sequence[int]], device: str | None = None
) -> list[tuple[int, int] | None]:
    """Greedy acceptance as the model's graph does it: (deepest accepted node, token after it).

    Of each logits [nodes, vocabulary] and tokens by themselves. None where a row holds NaN. device: None for the
    CPU.
    """

def ranked_in_graph(rows: NDArray[np.float32]) -> list[list[tuple[int, float]]]:
    """Of each row the likeliest tokens and their logits; empty where NaN or equals leave them open."""

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

    def __init__(self, model: Model, heads: Heads, n_ctx: int) -> None: ...
    def prefill(self, tokens: Sequence[int]) -> None: ...
    def verify(self, tree: Tree, tokens: Sequence[int]) -> None: ...
    def commit(self, tree: Tree, path: Sequence[int]) -> None: ...
    def discard(self) -> None: ...
    def truncate(self, count: int) -> int: ...
    def logits(self, row: int) -> NDArray[np.float32]:
        """[1, n_vocab], behind a row of the newest decode."""
    def probabilities(self, context: Sequence[int], row: int) -> NDArray[np.float32]:
        """[streams, output_rows]. context: the committed tokens, whose last one is that row's, and the root."""

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
        calibration: HeadCalibration,
        cost: DraftCost,
        chain: Sequence[tuple[int, float]] = (),
    ) -> tuple[list[int], list[int], list[float], list[int]]:
        """Parents, tokens and probabilities of the nodes, and the paths that each level was asked for."""
    def learn(self, came: Sequence[int], calibration: HeadCalibration) -> None: ...

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

def script(session: Session, speculate: Sequence[bool]) -> None:
    """With watchdog=True: step i drafts if speculate[i % len]; in place of the watchdog."""

def stream(pieces: Sequence[bytes], stops: Sequence[str]) -> tuple[list[str], bool]: ...
def distribution(
    logits: Sequence[float], sampling: Sampling, history: Sequence[int] = ()
) -> list[tuple[int, float]]: ...
def rejection_chances(
    tokens: Sequence[int],
    drawn: Sequence[bool],
    proposal: Sequence[tuple[int, float]],
    p: Sequence[tuple[int, float]],
) -> tuple[list[tuple[int, float]], list[tuple[int, float]]]:
    """Below a node with these children: the chance of each that is tested, where those before it were rejected; and
    what the next token is drawn from after them all. p: in token order."""

def proposal(tokens: Sequence[int], q: Sequence[float], sampling: Sampling) -> list[tuple[int, float]]:
    """What children are drawn from; tokens and q: a drafter's likeliest."""

def draws(proposal: Sequence[tuple[int, float]], count: int, seed: int, emitted: int) -> list[int]: ...
def uniform(seed: int, index: int) -> float: ...
def argmax(logits: Sequence[float]) -> int: ...
def loop_end(text: Sequence[int]) -> tuple[int, int] | None:
    """Of the shortest beginning that ends in a loop: its length, and the tokens of a round."""

def kernel_names() -> list[str]:
    """Instruction sets of this processor that have kernels, "scalar" (the reference) first, the best last."""

def kernel_types() -> list[str]: ...
def attention_names() -> list[str]:
    """The kernel sets of this processor that have an attention of their own."""

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

def kernel_product(isa: str, type: str, weights: bytes, columns: int, x: NDArray[np.float32]) -> NDArray[np.float32]:
    """weights: [rows, columns] as the bytes of a ggml type; x [n, columns] -> [n, rows], between guard bytes."""
