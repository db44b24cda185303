"""Do drafts still pay behind long texts? Answers as a chat drafts them and plain ones, in turn.

    python benchmarks/long_answers.py MODEL [--contexts 1000 8000] [--heads FILE] [-n 96] [--rounds 2]
                                      [--text FILE ...] [--floor 1.0]

Each question comes behind so many tokens of the project's own text (the training passages, then --text; default: the
pages in docs). Drafts are those of a chat: the model's heads where there are any, recycling where not, lookup, trees
grown step by step. Tokens/s of the answer alone, the prompt not counted. Exits with 1 when drafting is slower than
--floor times plain behind any of the texts, or when a greedy answer differs from the plain one.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from common import DOCS, fixed_text
from rich.console import Console
from rich.table import Table

from medusa_cli import native
from medusa_cli.decoding import lossless, prompts
from medusa_cli.models import references

QUESTIONS = (
    "What is the text above about? Answer in one paragraph.",
    "Write a short story about a lighthouse keeper.",
    "List five things that the text above says.",
)
ANSWER = 512
"""Room for the question and its answer."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--contexts", type=int, nargs="+", default=[1000, 8000])
    parser.add_argument("--heads", type=Path)
    parser.add_argument("-n", "--max-tokens", type=int, default=96)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--text", type=Path, nargs="*", default=DOCS)
    parser.add_argument("--floor", type=float, default=0.0)
    arguments = parser.parse_args()
    found = references.resolve(arguments.model, Console(stderr=True))
    model = native.Model(str(found.path))
    path = arguments.heads or (found.heads.path if found.heads else None)
    heads = native.Heads(model, str(path)) if path else None
    table = Table("behind", "plain, tokens/s", "with drafts", "ratio", "tokens per step")
    slow = []
    for context in arguments.contexts:
        plain, drafted, per_step = measure(model, heads, context, arguments)
        table.add_row(f"{context:,}", f"{plain:.1f}", f"{drafted:.1f}", f"{drafted / plain:.2f}", f"{per_step:.2f}")
        if drafted < arguments.floor * plain:
            slow.append(f"{context:,} tokens: {drafted / plain:.2f} times plain")
    Console().print(table)
    if slow:
        sys.exit(f"below {arguments.floor:g}: " + "; ".join(slow))


def measure(
    model: native.Model, heads: native.Heads | None, context: int, arguments: argparse.Namespace
) -> tuple[float, float, float]:
    """(plain tokens/s, with drafts, tokens per step), of all rounds."""
    text = model.detokenize(fixed_text(model, context, arguments.text))
    n_ctx = context + ANSWER + arguments.max_tokens
    sessions = {
        "plain": native.Session(model, n_ctx=n_ctx),
        "drafts": native.Session(
            model,
            heads,
            dynamic=native.DynamicTree() if heads else None,
            lookup=True,
            recycling=heads is None,
            n_ctx=n_ctx,
        ),
    }
    tokens, seconds = dict.fromkeys(sessions, 0), dict.fromkeys(sessions, 0.0)
    per_step = []
    for _ in range(arguments.rounds):
        for question in QUESTIONS:
            asked = prompts.chat_tokens(model, [{"role": "user", "content": f"{text}\n\n{question}"}])
            answers = {}
            for name, session in sessions.items():
                answer = answers[name] = session.generate(asked, max_tokens=arguments.max_tokens)
                tokens[name] += len(answer.tokens) - 1
                seconds[name] += sum(answer.stats["timings_ms"].values()) / 1000
            per_step.append(answers["drafts"].stats["tokens_per_step"])
            same = lossless.compare(model, asked, answers["plain"], answers["drafts"])
            if not same.explained:
                sys.exit(f"behind {context:,} tokens the drafted answer differs: {same}")
    return (
        tokens["plain"] / seconds["plain"],
        tokens["drafts"] / seconds["drafts"],
        sum(per_step) / len(per_step),
    )


if __name__ == "__main__":
    main()
