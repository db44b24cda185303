"""`medusa convert`: options and the report; the work is medusa_cli.conversion's."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from medusa_cli.support.tables import print_rows
from medusa_cli.support.units import size

if TYPE_CHECKING:
    from rich.console import Console


def convert(
    heads: Annotated[
        str,
        typer.Argument(metavar="HEADS", help="Folder, .safetensors or .pt file, or org/repo[@revision] on the Hub."),
    ],
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE", show_default=False, help="The GGUF to write.")
    ] = None,
    install: Annotated[
        bool, typer.Option("--install", help="Install the heads alone, for all quantizations of the base.")
    ] = False,
    base: Annotated[
        str | None,
        typer.Option(
            "--base", metavar="BASE", help="Base model: GGUF, folder or org/repo; default: the one HEADS names."
        ),
    ] = None,
    quant: Annotated[
        str | None,
        typer.Option(
            "--quant",
            metavar="TYPE",
            show_default=False,
            help="Type of the base (usually Q4_K_M) or of a drafter (Q8_0); F16, ...",
        ),
    ] = None,
    heads_quant: Annotated[
        str, typer.Option("--heads-quant", metavar="TYPE", hidden=True, help="Type of the heads' output matrices.")
    ] = "Q8_0",
    blocks_quant: Annotated[
        str, typer.Option("--blocks-quant", metavar="TYPE", hidden=True, help="Type of the heads' residual blocks.")
    ] = "F16",
    sidecar: Annotated[bool, typer.Option("--sidecar", help="Write the heads alone, for --heads.")] = False,
    draft_vocab: Annotated[
        int | None,
        typer.Option(
            "--draft-vocab",
            metavar="N",
            min=1,
            hidden=True,
            help="Draft only the N tokens most frequent in --calibration.",
        ),
    ] = None,
    calibration: Annotated[
        Path | None, typer.Option("--calibration", metavar="FILE", hidden=True, help="Text in which to count tokens.")
    ] = None,
    allow_requantize: Annotated[
        bool, typer.Option("--allow-requantize", hidden=True, help="Requantize a base GGUF that is already quantized.")
    ] = False,
    strict: Annotated[bool, typer.Option("--strict", hidden=True, help="Fail when a head predicts nothing.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be done, reading only headers.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the output if it exists.")] = False,
    threads: Annotated[
        int, typer.Option("-t", "--threads", min=0, hidden=True, help="CPU threads; 0: physical cores.")
    ] = 0,
) -> None:
    """Convert Medusa or Hydra heads from Hugging Face, with their base model, to one GGUF (or a sidecar).

    An EAGLE-3 drafter becomes a file of its own, with the tokenizer of its base.
    """
    from medusa_cli.conversion.run import ConvertOptions
    from medusa_cli.conversion.start import start
    from medusa_cli.support import console

    if (output is None) != install:
        raise typer.BadParameter("give either -o FILE or --install", param_hint="--output")
    messages = console.messages()
    conversion = start(
        ConvertOptions(
            heads=heads,
            output=output,
            base=base,
            quant=quant,
            heads_quant=heads_quant,
            blocks_quant=blocks_quant,
            sidecar=sidecar or install,
            draft_vocab=draft_vocab,
            calibration=calibration,
            allow_requantize=allow_requantize,
            strict=strict,
            threads=threads,
            replace=force or dry_run,
        ),
        messages,
    )
    found = conversion.plan() if dry_run else conversion.run()
    if as_json:
        console.print_json(found)
    else:
        _print(found, console.data())


def _print(found: dict[str, Any], out: Console) -> None:
    part = "drafter" if "drafter" in found else "heads"
    rows = _drafter_rows(found) if part == "drafter" else _heads_rows(found)
    for name in (part, "base"):
        if provenance := found[name]["provenance"]:
            rows.append((f"{name} from", ", ".join(f"{key} {text}" for key, text in provenance.items())))
    if check := found.get("check"):
        equal = f"equal to the source within {check['deviation']:.1e}"
        shares = ", ".join(f"{share:.0%}" for share in check.get("top1", ()))
        rows.append(("check", f"{equal}; best token right: {shares}" if shares else equal))
    done = "installed" if found["installed"] else "wrote"
    if "bytes" in found:
        rows.append((done, f"{found['output']} ({size(found['bytes'])})"))
    else:
        rows.append((f"would {'install' if found['installed'] else 'write'}", found["output"] or f"the {part}"))
    print_rows(rows, out)
    if "bytes" in found:
        use = f"medusa chat {found['output']}"
        if found["installed"]:
            use = "medusa chat BASE, with any quantization of it"
        elif part == "drafter":
            use = f"medusa chat BASE --draft-model {found['output']}"
        elif found["sidecar"]:
            use = f"medusa chat BASE --heads {found['output']}"
        out.print(f"\nRun it: {use}", markup=False, no_wrap=True, soft_wrap=True)


def _drafter_rows(found: dict[str, Any]) -> list[tuple[str, str]]:
    drafter = found["drafter"]
    shared = " and ".join(name for name in ("embedding", "output") if name not in drafter["own"])
    using = f", the base's {shared}" if shared else ""
    layers = ", ".join(map(str, drafter["target_layers"]))
    return [
        ("drafter", f"EAGLE-3, hidden size {drafter['hidden']}, {drafter['draft_vocabulary']} tokens{using}, "
                    f"{drafter['quant']}"),
        ("base", f"{found['base']['reference']}, states before layers {layers}"),
    ]  # fmt: skip


def _heads_rows(found: dict[str, Any]) -> list[tuple[str, str]]:
    heads, base = found["heads"], found["base"]
    lm_head = {"own": "own lm_heads", "base": "the base's lm_head", "draft_vocab": "a draft vocabulary"}[
        heads["lm_head"]
    ]
    return [
        ("heads", f"{heads['head_count']} {heads['kind']} heads of {heads['block_count']} blocks, {lm_head} "
                  f"({heads['family']}, {size(heads['bytes'])}, {', '.join(heads['types'])})"),
        ("base", f"{base['reference']}, {base['quant']}"),
    ]  # fmt: skip
