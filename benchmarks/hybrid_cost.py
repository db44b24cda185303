"""What a chain of drafts costs a hybrid model, beside a dense one of as many bytes.

    python benchmarks/hybrid_cost.py FOLDER [--rounds 3] [--tokens 48]

Writes two made-up models into FOLDER (kept for the next run; 2 x 2.7 GB): one of Qwen3.5's architecture (qwen35) in the
shape of its 4B model, one of the llama architecture. Both decode plainly and with a chain of 3 drafts of random heads,
in turn. Random drafts are refused at once, so that every step takes a draft back.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from statistics import median

import gguf
import numpy as np
from made_up_model import Blocks, Kind, Size, finish, write_base, write_heads, write_metadata

from medusa_cli import native
from medusa_cli.support.atomic import atomic_path
from medusa_cli.support.units import size as spelled

HYBRID = Size(2560, 32, 9216, 16, 4, 32000, 8192)
HEAD, STATE, VALUE_HEADS, KEY_HEADS, CONVOLUTION, INTERVAL = 256, 128, 32, 16, 4, 4
DENSE = Size(2560, 36, 9728, 20, 4, 32000, 8192)
CHAIN = [[0], [0, 0], [0, 0, 0]]
PROMPT = list(range(300, 364))


def write_hybrid(path: Path, size: Size, seed: int = 0) -> None:
    """Three gated delta nets to each layer of attention, as Qwen3.5 has them. Whole or not at all."""
    rng = np.random.default_rng(seed)
    pool = Blocks(Kind.Q4_K, size.hidden * max(size.inner, size.vocabulary), rng)
    pool.set_scales(size.hidden)
    inner = STATE * VALUE_HEADS
    with atomic_path(path) as temporary:
        writer = gguf.GGUFWriter(temporary, "qwen35")
        write_metadata(writer, size)
        for key, value in (("conv_kernel", CONVOLUTION), ("inner_size", inner), ("state_size", STATE),
                           ("time_step_rank", VALUE_HEADS), ("group_count", KEY_HEADS)):  # fmt: skip
            writer.add_uint32(f"qwen35.ssm.{key}", value)
        writer.add_uint32("qwen35.full_attention_interval", INTERVAL)
        writer.add_array("qwen35.rope.dimension_sections", [11, 11, 10, 0])
        writer.add_key_length(HEAD)
        writer.add_value_length(HEAD)

        def matrix(name: str, rows: int, columns: int) -> None:
            writer.add_tensor(f"{name}.weight", pool.matrix(rows, columns), raw_dtype=Kind.Q4_K)

        def plain(name: str, *shape: int, value: float = 1.0) -> None:
            writer.add_tensor(name, np.full(shape, value, np.float32))

        matrix("token_embd", size.vocabulary, size.hidden)
        matrix("output", size.vocabulary, size.hidden)
        plain("output_norm.weight", size.hidden)
        for layer in range(size.layers):
            name = f"blk.{layer}"
            plain(f"{name}.attn_norm.weight", size.hidden)
            plain(f"{name}.post_attention_norm.weight", size.hidden)
            matrix(f"{name}.ffn_gate", size.inner, size.hidden)
            matrix(f"{name}.ffn_up", size.inner, size.hidden)
            matrix(f"{name}.ffn_down", size.hidden, size.inner)
            if (layer + 1) % INTERVAL == 0:
                matrix(f"{name}.attn_q", 2 * HEAD * size.heads, size.hidden)  # with a gate for each value
                matrix(f"{name}.attn_k", HEAD * size.key_heads, size.hidden)
                matrix(f"{name}.attn_v", HEAD * size.key_heads, size.hidden)
                matrix(f"{name}.attn_output", size.hidden, HEAD * size.heads)
                plain(f"{name}.attn_q_norm.weight", HEAD)
                plain(f"{name}.attn_k_norm.weight", HEAD)
                continue
            channels = inner + 2 * STATE * KEY_HEADS
            matrix(f"{name}.attn_qkv", channels, size.hidden)
            matrix(f"{name}.attn_gate", inner, size.hidden)
            matrix(f"{name}.ssm_beta", VALUE_HEADS, size.hidden)
            matrix(f"{name}.ssm_alpha", VALUE_HEADS, size.hidden)
            matrix(f"{name}.ssm_out", size.hidden, inner)
            plain(f"{name}.ssm_conv1d.weight", channels, CONVOLUTION, value=0.25)
            plain(f"{name}.ssm_dt.bias", VALUE_HEADS)
            plain(f"{name}.ssm_a", VALUE_HEADS, value=-1.0)
            plain(f"{name}.ssm_norm.weight", STATE)
        finish(writer)


class Sessions:
    """Of one model: without drafts, and with the chain."""

    def __init__(self, folder: Path, name: str, size: Size, threads: int) -> None:
        path, heads = folder / f"{name}.gguf", folder / f"{name}-heads.gguf"
        if not path.exists():
            (write_hybrid if name == "hybrid" else write_base)(path, size)
        if not heads.exists():
            write_heads(heads, path, "medusa", size)
        self.model = native.Model(str(path))
        loaded = native.Heads(self.model, str(heads))
        self.plain = native.Session(self.model, n_ctx=1024, n_threads=threads)
        tree = native.Tree(CHAIN)
        self.drafting = native.Session(self.model, loaded, tree=tree, n_ctx=1024, n_threads=threads)

    def text(self, session: native.Session) -> list[int]:
        """Token ids. Every draft is taken back, so that a state restored wrongly shows."""
        return list(session.generate(PROMPT, max_tokens=16, ignore_eos=True).tokens)

    def step_ms(self, session: native.Session, tokens: int) -> tuple[float, float, float]:
        """(a verification, a commit, tokens) of a step."""
        stats = session.generate(PROMPT, max_tokens=tokens, ignore_eos=True).stats
        steps, times = stats["steps"], stats["timings_ms"]
        return times["verify"] / steps, times["commit"] / steps, stats["tokens_per_step"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--threads", type=int, default=native.physical_cores())
    arguments = parser.parse_args()
    ratios = {}
    for name, size in (("hybrid", HYBRID), ("dense", DENSE)):
        sessions = Sessions(arguments.folder, name, size, arguments.threads)
        one, four, commits, accepted = [], [], [], 0.0
        if sessions.text(sessions.plain) != sessions.text(sessions.drafting):
            raise SystemExit(f"{name}: with drafts it says something else")
        for _ in range(arguments.rounds):
            one.append(sessions.step_ms(sessions.plain, arguments.tokens)[0])
            verify, commit, accepted = sessions.step_ms(sessions.drafting, arguments.tokens)
            four.append(verify)
            commits.append(commit)
        ratios[name] = median(four) / median(one)
        memory = f", {native.draft_memory(sessions.model)}" if sessions.model.is_recurrent else ""
        print(
            f"{name} ({spelled(sessions.model.size_bytes)}{memory}): one token {median(one):.1f} ms, root and 3 drafts "
            f"{median(four):.1f} ms ({ratios[name]:.2f}), taking back {median(commits):.3f} ms, "
            f"{accepted:.2f} tokens per step"
        )
    print(f"T(4) / T(1), hybrid over dense: {ratios['hybrid'] / ratios['dense']:.2f}")


if __name__ == "__main__":
    main()
