"""`medusa serve`: a model behind the interfaces of OpenAI and Anthropic, and a page to chat on."""

from __future__ import annotations

import ipaddress
from collections.abc import Collection, Iterable
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from medusa_cli.commands.command_line import ModelArgument, grouped
from medusa_cli.decoding.options import CHAT_TEMPERATURE, DraftOptions, EngineOptions, SamplingOptions
from medusa_cli.support.errors import MedusaError, OptionError

if TYPE_CHECKING:
    from rich.console import Console

MIB = 1 << 20
CACHE_TYPES = ("cache_type_k", "cache_type_v")


def _option(name: str, **told: Any) -> Any:
    return typer.Option(name, rich_help_panel="Server", **told)


@grouped
def serve(
    model: ModelArgument,
    *,
    host: Annotated[str, _option("--host", metavar="ADDRESS", help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, _option("--port", metavar="N", min=0, max=65535, help="Port; 0: any free one.")] = 8080,
    api_key: Annotated[
        str | None,
        _option(
            "--api-key",
            metavar="KEY",
            envvar="MEDUSA_API_KEY",
            show_envvar=True,
            help="Only answer clients that send this key.",
        ),
    ] = None,
    proxy: Annotated[
        list[str] | None,
        _option("--proxy", metavar="ADDRESS", help="A proxy whose X-Forwarded-For names the client; repeatable."),
    ] = None,
    queue: Annotated[int, _option("--queue", metavar="N", min=0, help="How many requests may wait.")] = 16,
    cache_memory: Annotated[
        int,
        _option(
            "--cache-memory",
            metavar="MIB",
            min=0,
            help="Memory for the prompt caches of all conversations; one is always kept.",
        ),
    ] = 1024,
    share_caches: Annotated[
        bool,
        _option(
            "--share-caches",
            help="Use prompt caches of other clients, too. They can then tell what others have asked.",
        ),
    ] = False,
    cache_dir: Annotated[
        Path | None,
        _option("--cache-dir", metavar="DIR", help="Keep prompt caches in this folder, across restarts."),
    ] = None,
    cache_disk: Annotated[
        int, _option("--cache-disk", metavar="MIB", min=1, help="Space for the prompt caches in --cache-dir.")
    ] = 4096,
    grace: Annotated[
        int, _option("--grace", metavar="SECONDS", min=0, help="Time for a running answer to finish after Ctrl-C.")
    ] = 10,
    engine: EngineOptions,
    draft: DraftOptions,
    sampling: SamplingOptions,
) -> None:
    """Serve a model through the APIs of OpenAI and Anthropic, with a chat page. Options are defaults of requests.

    An embedding model serves /v1/embeddings.
    """
    from medusa_cli.decoding import settings
    from medusa_cli.support import console

    settings.from_options(sampling, draft, CHAT_TEMPERATURE)  # reports contradictions before a model is loaded
    check_installed()
    from medusa_cli.api.arguments import ENGINE_NAMES
    from medusa_cli.server import serve as life
    from medusa_cli.server.app import Limits
    from medusa_cli.server.engine.messages import Caches, Load
    from medusa_cli.server.engine.remote import Engine

    messages = console.messages()
    check_key(api_key, host, port, messages)
    proxies = networks(proxy or [])
    folder = prepared(cache_dir, cache_disk * MIB, messages)
    bound = life.listen(host, port)
    loading = {**_values([engine, draft], ENGINE_NAMES), "repeatable": settings.is_seed(sampling.seed)}
    told: dict[str, Any] = {
        "host": host, "api_key": api_key, "limits": Limits(queue), "grace": grace, "proxies": proxies,
    }  # fmt: skip
    kept = {name: value for name, value in vars(engine).items() if name not in CACHE_TYPES}
    caches = Caches(cache_memory * MIB, share_caches, folder, cache_disk * MIB, api_key or "")
    load = Load(model, loading, kept, refused_for_embeddings(model, engine, draft, sampling), caches)
    with bound, Engine(load) as opened:
        if opened.width:
            running, what = life.build(opened, {}, **told), "/v1/embeddings for programs"
        else:
            usual = opened.sampling_defaults.get("temperature", settings.chat_temperature(opened.name))
            chosen = settings.from_options(sampling, draft, usual)
            defaults = {**answer_defaults(sampling, draft), "temperature": chosen.temperature}
            running, what = life.build(opened, defaults, **told), "a chat page, and /v1 for programs"
        started = f"{opened.name} at {life.url_of(bound, host)}: {what}. Ctrl-C stops."
        messages.print(started, markup=False, soft_wrap=True)
        life.run(running, bound)


def check_installed() -> None:
    """MedusaError if the extra is missing."""
    from medusa_cli.support.errors import MedusaError

    try:
        import fastapi  # noqa: F401
        import prometheus_client  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise MedusaError(f"{error.name} is missing: pip install 'medusa-cli[serve]'") from error


def check_key(key: str | None, host: str, port: int, messages: Console) -> None:
    """Warns if everybody in the network could use the model. typer.BadParameter for a key that nobody can send."""
    from medusa_cli.server.guards import is_loopback

    if key is not None and (not key.strip() or key != key.strip() or not key.isprintable()):
        raise typer.BadParameter("it is empty, or has spaces around it", param_hint="--api-key")
    if key is None and not is_loopback(host):
        messages.print(
            f"WARNING: {host} can be reached from other machines, and there is no --api-key: anyone reaching "
            f"port {port} can use this model.",
            style="bold red",
            markup=False,
            soft_wrap=True,
        )


def prepared(folder: Path | None, budget: int, messages: Console) -> str:
    """The folder of --cache-dir, with a remark if some caches cannot be used. MedusaError if it cannot be written."""
    if folder is None:
        return ""
    from medusa_cli.decoding.saved_caches import CacheStore
    from medusa_cli.support.files import expanded

    store = CacheStore(expanded(folder), budget)
    try:
        remark = store.prepare()
    except MedusaError as error:
        raise MedusaError(f"--cache-dir {error}") from error
    if remark:
        messages.print(f"note: {remark}", markup=False, soft_wrap=True)
    return str(store.folder.resolve())


def networks(addresses: list[str]) -> list[str]:
    """Addresses and networks in one form. typer.BadParameter for anything else."""
    try:
        return [str(ipaddress.ip_network(address, strict=False)) for address in addresses]
    except ValueError as error:
        raise typer.BadParameter(f"{error}: give an address or a network", param_hint="--proxy") from error


def answer_defaults(*groups: Any) -> dict[str, Any]:
    """The options of a command that an answer takes, if they were given."""
    from medusa_cli.api.arguments import ANSWER_NAMES

    defaults = _values([type(group)() for group in groups], ANSWER_NAMES)
    return {name: value for name, value in _values(groups, ANSWER_NAMES).items() if value != defaults[name]}


def _values(groups: Iterable[Any], names: Collection[str]) -> dict[str, Any]:
    values = {name: value for group in groups for name, value in vars(group).items() if name in names}
    return {name: value.value if isinstance(value, Enum) else value for name, value in values.items()}


def refused_for_embeddings(model: str, engine: EngineOptions, *others: Any) -> str:
    """Why a model that writes no text is refused: an option that concerns only those that do; "" if there is none."""
    given = {name: value for name, value in vars(engine).items() if name in CACHE_TYPES}
    usual = vars(type(engine)())
    for group in others:
        given |= vars(group)
        usual |= vars(type(group)())
    for name, value in given.items():
        if value != usual[name]:
            text = f"{{model}} is an embedding model, which {{{name}}} does not concern: leave it out"
            return str(OptionError(text, model=model))
    return ""
