"""What the shell offers for a model or heads: names on this machine, and GGUF files."""

from __future__ import annotations

from medusa_cli.support.files import expanded


def complete_models(incomplete: str) -> list[str]:
    """Everything that `incomplete` may become; nothing if that cannot be determined."""
    names = dict.fromkeys(["demo", *_names_here()])
    return [name for name in names if name.startswith(incomplete)] + complete_files(incomplete)


def complete_files(incomplete: str) -> list[str]:
    """GGUF files and folders whose paths begin with it."""
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
    """Names for `medusa rm` that begin with it."""
    return [name for name in _names_here(with_heads=True) if name.startswith(incomplete)]


def _names_here(with_heads: bool = False) -> list[str]:
    try:
        from medusa_cli.models import cached, heads

        names = [model.name for model in cached.models()]
        return names + [one.name for one in heads.installed()] if with_heads else names
    except Exception:  # a shell would show the traceback in the middle of the person's own words
        return []
