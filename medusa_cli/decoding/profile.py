"""Tuned trees in the user's data folder: one JSON file per model, heads and machine that they were measured with."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from medusa_cli import __version__
from medusa_cli.decoding import devices, trees
from medusa_cli.decoding.drafting import Tuned
from medusa_cli.decoding.options import EngineOptions
from medusa_cli.support import machine, paths
from medusa_cli.support.errors import MedusaError
from medusa_cli.support.files import content_hash as content_hash

if TYPE_CHECKING:
    from rich.console import Console

    from medusa_cli import native

FORMAT = 5
STOCK = "llama.cpp"
"""What kernels other than ours are called."""

Key = dict[str, Any]


def folder() -> Path:
    """Where the profiles are kept."""
    return paths.data_dir() / "profiles"


def key(model: native.Model, heads_file: Path, options: EngineOptions) -> Key:
    """What a profile depends on: base and heads, processor, devices, threads, kernels, build, versions."""
    from medusa_cli import native
    from medusa_cli.converters.gguf.fingerprint import fingerprint

    kernels = native.kernel_info()
    on_cpu = model.backend == devices.CPU_BACKEND
    used = [device.name for device in model.devices]
    others = [
        device["description"]
        for device in native.system_info()["devices"]
        if device["type"] != "cpu" and (device["name"] in used or not used)
    ]
    return {
        "base": fingerprint(native.read_gguf(model.path).metadata),
        "base_content": content_hash(Path(model.path)),
        "heads": content_hash(heads_file),
        "cpu": machine.cpu_name(),
        "backend": model.backend,
        "device": "" if on_cpu else model.device,
        "devices": [] if on_cpu else others,
        "gpu_layers": 0 if on_cpu else options.n_gpu_layers,
        "threads": options.threads or native.physical_cores(),
        "kernels": kernels["selected"] or STOCK,
        "module": content_hash(native.module_file()),
        "medusa": __version__,
        "llama_cpp_python": native.LLAMA_CPP_PYTHON,
    }


def path_of(key: Key) -> Path:
    """The file of a profile."""
    digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:12]
    return folder() / f"{key['base']}-{digest}.json"


def check_writable() -> None:
    """MedusaError when save() could not write. Creates nothing."""
    existing = next(place for place in (folder(), *folder().parents) if place.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK):
        raise MedusaError(f"{existing} cannot be written: set XDG_DATA_HOME to a folder you can write to")


def save(profile: dict[str, Any]) -> Path:
    """Writes `profile` under its "key": whole, or not at all. MedusaError when the folder cannot be written."""
    from medusa_cli.support.atomic import atomic_file

    path = path_of(profile["key"])
    paths.made(path.parent)
    with atomic_file(path) as file:
        file.write(json.dumps(profile, ensure_ascii=False, indent=1).encode() + b"\n")
    return path


def load(key: Key) -> dict[str, Any] | None:
    """The profile stored for exactly this key; None if there is none. MedusaError if its file is damaged."""
    path = path_of(key)
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise MedusaError(f"{path}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise damaged(path) from error
    if not isinstance(found, dict) or "tree" not in found:
        raise damaged(path)
    if found.get("profile_format") != FORMAT or found.get("key") != key:
        return None
    trees.checked(found["tree"], str(path))
    try:
        tuned_of(found)
    except (KeyError, TypeError, ValueError) as error:
        raise damaged(path) from error
    return found


def pairs() -> set[tuple[str, str]]:
    """The (model, heads) that were tuned with this release on this machine, by content_hash()."""
    found = set()
    for path in folder().glob("*.json"):
        try:
            key = json.loads(path.read_text(encoding="utf-8"))["key"]
            if (key["medusa"], key["cpu"]) == (__version__, machine.cpu_name()):
                found.add((str(key["base_content"]), str(key["heads"])))
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            continue
    return found


def tuned_of(profile: dict[str, Any]) -> Tuned:
    """What a profile says about drafting. KeyError, TypeError or ValueError if it is not a profile."""
    known = profile["dynamic_start"]
    calibration = [[float(share) for share in row] for row in known["calibration"]]
    start = trees.DynamicStart(calibration, [(int(nodes), float(cost)) for nodes, cost in known["costs"]])
    return Tuned(profile["tree"], bool(profile["dynamic"]), start, bool(profile["recycling"]))


def damaged(path: Path) -> MedusaError:
    """The error for a file that `medusa tune` did not write."""
    return MedusaError(f"{path} is not a profile of `medusa tune`: delete it, or tune again")


def tuned(model: native.Model, heads_file: Path, options: EngineOptions, console: Console) -> Tuned | None:
    """What was tuned for this model on this machine, if anything.

    A damaged profile is a remark on `console`: it must not keep a model from running.
    """
    if not folder().is_dir():
        return None
    try:
        found = load(key(model, heads_file, options))
    except MedusaError as error:
        console.print(f"note: {error}", markup=False, soft_wrap=True)
        return None
    return None if found is None else tuned_of(found)
