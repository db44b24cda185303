"""`medusa convert` for EAGLE-3 drafters: a file of their own, which takes its tokenizer from the base."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console

from medusa_cli.conversion import read_back, sources
from medusa_cli.conversion.quantize import quantize
from medusa_cli.conversion.run import ConvertOptions, Run
from medusa_cli.converters.base.model_file import plain_type
from medusa_cli.converters.checkpoints.checkpoint import Checkpoint, open_side_files
from medusa_cli.converters.drafters import Eagle3, read_checkpoint_target, read_gguf_target, stated_target
from medusa_cli.converters.gguf.file_types import UNQUANTIZED, file_type
from medusa_cli.support.atomic import replace_synced
from medusa_cli.support.errors import MedusaError

USUAL_QUANT = "Q8_0"


class DrafterConversion(Run):
    """An EAGLE-3 drafter. The base gives sizes and the tokenizer; its weights are not read."""

    def __init__(
        self, options: ConvertOptions, console: Console, checkpoint: Checkpoint, provenance: dict[str, str]
    ) -> None:
        """provenance: of the checkpoint, which holds the drafter."""
        super().__init__(options, console)
        if options.output is None:
            raise MedusaError(f"{options.heads}: an EAGLE-3 drafter is not installed, write it to a file with -o")
        if options.draft_vocab is not None:
            raise MedusaError(f"{options.heads}: an EAGLE-3 drafter has its own draft vocabulary: omit --draft-vocab")
        self.output = options.output
        self.provenance, self.checkpoint = provenance, checkpoint
        _, self.quant = file_type(options.quant or USUAL_QUANT)
        self.base = self.located_base(stated_target(checkpoint), sources.resolve_side_files)
        path = self.base.path
        target = read_gguf_target(path) if self.base.is_gguf else read_checkpoint_target(open_side_files(path))
        self.drafter = Eagle3(checkpoint, target)

    def plan(self) -> dict[str, Any]:
        """What run() will do, from headers alone. JSON-ready."""
        drafter = self.drafter
        return {
            "drafter": {
                "reference": self.options.heads,
                "kind": "eagle3",
                "hidden": drafter.hidden,
                "draft_vocabulary": drafter.draft_vocabulary,
                "target_layers": drafter.target_layers,
                "own": drafter.own,
                "quant": self.quant,
                "provenance": dict(self.provenance),
            },
            "base": {
                "reference": self.base.name,
                "kind": "gguf" if self.base.is_gguf else "checkpoint",
                "provenance": dict(self.base.provenance),
            },
            "output": str(self.output),
            "installed": False,
            "sidecar": True,
        }

    def convert(self, scratch: Path) -> dict[str, Any]:
        """Writes, quantizes and checks in `scratch`."""
        plain = self.quant if self.quant in UNQUANTIZED else _whole_type(self.checkpoint)
        finished = scratch / "plain.gguf"
        provenance = {f"general.source.{key}": text for key, text in self.provenance.items()}
        if "repo" in self.provenance:
            provenance["general.name"] = self.provenance["repo"]
        with self.phase("Converting drafter", "bytes") as bar:
            self.drafter.write(finished, plain, provenance, bar.update)
        if self.quant != plain:
            source, finished = finished, scratch / "quantized.gguf"
            with self.phase("Quantizing drafter", "tensors") as bar:
                quantize(source, finished, self.quant, threads=self.options.threads, on_tensor=bar.update)
            source.unlink()
        with self.phase("Checking", "tensors") as bar:
            deviation, bound = read_back.check(self.drafter.tensors(plain), finished, bar.update)
        replace_synced(finished, self.output.absolute())
        return {
            **self.plan(),
            "check": {"deviation": deviation, "bound": bound},
            "bytes": self.output.stat().st_size,
            "seconds": self.seconds,
        }


def _whole_type(checkpoint: Checkpoint) -> str:
    """The narrowest type that changes no weight; drafters are small, so F32 is no burden where it is needed."""
    wide = any(tensor.dtype in ("F32", "F64") and len(tensor.shape) > 1 for tensor in checkpoint.tensors.values())
    return "F32" if wide else plain_type(checkpoint)
