"""What the conversions of heads and of drafters share: options, where the base lies, a working folder, the report."""

from __future__ import annotations

import contextlib
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from medusa_cli.conversion.sources import Found
from medusa_cli.converters.gguf.file_types import file_type
from medusa_cli.models import heads as installed
from medusa_cli.models import names, references
from medusa_cli.support import paths
from medusa_cli.support.atomic import explain_os_error, scratch_folder
from medusa_cli.support.errors import MedusaError
from medusa_cli.support.files import check_name
from medusa_cli.support.locks import only_writer
from medusa_cli.support.progress import Bar, phase


@dataclass(frozen=True)
class ConvertOptions:
    """heads, base: references (a path, or org/repo[@revision]); base None: what the heads' checkpoint names.

    quant: file type of the base, or of a drafter; None: the usual one. heads_quant, blocks_quant: ggml types of
    lm_heads and residual blocks. draft_vocab: keep the lm_head rows of the N tokens that are most frequent in
    `calibration`. strict: useless heads are an error.
    output None: heads (a sidecar) are installed for their base, in place of others if `replace` allows it.
    """

    heads: str
    output: Path | None
    base: str | None = None
    quant: str | None = None
    heads_quant: str = "Q8_0"
    blocks_quant: str = "F16"
    sidecar: bool = False
    draft_vocab: int | None = None
    calibration: Path | None = None
    allow_requantize: bool = False
    strict: bool = False
    threads: int = 0
    replace: bool = False

    def check(self) -> None:
        """MedusaError for options that cannot work, before anything is fetched."""
        if self.quant is not None:
            with worded("--quant {}"):
                file_type(self.quant)
        if self.output is not None:
            check_name(self.output.absolute())
        if (self.draft_vocab is None) != (self.calibration is None):
            raise MedusaError("--draft-vocab and --calibration go together: N tokens, and the text that ranks them")
        if self.calibration is not None and not self.calibration.is_file():
            raise MedusaError(f"{self.calibration}: no such text file, give one with --calibration")
        if self.output is None:
            assert self.sidecar  # only heads alone are installed
        elif self.output.is_dir() or not self.output.absolute().parent.is_dir():
            raise MedusaError(f"{self.output}: not a file name in an existing folder, choose another output")
        self.check_free()

    def check_free(self) -> None:
        """MedusaError if the output exists and may not be replaced."""
        if self.output is not None and self.output.exists() and not self.replace:
            raise MedusaError(f"{self.output} exists: give another name, or add --force to overwrite it")


@dataclass(frozen=True)
class LocatedBase:
    """A base model on this machine: a GGUF, or a folder."""

    name: str
    path: Path
    provenance: dict[str, str]
    is_gguf: bool


class Run(ABC):
    """One run: plan() reads headers only, run() does the work. remarks: one line each, for the person."""

    remarks: Sequence[str] = ()

    def __init__(self, options: ConvertOptions, console: Console) -> None:
        self.options, self.console = options, console
        self.seconds: dict[str, float] = {}

    @abstractmethod
    def plan(self) -> dict[str, Any]:
        """What run() will do, from headers alone. JSON-ready."""

    @abstractmethod
    def convert(self, scratch: Path) -> dict[str, Any]:
        """Does the work of run() in an empty folder beside the output."""

    def run(self) -> dict[str, Any]:
        """Writes the output and returns the plan with what was found. MedusaError leaves no file behind."""
        place = paths.made(installed.folder()) if self.options.output is None else self.options.output.absolute().parent
        for remark in self.remarks:
            self.console.print(f"note: {remark}", markup=False)
        known = [] if self.options.output is None else [self.options.output]
        try:
            with only_writer(*known), scratch_folder(place, ".convert.", ".part") as scratch:
                self.options.check_free()
                return self.convert(scratch)
        except OSError as error:
            raise explain_os_error(error, self.options.output or place) from error

    def located_base(self, named: str | None, resolve: Callable[[str, Console], Found]) -> LocatedBase:
        """The base of the options, else the one `named` by the checkpoint. resolve: finds a folder or a repository."""
        reference = self.options.base or named
        if reference is None:
            raise MedusaError(f"{self.options.heads}: its config names no base model, give one with --base")
        parsed = names.parse(reference)
        if isinstance(parsed, Path):
            if parsed.is_file():
                check_name(parsed)
                return LocatedBase(parsed.name, parsed, {}, is_gguf=True)
        elif parsed.quant or parsed.file:
            fetched = references.resolve(reference, self.console)
            return LocatedBase(fetched.name, fetched.path, {}, is_gguf=True)
        found = resolve(reference, self.console)
        return LocatedBase(reference, found.path, found.provenance, is_gguf=False)

    @contextlib.contextmanager
    def phase(self, title: str, unit: str) -> Iterator[Bar]:
        """A progress bar; its time goes into the report."""
        begun = time.monotonic()
        with phase(self.console, title, unit) as bar:
            yield bar
        self.seconds[title] = round(time.monotonic() - begun, 3)


@contextlib.contextmanager
def worded(form: str, kind: type[Exception] = MedusaError) -> Iterator[None]:
    """Puts errors of the converters, which do not know options, into the words of `form`."""
    try:
        yield
    except kind as error:
        raise MedusaError(form.format(error)) from error
