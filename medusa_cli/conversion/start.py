"""Which conversion a checkpoint needs."""

from __future__ import annotations

from rich.console import Console

from medusa_cli.conversion import sources
from medusa_cli.conversion.drafter import DrafterConversion
from medusa_cli.conversion.pipeline import Conversion
from medusa_cli.conversion.run import ConvertOptions, Run
from medusa_cli.converters.checkpoints.checkpoint import open_checkpoint
from medusa_cli.converters.drafters import is_eagle3


def start(options: ConvertOptions, console: Console) -> Run:
    """The conversion of `options.heads`, which may be fetched for it. MedusaError for what cannot be converted."""
    options.check()
    found = sources.resolve_heads(options.heads, console)
    checkpoint = open_checkpoint(found.path)
    kind = DrafterConversion if is_eagle3(checkpoint) else Conversion
    return kind(options, console, checkpoint, found.provenance)
