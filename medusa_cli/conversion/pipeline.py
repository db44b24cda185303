"""`medusa convert`: checkpoints in, one GGUF with heads (or a sidecar) out, read back and checked.

Intermediate files lie in a folder beside the output that is removed after the run; the output appears whole or not at
all.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from medusa_cli import native
from medusa_cli.conversion import self_check, sources
from medusa_cli.conversion.quantize import quantize
from medusa_cli.conversion.run import ConvertOptions, Run, worded
from medusa_cli.converters.base.model_file import plain_type
from medusa_cli.converters.base.registry import find_architecture
from medusa_cli.converters.base.write import write_base
from medusa_cli.converters.checkpoints.checkpoint import Checkpoint, open_checkpoint
from medusa_cli.converters.gguf.file_types import UNQUANTIZED, file_type
from medusa_cli.converters.gguf.fingerprint import fingerprint
from medusa_cli.converters.heads import schema, single_file
from medusa_cli.converters.heads.formats import SourceHeads, base_tensor_filter, read_heads
from medusa_cli.converters.heads.write import (
    BeyondF16,
    HeadsPlan,
    fitted,
    patch_f32_array,
    planned_bytes,
    tensor_type,
    unmeasured,
    with_draft_vocabulary,
    write_heads_file,
)
from medusa_cli.decoding import trial
from medusa_cli.models import heads as installed
from medusa_cli.support.atomic import replace_synced
from medusa_cli.support.errors import MedusaError
from medusa_cli.support.locks import only_writer

USUAL_QUANT = "Q4_K_M"
REPORTED = ("family", "kind", "head_count", "block_count", "lm_head", "hidden", "rows")
"""What is reported about the heads, by SourceHeads' names."""


@dataclass(frozen=True)
class Base:
    """Where the base comes from: a `checkpoint` with the names that `rename` keeps, else a finished GGUF."""

    name: str
    path: Path
    provenance: dict[str, str]
    checkpoint: Checkpoint | None = None
    rename: Callable[[str], str | None] | None = None


class Conversion(Run):
    """Heads, alone or with their base."""

    def __init__(
        self, options: ConvertOptions, console: Console, checkpoint: Checkpoint, provenance: dict[str, str]
    ) -> None:
        """provenance: of the checkpoint, which holds the heads."""
        super().__init__(options, console)
        self.heads_provenance = provenance
        self.source = read_heads(checkpoint)
        self.remarks = self.source.remarks
        self.base = self._find_base(checkpoint)
        if self.base.checkpoint is not None:
            find_architecture(self.base.checkpoint.config, self.base.name)

    def _find_base(self, heads: Checkpoint) -> Base:
        options, source = self.options, self.source
        if options.base is None and source.is_full_model:
            rename = base_tensor_filter(heads, source)
            return Base(str(options.heads), heads.root, self.heads_provenance, heads, rename)
        found = self.located_base(source.base_reference, sources.resolve_base)
        checkpoint = None if found.is_gguf else open_checkpoint(found.path)
        return Base(found.name, found.path, found.provenance, checkpoint)

    def plan(self) -> dict[str, Any]:
        """What run() will do, from headers alone. JSON-ready."""
        source, options = self.source, self.options
        heads_plan = self._heads_plan("", "")
        return {
            "heads": {
                "reference": options.heads,
                **{key: getattr(source, key) for key in REPORTED},
                "bytes": planned_bytes(source, heads_plan),
                "types": sorted({tensor_type(tensor, heads_plan) for tensor in source.tensors}),
                "remarks": list(source.remarks),
                "provenance": dict(self.heads_provenance),
            },
            "base": {
                "reference": self.base.name,
                "kind": "checkpoint" if self.base.checkpoint else "gguf",
                "quant": self._wanted_quant() or "as it is",
                "provenance": dict(self.base.provenance),
            },
            "output": None if options.output is None else str(options.output),
            "installed": options.output is None,
            "sidecar": options.sidecar,
        }

    def convert(self, scratch: Path) -> dict[str, Any]:
        """The base, then the heads, joined and checked in `scratch`."""
        base = self._base_gguf(scratch)
        metadata = native.read_gguf(str(base)).metadata
        with worded("{} with --base"):
            source = fitted(self.source, self.options.heads, metadata, self.base.name)
        trial.run(base, remembers=base == self.base.path)
        if self.options.draft_vocab is not None:
            frequent = self._frequent_tokens(base)
            with worded("--draft-vocab: {}"):
                source = with_draft_vocabulary(source, frequent)
        name, print_ = str(metadata.get("general.name") or self.base.name), fingerprint(metadata)
        with self._output(name, print_) as output:
            finished, report = self._written(scratch, base, source, self._heads_plan(name, print_))
            replace_synced(finished, output)
        return {
            **report,
            "output": str(self.options.output or output),
            "bytes": output.stat().st_size,
            "seconds": self.seconds,
        }

    def _written(self, scratch: Path, base: Path, source: SourceHeads, plan: HeadsPlan) -> tuple[Path, dict[str, Any]]:
        """The finished file, checked, and the report."""
        finished = heads_file = scratch / "heads.gguf"
        wider = worded("{} with --heads-quant or --blocks-quant", BeyondF16)
        with wider, self.phase("Writing heads", "bytes") as bar:
            write_heads_file(heads_file, source, plan, bar.update)
        if not self.options.sidecar:
            finished = scratch / "joined.gguf"
            with self.phase("Joining", "bytes") as bar:
                single_file.join(base, heads_file, finished, bar.update)
        types = [tensor_type(tensor, plan) for tensor in source.tensors if len(tensor.shape) > 1]
        return finished, {**self.plan(), **self._self_check(base, finished, source, types)}

    @contextlib.contextmanager
    def _output(self, base_name: str, base_fingerprint: str) -> Iterator[Path]:
        """Where the result goes, reserved for this run. MedusaError for installed heads that may not be replaced."""
        if self.options.output is not None:  # reserved from the beginning on
            yield self.options.output.absolute()
            return
        with only_writer(installed.place_for(base_name, base_fingerprint, replace=self.options.replace)):
            yield installed.place_for(base_name, base_fingerprint, replace=self.options.replace)

    def _base_gguf(self, scratch: Path) -> Path:
        """The base as a GGUF of the wanted type: the given file itself if there is nothing to do."""
        wanted = self._wanted_quant()
        path = self.base.path
        if self.base.checkpoint is not None:
            kind = wanted if wanted in UNQUANTIZED else plain_type(self.base.checkpoint)
            path = scratch / "base-plain.gguf"
            with self.phase("Converting base", "bytes") as bar:
                write_base(
                    self.base.checkpoint,
                    path,
                    kind,
                    rename=self.base.rename,
                    provenance={f"general.source.{key}": text for key, text in self.base.provenance.items()},
                    progress=bar.update,
                )
        if wanted is None or (self.base.checkpoint and wanted in UNQUANTIZED):
            return path
        target = scratch / "base.gguf"
        with self.phase("Quantizing base", "tensors") as bar:
            quantize(
                path,
                target,
                wanted,
                threads=self.options.threads,
                allow_requantize=self.options.allow_requantize,
                on_tensor=bar.update,
            )
        if path.parent == scratch:
            path.unlink()
        return target

    def _wanted_quant(self) -> str | None:
        """The file type to convert the base to; None: it stays as it is (quantized, or of that type already)."""
        _, wanted = file_type(self.options.quant or USUAL_QUANT)
        if self.base.checkpoint is not None:
            return wanted
        types = {tensor.type for tensor in native.read_gguf(str(self.base.path)).tensors if len(tensor.shape) > 1}
        quantized = not types <= {"f32", "f16", "bf16"}
        if quantized:
            return wanted if self.options.allow_requantize else None
        return None if wanted.lower() in types and types <= {"f32", wanted.lower()} else wanted

    def _heads_plan(self, base_name: str, base_fingerprint: str) -> HeadsPlan:
        provenance = {f"{schema.SOURCE_KEYS}{key}": text for key, text in self.heads_provenance.items()}
        provenance[f"{schema.SOURCE_KEYS}family"] = self.source.family
        provenance |= {f"{schema.BASE_SOURCE_KEYS}{key}": text for key, text in self.base.provenance.items()}
        return HeadsPlan(
            base_name,
            base_fingerprint,
            self.options.heads_quant.lower(),
            self.options.blocks_quant.lower(),
            provenance,
            [unmeasured(self.source.head_count)],
            native.quantize_rows,
        )

    def _frequent_tokens(self, base: Path) -> NDArray[np.int32]:
        """The most frequent tokens of the calibration text, most frequent first."""
        assert self.options.calibration is not None
        assert self.options.draft_vocab is not None
        text = self.options.calibration.read_text("utf-8", "replace")
        model = native.Model(str(base), n_gpu_layers=0, repack=False)
        ranked = Counter(model.tokenize(text, add_special=False)).most_common(self.options.draft_vocab)
        if not ranked:
            raise MedusaError(
                f"{self.options.calibration}: holds no text, give one that resembles the answers you want"
            )
        return np.array([token for token, _ in ranked], dtype=np.int32)

    def _self_check(self, base: Path, finished: Path, source: SourceHeads, types: list[str]) -> dict[str, Any]:
        # Works for any size: pages of the file, no copy.
        model = native.Model(str(base if self.options.sidecar else finished), repack=False)
        heads = native.Heads(model, str(finished))
        begun = time.monotonic()
        with self.console.status("Checking the file"):
            found = self_check.check(model, heads, source, base, types)
        self.seconds["Checking"] = round(time.monotonic() - begun, 3)
        if found.useless:
            numbers = ", ".join(map(str, found.useless))
            subject = f"heads {numbers} predict" if len(found.useless) > 1 else f"head {numbers} predicts"
            message = f"{subject} nothing on this base: wrong base, or heads of another layout?"
            if self.options.strict:
                raise MedusaError(f"{self.options.heads}: {message}")
            self.console.print(f"warning: {message}", markup=False)
        patch_f32_array(finished, schema.SELF_CHECK_KEY, found.accuracy)
        return {"check": {"deviation": found.deviation, "bound": found.bound, "top1": found.accuracy}}
