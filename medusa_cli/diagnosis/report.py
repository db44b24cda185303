"""Facts about this machine, this installation and, when asked, a model. Says what is wrong even if nothing loads."""

from __future__ import annotations

import os
import platform
import shutil
import time
from typing import TYPE_CHECKING, Any

from medusa_cli import __version__
from medusa_cli.decoding import trees
from medusa_cli.decoding.options import DraftOptions, EngineOptions
from medusa_cli.decoding.profile import STOCK
from medusa_cli.models import assets, demo
from medusa_cli.support.errors import describe, is_reportable
from medusa_cli.support.files import expanded
from medusa_cli.support.machine import cpu_name, memory
from medusa_cli.support.versions import DISTRIBUTION, LLAMA_CPP_PYTHON_PIN, installed_llama_cpp_python

if TYPE_CHECKING:
    from rich.console import Console

    from medusa_cli import native
    from medusa_cli.decoding.runtime import Engine

TREE_NODES = 16
"""Nodes of the tree for which transfers are reported."""
MEASURING_SECONDS = 0.25
"""How long the engine takes to see what other programs use."""
KERNELS_OFF = "off"
"""The MEDUSA_ISA that keeps llama.cpp's kernels."""
REPACKED = "CPU_REPACK"
"""Where llama.cpp keeps weights that it has packed for its own loops."""


def diagnose() -> dict[str, Any]:
    """The report behind `medusa doctor`, JSON-ready. "problems" holds one line each; empty when all is well."""
    problems: list[str] = []
    found: dict[str, Any] = {
        "medusa": __version__,
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        "llama_cpp_python": installed_llama_cpp_python(),
        "llama_cpp_python_wanted": LLAMA_CPP_PYTHON_PIN,
        **_engine(problems),
        "cpu": cpu_name(),
        "cores_logical": os.cpu_count() or 1,
    }
    found["memory_total"], found["memory_available"] = memory()
    found["demo"] = _demo(problems)
    found["problems"] = problems
    return found


def _engine(problems: list[str]) -> dict[str, Any]:
    """What the engine says about itself; if it does not load, the reason goes to `problems`."""
    try:
        from medusa_cli import native

        info, kernels = native.system_info(), native.kernel_info()
        if kernels["selected"] is None and kernels["requested"] not in ("", KERNELS_OFF):  # asked for, but not there
            problems.append(f"{STOCK}'s kernels run, not ours: {kernels['reason']}")
        return {
            "libllama": native.libllama_version(),
            "cores_physical": native.physical_cores(),
            "threads": _threads(),
            "devices": info["devices"],
            "cpu_features": info["cpu_features"],
            "kernels": {key: kernels[key] for key in ("selected", "reason", "supported", "attention", "types")},
        }
    except Exception as error:  # whatever is broken, the rest of the report is wanted
        said = " ".join(f"{type(error).__name__}: {error}".split())
        reason = describe(error) if is_reportable(error) else f"the engine does not load: {said}"
        problems.append(reason)
        nothing = dict.fromkeys(("libllama", "cores_physical", "threads"))
        return {**nothing, "devices": [], "cpu_features": [], "kernels": None}


def _threads() -> dict[str, Any]:
    """{"now", "cores_of_others"}: how many threads an answer would begin with, and what other programs use."""
    from medusa_cli import native

    now, others = native.thread_advice()
    if others is None:  # too early to tell, or never known here
        time.sleep(MEASURING_SECONDS)
        now, others = native.thread_advice()
    return {"now": now, "cores_of_others": others}


def diagnose_model(reference: str, console: Console) -> dict[str, Any]:
    """Loads what `reference` names and tells which kernels multiply with its weights, JSON-ready.

    {"name", "description", "weights": [{"role", "type", "buffer", "tensors", "bytes", "kernels", "remark"}],
    "attention": {"kernels", "remark"}, "drafts": {"shape", "remark", "by": what drafts in a chat},
    "context": {"tokens", "trained", "bytes"}: what a chat gets without -c, what the model was trained on, a full cache,
    "seeds": why a text could depend on what is drafted, None if it does not, "sampling": the file's own defaults,
    "runs_on": [{"device", "layers", "output", "heads", "bytes"}], "layers",
    "to_host": {"nodes", "logits", "states", "heads", "total", "host_reason", "in_graph", "grown", "sampled"} or None};
    no weights and nothing to run on if the platform does not tell. to_host: bytes of a step, None if everything runs on
    the CPU; host_reason: why the host accepts and drafts, "" if the model's own graph does; then bytes of the graph's
    steps: in_graph: at temperature 0 with a fixed tree; grown: with a dynamic one (None without heads); sampled: at
    another temperature with the fixed tree. The model is opened as a chat opens it.
    MedusaError or NativeError when the model does not load or cannot decode a token.
    """
    from medusa_cli import native
    from medusa_cli.decoding import runtime

    engine = runtime.open_engine(reference, EngineOptions(), DraftOptions(), console)
    name, model, heads = engine.name, engine.model, engine.heads
    seeds, sampling = engine.width_matters or None, engine.sampling.by_flag
    full, by = engine.cache_bytes(engine.n_ctx), _drafts_by(engine)
    context = {"tokens": engine.n_ctx, "trained": model.n_ctx_train, "bytes": full}
    del engine  # the memory of its session is needed below
    info = native.kernel_info()
    weights = [
        {
            "role": group.role,
            "type": group.type,
            "buffer": group.buffer,
            "tensors": group.tensors,
            "bytes": group.nbytes,
            "kernels": info["selected"] if group.buffer == info["buffer"] else STOCK,
            "remark": _remark(group, info),
        }
        for group in model.placement
    ]
    attention = _attention(native.attention_use(model), info)
    return {
        "name": name,
        "description": model.description,
        "weights": weights,
        "attention": attention,
        "context": context,
        "drafts": {**_DRAFTS[native.draft_memory(model)], "by": by},
        "seeds": seeds,
        "sampling": sampling,
        "layers": model.n_layer,
        "runs_on": [
            {
                "device": use.name,
                "layers": use.layers,
                "output": use.output,
                "heads": use.output and heads is not None,
                "bytes": use.nbytes,
            }
            for use in model.devices
        ],
        "to_host": _to_host(model, heads) if model.gpu else None,
    }


def _drafts_by(engine: Engine) -> list[str]:
    """What drafts in a chat with this engine."""
    plan, found = engine.plan, []
    if engine.heads is not None and plan.tree is not None:
        found.append(f"{engine.heads.head_count} {engine.heads.kind} heads")
    if plan.drafter is not None:
        where = "its file" if engine.small is None else plan.drafter.ref.path.name
        found.append(f"{plan.drafter.ref.label} in {where}")
    return found + ["prompt lookup"] * plan.lookup + ["recycling"] * plan.recycling


def _to_host(model: native.Model, heads: native.Heads | None) -> dict[str, Any]:
    """Bytes of a step with the heads' own tree, or a built-in one, cut to TREE_NODES; without heads, with a chain."""
    from medusa_cli import native

    if heads is None:
        tree = native.Tree([[0] * depth for depth in range(1, TREE_NODES)])
    else:
        choices = heads.tree or trees.named(trees.DEFAULT_GPU).choices
        tree = native.Tree(choices).clipped(heads.head_count, heads.output_rows, TREE_NODES)
    told: dict[str, Any] = {"recycled": tree.size}
    if heads is not None:
        told = {name: getattr(heads, name) for name in ("kind", "head_count", "output_rows", "has_prefix")}
    sent = native.step_transfers(tree, model.n_vocab, model.n_embd, **told)
    recycles = heads is None and model.can_draft
    session = native.Session(model, heads, tree=None if heads is None else tree, recycling=recycles, n_ctx=1)
    return {
        "nodes": tree.size,
        **{name: sent[name] for name in ("logits", "states", "heads")},
        "total": sent["logits"] + sent["states"] + sent["heads"],
        "host_reason": session.host_reason(),
        "in_graph": sent["greedy"],
        "grown": sent["grown"] if heads else None,
        "sampled": sent["sampled"],
    }


_DRAFTS: dict[str, dict[str, str | None]] = {
    "cells": {"shape": "tree", "remark": None},
    "none": {"shape": None, "remark": "llama.cpp cannot check any with this architecture"},
    "snapshots": {"shape": "chain", "remark": "a recurrent state, which steps back over refused drafts"},
    "copies": {
        "shape": "chain",
        "remark": "a recurrent state: after a refused draft, its accepted tokens are decoded again",
    },
}
"""Keys: native.draft_memory()."""


def _attention(use: native.AttentionUse, info: dict[str, Any]) -> dict[str, str | None]:
    """Whose attention runs, and if not ours, why."""
    if info["selected"] is None:
        return {"kernels": STOCK, "remark": f"kernels are off: {info['reason']}"}
    if use.served and use.left:
        return {"kernels": info["selected"], "remark": f"{use.left} layers are left to {STOCK}: {use.reason}"}
    if use.served:
        return {"kernels": info["selected"], "remark": None}
    none_seen = "no fused attention ran on the processor"
    return {"kernels": STOCK, "remark": use.reason or none_seen}


def _remark(group: native.Placement, info: dict[str, Any]) -> str | None:
    """Why our kernels do not multiply with these weights; None if they do."""
    if group.role == "embedding":
        return "only looked up"
    if group.role == "other":
        return "norms, biases and the like"
    if group.buffer == info["buffer"]:
        return None
    if not group.buffer.startswith("CPU"):
        return f"in {group.buffer}"
    if info["selected"] is None:
        return f"kernels are off: {info['reason']}"
    if group.buffer == REPACKED:
        return f"{STOCK}'s loops depend on the tokens of a pass: drafts may change the text"
    reason = "shapes that the kernels do not support" if group.type in info["types"] else "no kernel for this type"
    return f"{reason}: one column at a time"


def _demo(problems: list[str]) -> dict[str, Any]:
    given = os.environ.get(demo.DEMO_VARIABLE)
    path = expanded(given) if given else assets.cache_path()
    cached = path.is_file() and path.stat().st_size == assets.DEMO_BASE.size
    if given and not cached:
        problems.append(
            f"{demo.DEMO_VARIABLE}={given} is not {assets.DEMO_BASE.file_name}: unset it, or give that file"
        )
    if not demo.DEMO_HEADS.is_file():
        problems.append(f"the demo's heads are missing ({demo.DEMO_HEADS}): reinstall {DISTRIBUTION}")
    existing = next(folder for folder in (path, *path.absolute().parents) if folder.exists())
    if not given and not cached and not os.access(existing, os.W_OK):
        problems.append(f"{existing} cannot be written: set XDG_CACHE_HOME to a folder you can write to")
    return {"path": str(path), "cached": cached, "disk_free": shutil.disk_usage(existing).free}
