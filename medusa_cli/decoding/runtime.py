"""From options to an engine that answers: gathers facts, makes a plan from them, and carries it out."""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from medusa_cli.decoding import context_size, devices, drafting, offload, prompts, trees, trial
from medusa_cli.decoding.drafting import DraftPlan, FixedTree, HeadsFacts, ModelFacts
from medusa_cli.decoding.options import AcceptKind, DraftOptions, EngineOptions
from medusa_cli.decoding.prompts import Message, Tools
from medusa_cli.decoding.settings import ModelSampling, Settings, engine_default, model_sampling
from medusa_cli.decoding.thinking import NOTHING_SAID, Thinking
from medusa_cli.models import demo, drafters, heads, references
from medusa_cli.parts.splitter import Grammar
from medusa_cli.support.errors import MedusaError, OptionError

if TYPE_CHECKING:
    from rich.console import Console

    from medusa_cli import native

OnStep = Callable[[list["native.Piece"]], None]
OnPrompt = Callable[[int, int], None]
"""Called before each piece of a prompt of up to 512 tokens: how many are read, of those that were not cached."""
NOTICEABLE_SECONDS = 0.5
KEEPING_RULES = (AcceptKind.greedy.value, AcceptKind.exact.value)
"""Accept rules that say what plain decoding says, whatever is drafted. With the others, a seed gives the same text
only with the same drafts."""
Opened = TypeVar("Opened")


class WritesNoText(MedusaError):
    """The model makes embeddings."""


@dataclass
class Engine:
    """A loaded model with its heads, tree and one session (one conversation)."""

    name: str
    model: native.Model
    heads: native.Heads | None
    plan: DraftPlan
    session: native.Session
    n_ctx: int
    """Context size in tokens: what was asked for, even if llama.cpp rounds it up."""
    options: EngineOptions
    small: native.Model | None = None
    """The model of plan.draft_model, or of plan.drafter where that is not in the model's own file."""
    sampling: ModelSampling = field(default_factory=ModelSampling)
    """The model's own sampling defaults."""
    heads_file: Path | None = None
    """Where the heads were loaded from."""

    @functools.cached_property
    def width_matters(self) -> str:
        """Why its text could depend on what is drafted; "" if greedy and exact text does not."""
        return width_matters(self.model, self.options)

    @property
    def tree_nodes(self) -> int:
        """Nodes of the heads' tree with the root; 1 without heads; for dynamic trees, of a chain of all heads."""
        return self.session.tree.size

    def cache_bytes(self, written: int) -> int:
        """Memory of the session's cache after `written` tokens: nearly all that a session takes."""
        beside = None if self.small is None else self.small.path
        return context_size.resident(self.model, self.options, self.session.n_ctx, written, beside)

    @property
    def last(self) -> native.Generation | None:
        """The newest generation, even if it was cut short."""
        return self.session.last

    def another(self) -> Engine:
        """An engine for another conversation: the same weights and drafts, a session of its own."""
        session = plan_session(self.model, self.heads, self.plan, self.options, self.small)
        return dataclasses.replace(self, session=session)

    @functools.cached_property
    def grammar(self) -> Grammar:
        """How its answers are read."""
        return prompts.grammar_of(self.model)

    def chat_tokens(
        self, messages: Sequence[Message], *, tools: Tools | None = None, thinking: Thinking = NOTHING_SAID
    ) -> list[int]:
        """Token ids of the conversation in the model's own template, up to where the assistant speaks."""
        return prompts.chat_tokens(self.model, messages, tools=tools, thinking=thinking)

    def raw_tokens(self, text: str) -> list[int]:
        """Token ids of a prompt without a template."""
        return self.model.tokenize(text, add_special=True, parse_special=True)

    def check(self, prompt: Sequence[int], settings: Settings) -> None:
        """OptionError when the prompt does not fit the context, or a bias names no token."""
        prompts.check_fits(prompt, self.n_ctx)
        if settings.logit_bias and (highest := max(settings.logit_bias)) >= self.model.n_vocab:
            text = "{logit_bias} names token {highest}, the vocabulary ends at {last}"
            raise OptionError(text, highest=highest, last=self.model.n_vocab - 1)

    def _text_is_free(self, settings: Settings) -> bool:
        """Whether the text is the same whatever is drafted."""
        return settings.accept_kind in KEEPING_RULES and not self.width_matters

    def generate(
        self,
        prompt: Sequence[int],
        settings: Settings,
        seed: int,
        on_step: OnStep | None,
        cancellation: native.Cancellation | None = None,
        on_prompt: OnPrompt | None = None,
        structure: native.Grammar | None = None,
        written: int = 0,
    ) -> native.Generation:
        """Decodes after `prompt` (token ids) until a stop. MedusaError as from check().

        structure: the grammar that the answer follows, of which the prompt's last `written` tokens are the beginning.
        """
        self.check(prompt, settings)
        return self.session.generate(
            prompt,
            max_tokens=settings.max_tokens,
            sampling=settings.sampling(seed),
            accept=settings.rule(),
            stop=settings.stop,
            ignore_eos=settings.ignore_eos,
            stop_loops=settings.stop_loops,
            watchdog=self.plan.watchdog and (settings.seed is None or self._text_is_free(settings)),
            cancellation=cancellation,
            on_step=on_step,
            on_prompt=on_prompt,
            grammar=structure,
            written=written,
            logprobs=-1 if settings.logprobs is None else settings.logprobs,
        )


def open_engine(
    reference: str,
    options: EngineOptions,
    draft: DraftOptions,
    console: Console,
    *,
    seeded: bool = False,
    most_cache: int | None = None,
) -> Engine:
    """Loads what `reference` and the options name; progress and remarks go to `console`.

    seeded: answers have a seed, so their text has to repeat: if it could depend on drafts, these repeat, too.

    most_cache: bytes of a full cache, if the options leave the context's size open (None: context_size.chosen()).

    MedusaError or NativeError, one line each, for everything that does not fit together.
    """
    # Everything cheap is checked before the model is loaded.
    named = drafting.named_tree(draft)
    tree = None if named is None else trees.resolve(named)
    ref = resolve(reference, draft, console)
    if (small := drafting.draft_file(draft)) is not None:
        ref, draft = _with_asked(small, ref, draft, console)

    def load(layers: int) -> Engine:
        return _open(ref, options, draft, layers, tree, console, seeded, most_cache)

    return within_memory(ref, options, draft, console, load)


def resolve(reference: str, draft: DraftOptions, console: Console) -> references.ModelRef:
    """The model's files, with what the options name or what is found to draft for it: heads, or else a drafter."""
    uses_heads = drafting.may_use_heads(draft)
    if uses_heads and draft.heads is not None:
        heads.check(draft.heads)
    ref = references.resolve(reference, console)
    if ref.embeds:
        raise WritesNoText(f"{ref.name} is an embedding model and writes no text: `medusa serve` serves it")
    if uses_heads:
        ref = heads.with_heads(ref, draft.heads, console)
    if drafting.may_use_drafter(draft) and (ref.heads is None or not uses_heads):
        return drafters.with_drafter(ref, console)
    return dataclasses.replace(ref, drafter=None)


def _with_asked(
    small: str, ref: references.ModelRef, draft: DraftOptions, console: Console
) -> tuple[references.ModelRef, DraftOptions]:
    """What --draft-model names: a model, or layers for further tokens, which then draft in place of heads."""
    path = references.resolve(small, console, drafts=True).path
    layers = drafters.asked_for(path)
    if layers is None:
        return ref, dataclasses.replace(draft, draft_model=str(path))
    if draft.heads:
        raise OptionError("{draft_model} cannot be combined with {heads}: leave one out")
    draft = dataclasses.replace(draft, draft_model=None, no_heads=True, no_drafter=False)
    return dataclasses.replace(ref, drafter=layers), draft


def _open(
    ref: references.ModelRef,
    options: EngineOptions,
    draft: DraftOptions,
    layers: int,
    tree: trees.AskedTree | None,
    console: Console,
    seeded: bool,
    most_cache: int | None,
) -> Engine:
    """The engine, with that many layers on devices (-1: all). OutOfMemoryError when they do not fit."""
    own = _uses_own_layers(draft, ref)
    model = load_model(ref.path, layers, console, options.device, drafts_for=ref.path if own else None)
    facts = model_facts(ref, model)
    if not model.can_draft and not draft.no_spec:
        console.print(f"note: no drafts: llama.cpp cannot check them with {model.architecture} models")
        draft, tree = dataclasses.replace(draft, no_spec=True), None
    loaded = heads_facts = tuned = None
    if (path := drafting.heads_to_load(draft, facts)) is not None:
        loaded = load_heads(model, path, ref, console)
        heads_facts = HeadsFacts(loaded.head_count, loaded.output_rows, loaded.tree)
    drafter = drafting.drafter(draft, ref, facts.holds_heads)
    measured = path if drafter is None else drafter.path
    if measured is not None and drafting.uses_profile(draft):
        from medusa_cli.decoding import profile

        tuned = profile.tuned(model, measured, options, console)
    beside = drafting.draft_file(draft)
    if drafter is not None and not own:
        beside = str(drafter.path)
    options = dataclasses.replace(options, ctx_size=context_size.chosen(model, options, most_cache, beside))
    repeats = draft.repeat_steps or (seeded and _text_follows_drafts(model, options, draft))
    plan = drafting.plan(draft, facts, heads_facts, tuned, tree=tree, repeats=repeats)
    if tree is not None:
        drafting.check_context(plan, options.ctx_size)
    if 0 < model.n_ctx_train < options.ctx_size:
        console.print(f"note: the model was trained on {model.n_ctx_train} tokens, the context is {options.ctx_size}")
        context_size.check(model, options, beside)
    small = None
    if plan.draft_model is not None:
        small = load_model(plan.draft_model.file, layers, console, options.device)
    elif plan.drafter is not None and not own:
        small = load_model(plan.drafter.ref.path, layers, console, options.device, drafts_for=ref.path)
    session = plan_session(model, loaded, plan, options, small)
    n_ctx = min(session.n_ctx, options.ctx_size)
    return Engine(ref.name, model, loaded, plan, session, n_ctx, options, small, _sampling(ref, console), path)


def _uses_own_layers(draft: DraftOptions, ref: references.ModelRef) -> bool:
    """Whether layers for further tokens draft that are in the model's own file."""
    from medusa_cli import native
    from medusa_cli.converters.heads import schema

    if ref.drafter is None or ref.drafter.path != ref.path:
        return False
    holds_heads = native.read_gguf(str(ref.path)).get(schema.VERSION_KEY) is not None
    return drafting.drafter(draft, ref, holds_heads) is not None


def _text_follows_drafts(model: native.Model, options: EngineOptions, draft: DraftOptions) -> bool:
    """Whether a seed's text could depend on what is drafted."""
    rule = draft.accept.value if draft.accept else KEEPING_RULES[0]
    return rule not in KEEPING_RULES or bool(width_matters(model, options))


def width_matters(model: native.Model, options: EngineOptions) -> str:
    """Why the bits of a forward pass depend on how many tokens it takes; "" if they do not.

    They do not if all matrices and attention run on our kernels. Tries a pass over one token.
    """
    from medusa_cli import native

    if model.gpu:
        return "the model runs on a GPU"
    kernels = native.kernel_info()
    if kernels["selected"] is None:
        return f"llama.cpp's kernels run: {kernels['reason']}"
    if model.is_recurrent:
        return "the model carries a recurrent state"
    if not (placement := model.placement):
        return "which kernels run is not known on this platform"
    for group in placement:
        if group.role in ("matrix", "experts") and group.buffer != kernels["buffer"]:
            return f"llama.cpp multiplies with the {group.type} weights"
    attention = native.attention_use(model, type_k=options.cache_type_k.value, type_v=options.cache_type_v.value)
    if attention.left or not attention.served:
        return f"attention is llama.cpp's: {attention.reason or 'it is not fused'}"
    return ""


def _sampling(ref: references.ModelRef, console: Console) -> ModelSampling:
    """What the model's file says about sampling. A remark names what is left out."""
    from medusa_cli import native

    lookup = demo.SAMPLING.get if ref.name == demo.DEMO else native.read_gguf(str(ref.path)).get
    found = model_sampling(lookup)
    for note in found.notes:
        console.print(f"note: {note}", markup=False)
    return found


def within_memory(
    ref: references.ModelRef,
    options: EngineOptions,
    draft: DraftOptions,
    console: Console,
    load: Callable[[int], Opened],
) -> Opened:
    """load(layers) with the layers that were asked for, else with the most that fit on the devices (-1: all of them).

    The most is an estimate; if that was too many, fewer are tried, down to none. A remark says how many were loaded.
    MedusaError, with what would fit, if those that were asked for do not.
    """
    from medusa_cli import native

    known = native.system_info()["devices"]
    used = offload.used_devices(offload.device_names(options.device, known), known)
    asked = options.n_gpu_layers
    if asked == 0 or not used:
        return load(asked)
    shape, context = _sizes(ref, options, draft)
    most = len(shape.layers) + 1
    if asked != offload.ALL_LAYERS:
        try:
            return load(asked)
        except native.OutOfMemoryError as error:
            fitting = " or ".join(offload.remedies(shape, context, used, min(asked, most)))
            text = "{n_gpu_layers} {asked} does not fit on {devices}; by estimate, " + fitting + " would"
            raise OptionError(text, asked=asked, devices=offload.described(used)) from error
    planned = offload.most_layers(shape, context, used)
    for layers in (planned, *offload.fewer(planned)):
        try:
            opened = load(offload.ALL_LAYERS if layers == most else layers)
        except native.OutOfMemoryError:
            if layers == 0:
                raise
            continue
        if layers < most:
            console.print(offload.remark(layers, most, used), markup=False, soft_wrap=True)
        return opened
    raise AssertionError("the CPU alone was not tried")


def _sizes(
    ref: references.ModelRef, options: EngineOptions, draft: DraftOptions
) -> tuple[offload.Shape, offload.Context]:
    """Sizes of the model with the heads that will be loaded, and of its context."""
    from medusa_cli import native
    from medusa_cli.converters.heads import schema

    file = native.read_gguf(str(ref.path))
    path = drafting.heads_file(draft, ref, schema.VERSION_KEY in file.metadata)
    tensors = native.read_gguf(str(path)).tensors if path is not None and path.is_file() else []
    of_heads = [tensor for tensor in tensors if schema.is_of_heads(tensor.name)]
    most = engine_default("n_ctx")
    trained = file.metadata.get(f"{file.metadata.get('general.architecture')}.context_length") or most
    tokens = options.ctx_size or min(trained, most)
    context = offload.Context(tokens, options.cache_type_k.value, options.cache_type_v.value)
    return offload.shape_of(file, of_heads), context


def model_facts(ref: references.ModelRef, model: native.Model) -> ModelFacts:
    """What a plan is made from."""
    return ModelFacts(ref, model.architecture, model.is_recurrent, devices.kind_of(model.backend), model.has_heads)


def open_session(
    model: native.Model,
    heads: native.Heads | None,
    tree: drafting.Tree | None,
    options: EngineOptions,
    *,
    lookup: bool = False,
    recycling: bool = False,
    **others: Any,
) -> native.Session:
    """A session in which `heads` fill `tree`; without a tree they draft nothing. others: for native.Session."""
    from medusa_cli import native

    fixed = dynamic = None
    if isinstance(tree, FixedTree):
        fixed = native.Tree(tree.choices)
        if heads is not None:
            fixed = fixed.clipped(heads.head_count, heads.output_rows, tree.max_nodes)
    elif tree is not None:
        dynamic = native.DynamicTree(calibration=tree.calibration, costs=tree.costs)
    return native.Session(
        model,
        heads,
        tree=fixed,
        dynamic=dynamic,
        n_ctx=options.ctx_size,
        n_threads=options.threads,
        type_k=options.cache_type_k.value,
        type_v=options.cache_type_v.value,
        lookup=lookup,
        recycling=recycling,
        **others,
    )


def plan_session(
    model: native.Model,
    heads: native.Heads | None,
    plan: DraftPlan,
    options: EngineOptions,
    small: native.Model | None = None,
) -> native.Session:
    """A session that drafts by the plan. small: as in Engine."""
    given: dict[str, Any] = {}
    if plan.drafter is not None:
        given = {"drafter": small or model, "draft_max": plan.drafter.most}
    if plan.draft_model is not None:
        given = {"draft_model": small, "draft_max": plan.draft_model.most}
    return open_session(model, heads, plan.tree, options, lookup=plan.lookup, recycling=plan.recycling, **given)


def load_model(
    path: Path,
    n_gpu_layers: int,
    console: Console,
    device: str | None = None,
    *,
    drafts_for: Path | None = None,
    embeds: bool = False,
) -> native.Model:
    """Loads the base model, with a progress bar on a terminal once it takes noticeable time.

    device: --device. drafts_for: with the layers that draft, for the model in this file. embeds: it makes
    embeddings.
    """
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

    from medusa_cli import native

    names = offload.device_names(device, native.system_info()["devices"])
    columns = (TextColumn("Loading {task.description}"), BarColumn(bar_width=None), TaskProgressColumn())
    bar = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
    task = bar.add_task(path.name, total=1.0)
    trial.run(path) if drafts_for is None else trial.run(drafts_for, path)
    begun = time.monotonic()

    def on_progress(done: float) -> None:
        if time.monotonic() - begun > NOTICEABLE_SECONDS:
            bar.start()
            bar.update(task, completed=done)

    try:
        return native.Model(
            str(path),
            n_gpu_layers=n_gpu_layers,
            on_progress=on_progress,
            devices=names,
            next_layers=drafts_for is not None,
            embeds=embeds,
        )
    finally:
        bar.stop()


def load_heads(model: native.Model, path: Path, ref: references.ModelRef, console: Console) -> native.Heads:
    """Loads heads for `model`. A base of another shape or vocabulary is an error, one of another name a remark."""
    if ref.heads and ref.heads.origin is references.Origin.shipped and not ref.heads.path.is_file():
        text = "the heads of {name} are missing ({path}): reinstall medusa-cli, or use {no_spec}"
        raise OptionError(text, name=ref.name, path=path)
    from medusa_cli import native
    from medusa_cli.converters.gguf.fingerprint import fingerprint
    from medusa_cli.converters.heads.schema import BASE_FINGERPRINT_KEY, BASE_NAME_KEY

    loaded = native.Heads(model, str(path))
    if path.samefile(model.path):
        return loaded
    wanted, base = native.read_gguf(str(path)).metadata, native.read_gguf(model.path).metadata
    made_for, found = wanted.get(BASE_FINGERPRINT_KEY), fingerprint(base)
    if made_for is not None and made_for != found:
        raise MedusaError(f"{path}: made for the base {made_for}, but {model.path} is {found}: choose the right pair")
    names = wanted.get(BASE_NAME_KEY), base.get("general.name")
    if all(names) and names[0] != names[1]:
        console.print(f"note: the heads were made for {names[0]}, this model is {names[1]}", markup=False)
    return loaded
