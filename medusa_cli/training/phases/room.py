"""Whether the text can be written on the devices at all: an estimate, before anything is loaded."""

from __future__ import annotations

from medusa_cli import native
from medusa_cli.decoding import offload
from medusa_cli.support.errors import MedusaError

from ..options import TrainOptions
from ..text.generate import longest_answer


def check_room(options: TrainOptions) -> None:
    """MedusaError, with what would fit, where the layers do not fit even with the shortest of prompts."""
    known = native.system_info()["devices"]
    used = offload.used_devices(None, known)
    if options.n_gpu_layers == 0 or not used or any(device.free is None for device in used):
        return
    file = native.read_gguf(str(options.model))
    shape = offload.shape_of(file)
    most = len(shape.layers) + 1
    count = most if options.n_gpu_layers < 0 else min(options.n_gpu_layers, most)
    context = int(file.metadata.get(f"{file.metadata.get('general.architecture')}.context_length", 0))
    answer = longest_answer(context, options.text)
    if fits(shape, answer, options.parallel, count, used):
        return
    most_layers = max(n for n in range(count) if fits(shape, answer, options.parallel, n, used))
    remedies = [f"-ngl {most_layers}"]
    fewer = (texts for texts in range(options.parallel - 1, 0, -1) if fits(shape, answer, texts, count, used))
    if (texts := next(fewer, None)) is not None:
        remedies.append(f"--parallel {texts}")
    raise MedusaError(
        f"{options.model} does not fit on {offload.described(used)} with {options.parallel} texts at a time; by "
        f"estimate, {' or '.join(remedies)} would"
    )


def fits(shape: offload.Shape, answer: int, texts: int, count: int, devices: list[offload.Device]) -> bool:
    """Into all the free memory there is: a margin is for what one could do without."""
    context = offload.Context(answer + 1, sequences=texts)
    return offload.needed(shape, context, count) <= sum(device.free or 0 for device in devices)
