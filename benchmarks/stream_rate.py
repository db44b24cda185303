"""How fast streams are trained, from made-up states, and how fast the states that they start from are read.

    python benchmarks/stream_rate.py MODEL [--layers 4] [--streams 4] [--draft-vocab 8192] [--seconds 20] [--threads 1]
                                     [--positions 500000]

Rates are of the process's CPU time. Training: whole steps of the recipe, forward and back. Reading: texts of as many
tokens as training makes up, through the layers below. Peak memory is that of the process.
"""

from __future__ import annotations

import argparse
import resource
import time
from pathlib import Path

import numpy as np
import torch
from rich.console import Console

from medusa_cli import native
from medusa_cli.models import references
from medusa_cli.models.base_file import read_base
from medusa_cli.training.backbone.layers import TopLayers
from medusa_cli.training.backbone.shape import read_shape
from medusa_cli.training.backbone.weights import BaseTensors
from medusa_cli.training.streams import rate
from medusa_cli.training.streams.fit import StreamsPlan
from medusa_cli.training.streams.recipe import DEFAULT_LAYERS, RECIPE

LENGTH = rate.PROMPT + rate.ANSWER


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--layers", type=int, default=DEFAULT_LAYERS)
    parser.add_argument("--streams", type=int, default=4)
    parser.add_argument("--draft-vocab", type=int, default=8192)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--positions", type=int, default=500_000)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    path = references.resolve(arguments.model, Console(stderr=True)).path
    trained, read = training_rate(path, arguments), reading_rate(path, arguments)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 20)
    hours = arguments.positions / trained / 3600
    print(f"{trained:.1f} positions per CPU second, {arguments.positions:,} in {hours:.1f} CPU hours")
    print(f"{read:.0f} tokens read per CPU second; {peak:.1f} GiB at most")


def training_rate(path: Path, arguments: argparse.Namespace) -> float:
    tensors, base = BaseTensors(path), read_base(path)
    shape = read_shape(tensors.header)
    first, device = len(shape.layers) - arguments.layers, torch.device("cpu")
    top = TopLayers(tensors, shape, first, device)
    plan = StreamsPlan("", "teacher", arguments.streams, first, 0, 1 << 30, RECIPE.batch, device.type, RECIPE)
    seconds, clock = arguments.seconds, time.process_time
    return rate.measure_rate(top, plan, arguments.draft_vocab, base.n_vocab, device, seconds=seconds, clock=clock)


def reading_rate(path: Path, arguments: argparse.Namespace) -> float:
    shape, rng = read_shape(BaseTensors(path).header), np.random.default_rng(0)
    below, model = len(shape.layers) - arguments.layers - 1, native.Model(str(path), n_gpu_layers=0)
    reader = native.StatesReader(model, LENGTH, tap_layer=below, outputs=False, n_threads=arguments.threads)
    text = rng.integers(0, model.n_vocab, LENGTH).tolist()
    reader.read(text)
    count, begin = 0, time.process_time()
    while time.process_time() - begin < arguments.seconds / 4:
        reader.read(text)
        count += 1
    return count * LENGTH / (time.process_time() - begin)


if __name__ == "__main__":
    main()
