"""What the scripts share: options made from dataclasses, models, texts, tables."""

from __future__ import annotations

import argparse
import dataclasses
import inspect
import sys
from collections.abc import Sequence
from pathlib import Path
from types import UnionType
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin

from rich.console import Console
from rich.table import Table

from medusa_cli.support.errors import MedusaError, is_reportable

if TYPE_CHECKING:
    from medusa_cli import native
    from medusa_cli.models.references import ModelRef

PROMPTS = Path(__file__).with_name("prompts.jsonl")
DOCS = tuple(sorted((Path(__file__).parents[1] / "docs").rglob("*.md")))
"""More text than fixed_text() has by itself."""
MESSAGES = Console(stderr=True)
SHORT = {"max_tokens": "-n"}


# --- options ---------------------------------------------------------------------------------------


def parser(doc: str | None, *kinds: type) -> argparse.ArgumentParser:
    """Of a script: a command for each of `kinds`, by its name; without a command where there is one alone.

    A kind is a dataclass with a method run(). Its fields are the options, those before KW_ONLY without a dash; fields
    without a default have to be given. Its docstring is the help.
    """
    whole = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    if len(kinds) == 1:
        _add_options(whole, kinds[0])
        return whole
    commands = whole.add_subparsers(metavar="COMMAND", required=True)
    for kind in kinds:
        text = inspect.getdoc(kind) or ""
        one = commands.add_parser(
            kind.__name__.lower(),
            help=text.splitlines()[0],
            description=text,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        _add_options(one, kind)
    return whole


def _add_options(into: argparse.ArgumentParser, kind: type) -> None:
    # get_type_hints() refuses KW_ONLY in Python 3.10.
    classes = reversed(kind.__mro__)
    hints = {name: hint for one in classes for name, hint in inspect.get_annotations(one, eval_str=True).items()}
    for field in dataclasses.fields(kind):
        hint, given = hints[field.name], field.default is not dataclasses.MISSING
        settings: dict[str, Any] = {"default": field.default} if given else {}
        many = get_origin(hint) is tuple
        one = get_args(hint)[0] if many or isinstance(hint, UnionType) else hint
        if hint is bool:
            settings["action"] = "store_true"
        elif get_origin(one) is Literal:
            settings["choices"] = get_args(one)
        else:
            settings["type"] = one
        if many or (given and not field.kw_only):
            settings["nargs"] = ("*" if given else "+") if many else "?"
        if field.kw_only:
            names = [f"--{field.name.replace('_', '-')}", *([SHORT[field.name]] if field.name in SHORT else [])]
            into.add_argument(*names, required=not given, **settings)
        else:
            into.add_argument(field.name, **settings)
    into.set_defaults(measurement=kind)


def main(of: argparse.ArgumentParser) -> None:
    """Runs what the command line asks for; errors of a person's making are one line."""
    given = vars(of.parse_args())
    kind = given.pop("measurement")
    try:
        kind(**{name: tuple(value) if isinstance(value, list) else value for name, value in given.items()}).run()
    except Exception as error:
        if not is_reportable(error):
            raise
        sys.exit(f"error: {error}")


def show(*shown: Table | str) -> None:
    """On stdout; where that is no terminal, wide enough for all columns."""
    console = Console(width=None if sys.stdout.isatty() else 160, highlight=False)
    for one in shown:
        console.print(one)


# --- models and texts ------------------------------------------------------------------------------


def find_model(name: str) -> ModelRef:
    from medusa_cli.models import references

    return references.resolve(name, MESSAGES)


def open_model(name: str) -> native.Model:
    from medusa_cli import native

    return native.Model(str(find_model(name).path))


def questions(data: Path, limit: int | None = None) -> list[str]:
    """First turns."""
    from medusa_cli.prompts import bench_set

    return [prompt.text for prompt in bench_set.read(data)[:limit]]


def chat_tokens(model: native.Model, text: str) -> list[int]:
    """The tokens of one user turn in the model's template."""
    from medusa_cli.decoding import prompts

    return prompts.chat_tokens(model, [{"role": "user", "content": text}])


def fixed_text(model: native.Model, count: int, more: Sequence[Path] = ()) -> list[int]:
    """The first `count` tokens of the project's own passages, followed by the files `more`."""
    from medusa_cli.prompts.seeds.data import PASSAGES

    texts = [*PASSAGES, *(path.read_text("utf-8") for path in more)]
    tokens = model.tokenize("\n\n".join(texts), add_special=True, parse_special=False)
    if len(tokens) < count:
        raise MedusaError(f"the fixed text has {len(tokens)} tokens, {count} were asked for")
    return tokens[:count]


class Bench:
    """A model with heads. `nodes`: the heads' own static tree is cut to this size, root included."""

    def __init__(self, model: str, heads: Path | None, nodes: int, n_ctx: int = 0) -> None:
        from medusa_cli import native

        reference = find_model(model)
        self.model = native.Model(str(reference.path))
        own = reference.heads.path if reference.heads else reference.path
        self.heads = native.Heads(self.model, str(heads or own))
        self.tree = native.Tree(self.heads.tree).clipped(self.heads.head_count, self.heads.output_rows, nodes)
        self.drafting = native.Session(self.model, self.heads, tree=self.tree, n_ctx=n_ctx)
        self.plain = native.Session(self.model, n_ctx=n_ctx)

    def reset(self) -> None:
        """Empties both caches, so that a prompt is decoded the same way whatever came before."""
        self.drafting.reset()
        self.plain.reset()
