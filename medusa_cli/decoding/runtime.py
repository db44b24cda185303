"""From options to an engine that answers: model, heads, tree, session."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from medusa_cli.decoding import template, trees
from medusa_cli.decoding.options import DraftOptions, EngineOptions
from medusa_cli.decoding.settings import Settings
from medusa_cli.decoding.template import Message
from medusa_cli.models import gguf_files, references
from medusa_cli.support.errors import MedusaError

if TYPE_CHECKING:
    from rich.console import Console

    from medusa_cli import native

OnStep = Callable[[list["native.Piece"]], None]
MAX_NODES = 256
STORED_TREE = "heads"
"""Name of the tree that came with the heads."""
CPU_NODES = 4
NOTICEABLE_SECONDS = 0.5


@dataclass
class Engine:
    """A loaded model with its heads, tree and one session (one conversation)."""

    name: str
    model: native.Model
    heads: native.Heads | None
    tree_name: str
    """Name of the heads' tree, "" without heads."""
    session: native.Session
    watchdog: bool
    """May decode plainly where drafts do not pay: a tree that was asked for is kept to instead."""
    lookup: bool
    """Whether prompt lookup drafts."""
    n_ctx: int
    """Context size in tokens: what was asked for, where llama.cpp rounds it up."""

    @property
    def dynamic(self) -> bool:
        """Whether the heads' tree is grown in each step."""
        return self.tree_name == trees.DYNAMIC

    @property
    def tree_nodes(self) -> int:
        """Nodes of the heads' tree with the root; 1 without heads; of a chain of all heads where trees are grown."""
        return self.session.tree.size

    @property
    def last(self) -> native.Generation | None:
        """The newest generation, also one that was cut short."""
        return self.session.last

    def chat_tokens(self, messages: Sequence[Message]) -> list[int]:
        """Token ids of the conversation in the model's own template, up to where the assistant speaks."""
        model = self.model
        text = template.render(model.chat_template, messages, bos_text=model.bos_text, eos_text=model.eos_text)
        has_bos = bool(model.bos_text) and text.startswith(model.bos_text)
        return model.tokenize(text, add_special=not has_bos, parse_special=True)

    def raw_tokens(self, text: str) -> list[int]:
        """Token ids of a prompt without a template."""
        return self.model.tokenize(text, add_special=True, parse_special=True)

    def generate(
        self, prompt: Sequence[int], settings: Settings, seed: int, on_step: OnStep | None
    ) -> native.Generation:
        """Decodes after `prompt` (token ids) until a stop. MedusaError when the prompt does not fit the context."""
        if len(prompt) >= self.n_ctx:
            raise MedusaError(
                f"the prompt has {len(prompt)} tokens, the context holds {self.n_ctx}: shorten it, or give a larger -c"
            )
        if settings.logit_bias and (highest := max(settings.logit_bias)) >= self.model.n_vocab:
            raise MedusaError(f"--logit-bias names token {highest}, the vocabulary ends at {self.model.n_vocab - 1}")
        return self.session.generate(
            prompt,
            max_tokens=settings.max_tokens,
            sampling=settings.sampling(seed),
            accept=settings.rule(),
            stop=settings.stop,
            ignore_eos=settings.ignore_eos,
            watchdog=self.watchdog and settings.seed is None,
            on_step=on_step,
        )


def open_engine(reference: str, options: EngineOptions, draft: DraftOptions, console: Console) -> Engine:
    """Loads what `reference` and the options name; progress and remarks go to `console`.

    MedusaError or NativeError, one line each, for everything that does not fit together.
    """
    # Everything cheap is checked before the model is loaded.
    no_heads = draft.no_spec or draft.no_heads
    by_default = draft.tree in (None, trees.STATIC)
    wanted_tree = trees.resolve(draft.tree) if draft.tree and not by_default and not no_heads else None
    if draft.heads and not no_heads:
        gguf_files.check_is_file(draft.heads)
    ref = references.resolve(reference, console)
    from medusa_cli import native

    model = load_model(ref.path, options.n_gpu_layers, console)
    heads_path = None if no_heads else heads_file(ref, draft.heads, model)
    if heads_path is None and wanted_tree is not None:
        raise MedusaError(f"--tree needs draft heads, and {ref.name} has none: give --heads FILE")
    if heads_path is not None and model.is_recurrent:
        raise MedusaError(
            f"{ref.name} is a recurrent model ({model.architecture}), which cannot check a tree of drafts: "
            "run it with --no-spec"
        )
    heads = None if heads_path is None else load_heads(model, heads_path, console)
    if heads_path is not None and (wanted_tree is None or wanted_tree.growth is not None):
        from medusa_cli.decoding import profile

        wanted_tree = profile.stored_tree(model, heads_path, options, draft.tree, console) or wanted_tree
    lookup = wants_lookup(draft, model, ref.name)
    tree_name, tree = ("", None) if heads is None else choose_tree(wanted_tree, heads, model, draft.tree)
    if 0 < model.n_ctx_train < options.ctx_size:
        console.print(f"note: the model was trained on {model.n_ctx_train} tokens, the context is {options.ctx_size}")
    session = native.Session(
        model,
        heads,
        tree=None if isinstance(tree, native.DynamicTree) else tree,
        dynamic=tree if isinstance(tree, native.DynamicTree) else None,
        n_ctx=options.ctx_size,
        n_threads=options.threads,
        type_k=options.cache_type_k.value,
        type_v=options.cache_type_v.value,
        lookup=lookup,
    )
    n_ctx = min(session.n_ctx, options.ctx_size or session.n_ctx)
    # Grown trees look after themselves: a step in which no node pays is plain.
    watchdog = by_default and tree_name != trees.DYNAMIC
    return Engine(ref.name, model, heads, tree_name, session, watchdog, lookup, n_ctx)


def wants_lookup(draft: DraftOptions, model: native.Model, name: str) -> bool:
    """Whether prompt lookup drafts: as asked for, else unless a tree is given. MedusaError when the model cannot."""
    if draft.no_spec or draft.lookup is False:
        return False
    if draft.lookup and model.is_recurrent:
        raise MedusaError(
            f"{name} is a recurrent model ({model.architecture}), which cannot check drafts: leave out --lookup"
        )
    return draft.lookup or (draft.tree in (None, trees.STATIC) and not model.is_recurrent)


def load_model(path: Path, n_gpu_layers: int, console: Console) -> native.Model:
    """Loads the base model, with a progress bar on a terminal once it takes noticeable time."""
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

    from medusa_cli import native

    columns = (TextColumn("Loading {task.description}"), BarColumn(bar_width=None), TaskProgressColumn())
    bar = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
    task = bar.add_task(path.name, total=1.0)
    begun = time.monotonic()

    def on_progress(done: float) -> None:
        if time.monotonic() - begun > NOTICEABLE_SECONDS:
            bar.start()
            bar.update(task, completed=done)

    try:
        return native.Model(str(path), n_gpu_layers=n_gpu_layers, on_progress=on_progress)
    finally:
        bar.stop()


def load_heads(model: native.Model, path: Path, console: Console) -> native.Heads:
    """Loads heads for `model`. Shapes or a vocabulary of another base are an error, another name of it is a remark."""
    from medusa_cli import native
    from medusa_cli.converters.gguf.fingerprint import fingerprint
    from medusa_cli.converters.heads.schema import BASE_FINGERPRINT_KEY, BASE_NAME_KEY

    heads = native.Heads(model, str(path))
    if path.samefile(model.path):
        return heads
    wanted, base = native.read_gguf(str(path)).metadata, native.read_gguf(model.path).metadata
    made_for, found = wanted.get(BASE_FINGERPRINT_KEY), fingerprint(base)
    if made_for is not None and made_for != found:
        raise MedusaError(f"{path}: made for the base {made_for}, but {model.path} is {found}: choose the right pair")
    names = wanted.get(BASE_NAME_KEY), base.get("general.name")
    if all(names) and names[0] != names[1]:
        console.print(f"note: the heads were made for {names[0]}, this model is {names[1]}", markup=False)
    return heads


def heads_file(ref: references.ModelRef, given: Path | None, model: native.Model) -> Path | None:
    """The file the heads are read from: --heads, else the model file itself, else what came with the reference."""
    if given is not None:
        return given
    if model.has_heads:
        return ref.path
    if ref.heads is not None and not ref.heads.is_file():
        raise MedusaError(f"the heads of {ref.name} are missing ({ref.heads}): reinstall medusa-cli, or use --no-spec")
    return ref.heads


def choose_tree(
    wanted: trees.NamedTree | None, heads: native.Heads, model: native.Model, asked: str | None
) -> tuple[str, native.Tree | native.DynamicTree]:
    """The tree that is asked for or tuned, else on a CPU one that each step grows, else the heads' own or a built-in.

    asked: trees.STATIC for one that stays the same.
    The name is "" for a tree without choices, plain decoding. A tree the person wrote is used as it stands: MedusaError
    when the heads cannot fill it.
    """
    from medusa_cli import native

    if wanted is None and asked is None and not model.gpu:
        wanted = trees.resolve(trees.DYNAMIC)
    if wanted is not None and wanted.growth is not None:
        return trees.DYNAMIC, native.DynamicTree(calibration=wanted.growth.calibration, costs=wanted.growth.costs)
    if wanted is not None and wanted.strict:
        tree = native.Tree(wanted.choices)
        if tree.depth > heads.head_count:
            raise MedusaError(
                f"{wanted.name}: the tree is {tree.depth} deep, the heads draft {heads.head_count} tokens: "
                f"leave out the choices longer than {heads.head_count}"
            )
        if tree.max_rank >= heads.output_rows:
            raise MedusaError(f"{wanted.name}: rank {tree.max_rank} is past the heads' {heads.output_rows} tokens")
        return wanted.name, tree
    if wanted is None:
        default = trees.DEFAULT_GPU if model.gpu else trees.DEFAULT_CPU
        wanted = trees.NamedTree(STORED_TREE, heads.tree) if heads.tree else trees.named(default)
    # On a CPU every node costs, and the stored tree is as large as its training could measure.
    nodes = MAX_NODES if model.gpu or wanted.name != STORED_TREE else CPU_NODES
    clipped = native.Tree(wanted.choices).clipped(heads.head_count, heads.output_rows, nodes)
    return wanted.name if clipped.size > 1 else "", clipped
