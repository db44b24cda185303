"""Model references: a path to a GGUF file, a name on the Hub, or `demo`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING

from medusa_cli.converters.heads import schema
from medusa_cli.models import demo, names
from medusa_cli.models.gguf_files import read_header
from medusa_cli.support.errors import OptionError

if TYPE_CHECKING:
    from rich.console import Console


class Origin(Enum):
    """Where the heads of a model come from."""

    given = "given"
    shipped = "shipped"
    repository = "repository"
    installed = "installed"


@dataclass(frozen=True)
class HeadsRef:
    """A file of draft heads. asked: the person named them, so they take precedence over those in the model's file."""

    path: Path
    origin: Origin
    asked: bool = False

    @property
    def is_own(self) -> bool:
        """Whether the file belongs to the person, and may be changed."""
        return self.origin in (Origin.given, Origin.installed)


@dataclass(frozen=True)
class DrafterRef:
    """Layers that draft. path: the model's own file, or another one. kind: MTP, EAGLE-3 or DFlash. layers: how many.

    most: tokens that they draft in a row; 0: any number, since one serves for all of them.
    """

    path: Path
    kind: str
    layers: int
    most: int = 0

    @property
    def label(self) -> str:
        """What they are, in a few words."""
        return f"{self.layers} {self.kind} {'layer' if self.layers == 1 else 'layers'}"


@dataclass(frozen=True)
class ModelRef:
    """A model that is ready to be loaded. heads: draft heads for it other than those in its own file.

    drafter: layers that draft for it where no heads do; until drafters.with_drafter(), what was fetched with it.
    embeds: it makes embeddings, and writes no text.
    """

    name: str
    path: Path
    heads: HeadsRef | None = None
    drafter: DrafterRef | None = None
    embeds: bool = False


def resolve(reference: str, console: Console, *, drafts: bool = False) -> ModelRef:
    """The files behind a reference, with the heads that come with them. Fetches what is not here yet.

    drafts: a file that only drafts for a model will do, too.

    MedusaError: no such file, a directory, not a GGUF, damaged, heads where a model is needed; see remote.fetch_model()
    for names on the Hub.
    """
    if reference == demo.DEMO:
        return ModelRef(demo.DEMO, demo.demo_base(console), HeadsRef(demo.DEMO_HEADS, Origin.shipped))
    found = names.parse(reference)
    if isinstance(found, Path):
        ref = ModelRef(found.name, found)
    else:
        from medusa_cli.models import remote

        fetched = remote.fetch_model(found, console, drafts=drafts)
        heads = HeadsRef(fetched.heads, Origin.repository) if fetched.heads else None
        drafter = DrafterRef(fetched.drafter, "", 0) if fetched.drafter else None
        ref = ModelRef(str(fetched.name), fetched.path, heads, drafter)
    header = read_header(ref.path)
    if header.get("general.architecture") == schema.ARCHITECTURE:
        text = "{path} holds draft heads, not a model: give the model, and {heads} {reference}"
        raise OptionError(text, path=ref.path, reference=reference)
    if header.next_layers_alone and not drafts:
        text = "{path} drafts for a model, it is none: give the model, and {draft_model} {reference}"
        raise OptionError(text, path=ref.path, reference=reference)
    return replace(ref, embeds=header.embeds)
