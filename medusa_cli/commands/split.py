"""`medusa split`: takes a single file apart into the base model and a sidecar of heads."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def split(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A single-file GGUF: model and heads in one.")],
    base_out: Annotated[
        Path | None,
        typer.Option("--base-out", metavar="FILE", show_default=False, help="Base model; default NAME.base.gguf."),
    ] = None,
    heads_out: Annotated[
        Path | None,
        typer.Option("--heads-out", metavar="FILE", show_default=False, help="Heads; default NAME.heads.gguf."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite existing files.")] = False,
) -> None:
    """Split a single-file GGUF into the base model and its heads (a sidecar for --heads)."""
    from medusa_cli.converters.heads import single_file
    from medusa_cli.models import gguf_files
    from medusa_cli.support import console
    from medusa_cli.support.errors import MedusaError
    from medusa_cli.support.locks import only_writer
    from medusa_cli.support.progress import phase

    gguf_files.check_is_file(file)
    stem = file.name.removesuffix(".gguf")
    base = base_out or file.with_name(f"{stem}.base.gguf")
    heads = heads_out or file.with_name(f"{stem}.heads.gguf")
    with only_writer(base, heads):
        for path in (base, heads):
            if path.is_dir():
                raise MedusaError(f"{path} is a directory: give a file name")
            if path.exists() and not force:
                raise MedusaError(f"{path} exists: give another name, or add --force to overwrite it")
            if not path.absolute().parent.is_dir():
                raise MedusaError(f"{path}: no such folder")
        with phase(console.messages(), "Splitting", "bytes") as bar:
            single_file.split(file, base, heads, bar.update)
    print(f"{base}\n{heads}")
