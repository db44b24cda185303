"""One process with a GPU that is none (or without it), one answer: run by tests, prints JSON.

    python device_run.py '{"device": true, "model": "base.gguf", ...}'

The device must be there before the first model is loaded, hence a process of its own.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from medusa_cli import native

PROMPT = "<|im_start|>user\nWrite a short story about a cat.<|im_end|>\n<|im_start|>assistant\n"


def run(**order: Any) -> dict[str, Any]:
    """What main() finds out, in a process with one thread and llama.cpp's own kernels.

    model: path. heads: path or None. device: whether there is a GPU. behaviour: of _native_testing.set_device, from the
    start; later: the same, once a model and its heads are loaded. gpu_layers: -1 for all. tree: choices, "dynamic" or
    None. tokens: to generate. start: of a dynamic tree, what it knows.
    temperature: 0 by default. top_k, accept: of the sampler, the rule by name. prompt: text. devices:
    names, None for llama.cpp's choice. isa: kernels other than llama.cpp's, for what runs on the CPU. In place of an
    answer, weigh_cpu: plain decoding on the CPU against the device, as `medusa tune` does; conversation: several
    answers of different kinds. script: which steps draft, over and over. splits: those of each graph that libllama
    makes are counted, "splits" of the result. drafter: "lookahead", "draft_model" (the model itself). explain: whether
    greedy text equals that of plain decoding, up to numerics, is "explained" of the result.
    """
    command = [sys.executable, __file__, json.dumps(order)]
    environment = {**os.environ, "MEDUSA_ISA": order.get("isa", "off"), "GGML_BACKEND_PATH": ""}
    if order.get("splits"):
        environment |= {"GGML_SCHED_DEBUG": "1", "MEDUSA_DEBUG": "1"}
    done = subprocess.run(
        command, cwd=Path(__file__).parent, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    if order.get("splits"):
        numbers = [int(number) for number in re.findall(r"^## SPLIT #(\d+)", done.stderr, re.MULTILINE)]
        starts = [at for at, number in enumerate(numbers) if number == 0]
        result["splits"] = [end - start for start, end in zip(starts, [*starts[1:], len(numbers)], strict=True)]
    return result


def memory_free() -> int:
    """Bytes on the device; 0 without one."""
    from medusa_cli import native

    devices = native.system_info()["devices"]
    return sum(device["memory_free"] for device in devices if device["backend"] == "PRETENDED")


def weigh_cpu(order: dict[str, Any]) -> dict[str, Any]:
    """{"cpu_speedup", "lines"}: what `medusa tune` finds and says."""
    from rich.console import Console

    from medusa_cli.decoding.options import EngineOptions
    from medusa_cli.tuning import report, run

    opened = run.open_model(order["model"], order["heads"], EngineOptions(threads=1), Console(quiet=True))
    prompts = [opened.model.tokenize(f"Once upon a time, {number}") for number in range(4)]
    run.ANSWER_TOKENS = 24  # short answers will do
    speedup = run.cpu_speedup(opened, prompts, 0.0, Console(quiet=True))
    return {"cpu_speedup": speedup, "lines": report.other_device({"cpu_speedup": speedup})}


def conversation(session: native.Session, prompt: list[int]) -> dict[str, Any]:
    """{"answers": (tokens, stop reason) of each, "shapes": how many nodes its steps had and accepted, "reasons": why
    they were on the host}: the last one fills the context.
    """
    from medusa_cli import native

    sampled, penalized = native.Sampling(temperature=1.0, seed=3), native.Sampling(repeat_penalty=1.3)
    answers: list[Any] = []
    shapes: list[Any] = []
    reasons = []
    for number, sampling in enumerate([None, sampled, None, penalized, None, None]):
        steps, cancellation = 0, native.Cancellation()

        def on_step(
            pieces: list[native.Piece], cancels: bool = number == 4, ended: native.Cancellation = cancellation
        ) -> None:
            nonlocal steps
            steps += 1
            if cancels and steps == 5:
                ended.cancel()

        limit = -1 if number == 5 else 30
        reasons.append(session.host_reason(sampling=sampling))
        answer = session.generate(
            prompt,
            max_tokens=limit,
            sampling=sampling,
            ignore_eos=True,
            cancellation=cancellation,
            on_step=on_step,
        )
        answers.append((list(answer.tokens), answer.stop_reason))
        shapes.append([(len(tree), len(path)) for tree, path in zip(answer.parents, answer.paths, strict=True)])
        prompt = [*prompt, *answer.tokens[:20]]
    return {"answers": answers, "shapes": shapes, "reasons": reasons}


def drafter(order: dict[str, Any], model: native.Model) -> dict[str, Any]:
    """Arguments of a session that drafts otherwise."""
    from medusa_cli import native

    if order.get("drafter") == "lookahead":
        return {"lookahead": native.Lookahead(4, 3, 4)}
    if order.get("tree") == "dynamic":
        return {"dynamic": native.DynamicTree(**order.get("start", {}))}
    if order.get("drafter") == "draft_model":
        return {"draft_model": model, "draft_max": 3, "dynamic": native.DynamicTree()}
    return {}


def explained(model: native.Model, drafted: native.Generation, order: dict[str, Any]) -> bool:
    """Whether the drafted text is that of plain decoding, or differs first by numerics alone."""
    sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
    import lossless

    from medusa_cli import native

    prompt = model.tokenize(order.get("prompt", PROMPT), add_special=False, parse_special=True)
    session = native.Session(model, None, n_ctx=order.get("n_ctx", 512), n_threads=1)
    plain = session.generate(prompt, max_tokens=len(drafted.tokens), ignore_eos=True)
    return lossless.compare(model, prompt, plain, drafted).explained


def main(order: dict[str, Any]) -> dict[str, Any]:
    import _native_testing as testing

    from medusa_cli import native

    if order.get("device", True):
        testing.pretend_device()
        testing.set_device(**order.get("behaviour", {}))
    if order.get("weigh_cpu"):
        return weigh_cpu(order)
    try:
        free = memory_free()
        model = native.Model(order["model"], n_gpu_layers=order.get("gpu_layers", -1), devices=order.get("devices"))
        heads = native.Heads(model, order["heads"]) if order.get("heads") else None
        tree = order.get("tree")
        session = native.Session(
            model,
            heads,
            tree=native.Tree(tree) if isinstance(tree, list) else None,
            lookup=order.get("lookup", False),
            recycling=order.get("recycling", False),
            **drafter(order, model),
            n_ctx=order.get("n_ctx", 512),
            n_threads=1,
        )
    except native.NativeError as error:
        return {"error": str(error)}
    used = free - memory_free()
    testing.take_device_operators()
    if "later" in order:
        testing.set_device(**order["later"])
    testing.take_device_counters()
    if "script" in order:
        testing.script(session, order["script"])
    if order.get("conversation"):
        return conversation(session, model.tokenize(order["prompt"], add_special=False))
    failure = None
    sampling = native.Sampling(temperature=order.get("temperature", 0.0), top_k=order.get("top_k", 40), seed=1)
    accept = native.Accept(order["accept"]) if "accept" in order else None
    try:
        session.generate(
            model.tokenize(order.get("prompt", PROMPT), add_special=False, parse_special=True),
            max_tokens=order.get("tokens", 32),
            sampling=sampling,
            accept=accept,
            ignore_eos=True,
            watchdog="script" in order,
        )
    except native.NativeError as error:
        failure = str(error)
    last = session.last
    assert last is not None
    result = {
        "gpu": model.gpu,
        "memory_used": used,
        "devices": {use.name: [use.layers, use.output] for use in model.devices},
        "backend": model.backend,
        "device": model.device,
        "tokens": list(last.tokens),
        "prompt_tokens": last.prompt_tokens,
        "stats": last.stats,
        "nodes": [len(parents) for parents in last.parents],
        "counters": testing.take_device_counters(),
        "operators": testing.take_device_operators(),
        "reused_graphs": testing.reused_graphs(session),
        "host_reason": session.host_reason(sampling=sampling, accept=accept),
        "stop_reason": last.stop_reason,
        "error": failure,
    }
    if order.get("explain"):
        result["explained"] = explained(model, last, order)
    return result


if __name__ == "__main__":
    print(json.dumps(main(json.loads(sys.argv[1]))))
