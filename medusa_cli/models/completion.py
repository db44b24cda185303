"""What the shell offers for a model or heads: names that are here, and GGUF files."""

from __future__ import annotations

from medusa_cli.support.files import expanded

FIRST = ("demo",)


def complete_models(incomplete: str) -> list[str]:
    """Everything that `incomplete` may become; nothing where that cannot be told."""
    try:
        from medusa_cli.models import cached

        known = [model.name for model in cached.models()]
    except Exception:  # a shell shows what is raised here between the person's own words
        known = []
    names = list(dict.fromkeys([*FIRST, *known]))
    return [name for name in names if name.startswith(incomplete)] + complete_files(incomplete)


def complete_files(incomplete: str) -> list[str]:
    """GGUF files and folders whose paths begin so."""
    folder, _, start = incomplete.rpartition("/")
    try:
        entries = sorted(expanded(folder + "/" if folder or incomplete.startswith("/") else ".").iterdir())
    except OSError:
        return []
    prefix = incomplete[: len(incomplete) - len(start)]
    wanted = [entry for entry in entries if entry.name.startswith(start) and (start or not entry.name.startswith("."))]
    folders = [f"{prefix}{entry.name}/" for entry in wanted if entry.is_dir()]
    return [f"{prefix}{entry.name}" for entry in wanted if entry.suffix.lower() == ".gguf"] + folders


def complete_installed(incomplete: str) -> list[str]:
    """Names of what `medusa rm` removes that begin so."""
    try:
        from medusa_cli.models import cached, heads

        known = [model.name for model in cached.models()] + [one.name for one in heads.installed()]
    except Exception:  # as above
        known = []
    return [name for name in known if name.startswith(incomplete)]
