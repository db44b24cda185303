"""`medusa inspect`: what a GGUF file holds, without loading a model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from medusa_cli.models.completion import complete_models
from medusa_cli.support.tables import known, print_rows
from medusa_cli.support.units import count, size

if TYPE_CHECKING:
    from rich.console import Console

MAX_RANKS_SHOWN = 5


def inspect(
    file: Annotated[
        str,
        typer.Argument(
            help="A GGUF file (model, heads, or both in one), org/repo[:QUANT] on the Hub, or `demo`.",
            autocompletion=complete_models,
        ),
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    tree: Annotated[
        str | None,
        typer.Option(
            "--tree", metavar="NAME|FILE[:NAME]", help="Draw this draft tree instead of the one stored with the heads."
        ),
    ] = None,
) -> None:
    """Show what a GGUF file holds: architecture, quantization, heads, tree, accuracies, sizes."""
    from pathlib import Path

    from medusa_cli.decoding import trees
    from medusa_cli.diagnosis import inspection
    from medusa_cli.models import demo, drafters, gguf_files, names, references
    from medusa_cli.models import heads as beside
    from medusa_cli.support import console

    asked = None if tree is None else trees.fixed(tree)
    path = None if file == demo.DEMO else names.parse(file)
    heads = fetched = None
    if not isinstance(path, Path):
        messages = console.messages()
        ref = beside.with_heads(references.resolve(file, messages, drafts=True), None, messages)
        path, fetched = ref.path, ref.drafter.path if ref.drafter else None
        heads = gguf_files.read_header(ref.heads.path) if ref.heads and ref.heads.path.is_file() else None
    model, drafter = gguf_files.read_header(path), drafters.for_model(path, fetched)
    found = inspection.inspect_file(model, heads, asked, gguf_files.read_header(drafter.path) if drafter else None)
    if as_json:
        console.print_json(found)
    else:
        _print(found, console.data())


def _print(found: dict[str, Any], out: Console) -> None:
    def show(rows: list[tuple[str, str]]) -> None:
        print_rows([(label, " ".join(value.split())) for label, value in rows], out)

    show(_model_rows(found))
    heads = found["heads"]
    if heads is None:
        return
    out.print()
    show(_head_rows(heads, found))
    if heads["accuracy"]:
        out.print()
        out.print(_accuracy_table(heads["accuracy"]))
    if heads["tree"]:
        _print_tree(heads, out)


def _model_rows(found: dict[str, Any]) -> list[tuple[str, str]]:
    rows = [("file", found["path"]), ("size", size(found["file_size"])), ("content", found["content"])]
    if found["name"]:
        rows.append(("name", str(found["name"])))
    if found["content"] == "heads":
        return rows
    quantization = found["quantization"]
    name = quantization["name"] or str(quantization["dominant"]).upper()
    parts = ", ".join(
        f"{kind} {size(entry['bytes'])} in {entry['tensors']}" for kind, entry in quantization["types"].items()
    )
    rows += [
        ("architecture", str(found["architecture"])),
        ("quantization", f"{name} ({parts} tensors)"),
        ("parameters", count(found["parameters"])),
        ("layers", f"{known(found['layers'])} of width {known(found['embedding_length'])}"),
        ("vocabulary", f"{known(found['vocabulary'])} tokens"),
        ("context", f"{known(found['context_length'])} tokens"),
        ("chat template", "yes" if found["chat_template"] else "no (use `medusa generate --raw`)"),
    ]
    if found["heads"] is None:
        rows.append(("heads", "none"))
    if (drafter := found["drafter"]) is not None:
        where = "" if drafter["path"] == found["path"] else f", in {drafter['path']}"
        use = "for a model in another file" if found["content"] == "drafter" else "used where no heads draft"
        use = f"not used: {drafter['problem']}" if drafter["problem"] else use
        rows.append((f"{drafter['kind']} layers", f"{drafter['layers']}{where}, {use}"))
    return rows


def _head_rows(heads: dict[str, Any], found: dict[str, Any]) -> list[tuple[str, str]]:
    rows = [("heads", f"{known(heads['head_count'])} of kind {known(heads['kind'])}")]
    if heads["path"] != found["path"]:
        rows.append(("heads file", heads["path"]))
    if heads["streams"]:
        rows.append(("streams", _streams(heads["streams"])))
    else:
        rows.append(("blocks per head", known(heads["block_count"])))
    draft = f", {heads['draft_vocab_size']} tokens" if heads["draft_vocab_size"] else ""
    rows.append(("lm_head", f"{known(heads['lm_head'])}{draft}"))
    types = ", ".join(heads["types"])
    rows.append(("heads' size", f"{size(heads['bytes'])} ({count(heads['parameters'])} parameters, {types})"))
    rows.append(("made for", f"{known(heads['base_name'])} ({known(heads['base_fingerprint'])})"))
    for label, source in (("converted from", heads["source"]), ("base from", heads["base_source"])):
        if source:
            rows.append((label, ", ".join(f"{key} {value}" for key, value in source.items())))
    if heads["check_top1"]:
        shares = ("-" if share is None else f"{share:.0%}" for share in heads["check_top1"])
        rows.append(("best token right", ", ".join(shares) + " (short sample at conversion)"))
    return rows


def _streams(found: dict[str, Any]) -> str:
    adapters = f"adapters of rank {found['rank']}" if found["rank"] else "no adapters"
    root = "the root is read" if found["root"] else "the root is not read"
    layers = f"the top {known(found['layers'])} layers, from layer {known(found['first_layer'])} on"
    return f"{known(found['mode'])}: {layers}; {adapters}; {root}"


def _accuracy_table(accuracy: list[list[float]]) -> Any:
    from rich.table import Table

    ranks = min(MAX_RANKS_SHOWN, len(accuracy[0]))
    table = Table("head", *(f"rank {rank}" for rank in range(ranks)), box=None, title="accuracy", title_justify="left")
    for number, row in enumerate(accuracy, start=1):
        table.add_row(str(number), *(f"{100 * value:.1f}%" for value in row[:ranks]))
    return table


def _print_tree(heads: dict[str, Any], out: Console) -> None:
    from medusa_cli.decoding.trees import draw

    out.print()
    shares = ", with the chance that each draft is accepted" if heads["accuracy"] else ""
    name = f"{heads['tree_name']}: " if heads["tree_name"] else ""
    out.print(f"{name}tree of {len(heads['tree']) + 1} nodes: ranks by depth{shares}", style="dim", markup=False)
    for line in draw(heads["tree"], heads["accuracy"]):
        out.print(line, markup=False, soft_wrap=True)
    if heads["expected_tokens_per_step"]:
        out.print(f"[dim]expected tokens per step: {heads['expected_tokens_per_step']:.2f}[/]")
