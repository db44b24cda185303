"""How fast backbone and heads are trained together, from made-up states.

    python benchmarks/joint_rate.py MODEL [--layers 8] [--kind hydra] [--steps 3] [--threads 0]

One step: three texts of 60 tokens of prompt and 128 of answer through the top layers and heads, forward and back. Peak
memory is that of the process.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from pathlib import Path

import numpy as np
from rich.console import Console

TEXTS, PROMPT, ANSWER, DRAFT_VOCABULARY = 3, 60, 128, 8192


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--kind", default="hydra")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--threads", type=int, default=0)
    args = parser.parse_args()

    from medusa_cli.models import references
    from medusa_cli.training.heads.torch_setup import require_torch

    require_torch()
    import torch

    if args.threads:
        torch.set_num_threads(args.threads)
    wall, cpu = measure(references.resolve(args.model, Console(stderr=True)).path, args.layers, args.kind, args.steps)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 20)
    rate = TEXTS * ANSWER / wall
    print(f"{rate:.0f} answer tokens a second ({wall:.2f} s a step, {cpu:.2f} s of CPU), {peak:.1f} GiB at most")


def measure(path: Path, layer_count: int, kind: str, steps: int) -> tuple[float, float]:
    """Seconds of the fastest step, and of the process in the one that took it least."""
    import torch

    from medusa_cli import native
    from medusa_cli.models.base_file import output_rows, read_base
    from medusa_cli.training.backbone import fit, layers, recipe, shape, states, weights
    from medusa_cli.training.heads.layers import Heads, HeadShape
    from medusa_cli.training.heads.recipe import RECIPES
    from medusa_cli.training.heads.rows import FileRows, TextRows, TokenEmbeddings
    from medusa_cli.training.heads.torch_setup import matmul_dtype, pick_device
    from medusa_cli.training.text.dataset import Span, examples_of

    device, base, rng = pick_device(), read_base(path), np.random.default_rng(0)
    tensors = weights.BaseTensors(path)
    decoder = shape.read_shape(tensors.header)
    first = len(decoder.layers) - layer_count
    top = layers.TopLayers(tensors, decoder, first, device)
    output = torch.from_numpy(output_rows(base, np.arange(base.n_vocab))).to(device, matmul_dtype(device))
    tokens = rng.integers(0, DRAFT_VOCABULARY, TEXTS * ANSWER).astype(np.int32)
    spans = [Span(at * ANSWER, ANSWER, str(at)) for at in range(TEXTS)]
    prompts = {span.start: np.arange(PROMPT, dtype=np.int32) for span in spans}
    rows_each = PROMPT + ANSWER - 1
    made = rng.standard_normal((TEXTS * (PROMPT + ANSWER), base.n_embd)).astype(np.float16)
    with tempfile.TemporaryDirectory() as folder:
        stored = states.LayerStates(
            Path(folder) / "states",
            states.whole_texts(spans, prompts, tokens),
            first - 1,
            base.n_embd,
            native.Model(str(path)),
            1,
        )
        for number in range(TEXTS):
            begin = number * rows_each
            np.save(Path(folder) / "states" / f"{number:06d}.npy", made[begin : begin + rows_each])
        rows = FileRows([made[: len(tokens)]], device)
        embeddings = TokenEmbeddings(rows.gather(torch.arange(len(tokens))), np.arange(len(tokens)))
        t2d = np.arange(base.n_vocab, dtype=np.int32)
        data = fit.JointData(
            stored, TextRows(rows, embeddings), examples_of(tokens, spans, t2d, 4), tokens, output,
            output[:DRAFT_VOCABULARY],
        )  # fmt: skip
        heads = Heads(HeadShape(kind, 4, base.n_embd, RECIPES[kind].blocks)).to(device)
        plan = fit.JointPlan("", kind, "truth", 4, "distill", first, 0, steps, device.type, recipe.RECIPES["distill"])
        run = fit.JointFit(plan, top, heads, device)
        times, used = [], []
        for _ in range(steps):
            before = time.process_time()
            times.append(run.timed_step(data))
            used.append(time.process_time() - before)
    return min(times), min(used)


if __name__ == "__main__":
    main()
