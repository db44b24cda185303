"""How near the top layers in torch are to the engine's.

    python benchmarks/layer_parity.py MODEL [--layers 8] [--tokens 2000] [--threads 1] [--as-f16]

Passages of the package through both: how often the likeliest token is the same, with and without those that are tied
as the gate of `medusa train --joint` allows; the error of a logit (standard deviation over the vocabulary, the median
over places); the KL of what follows from the states after the final norm; the error of each layer alone, of what it
adds (the last layer: of the states after the final norm), the median over the rows of one passage. --as-f16: the same
weights as F16, with which the engine does not round activations to 8 bits.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np
from rich.console import Console

from medusa_cli import native
from medusa_cli.models import references

F16 = 1  # general.file_type


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=2000)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--as-f16", action="store_true")
    args = parser.parse_args()
    path = references.resolve(args.model, Console(stderr=True)).path
    with tempfile.TemporaryDirectory() as folder:
        if args.as_f16:
            plain = Path(folder) / "f16.gguf"
            native.quantize_model(str(path), str(plain), file_type=F16, allow_requantize=True, pure=True)
            path = plain
        compare(path, args.layers, args.tokens, args.threads)


def compare(path: Path, layer_count: int, token_count: int, threads: int) -> None:
    import torch

    from medusa_cli.models.base_file import output_rows, read_base
    from medusa_cli.prompts.seeds.passages import PASSAGES
    from medusa_cli.training.backbone import layers, loss, parity, shape, weights

    torch.set_num_threads(threads)
    model, base, tensors = native.Model(str(path)), read_base(path), weights.BaseTensors(path)
    decoder = shape.read_shape(tensors.header)
    top = layers.TopLayers(tensors, decoder, len(decoder.layers) - layer_count, torch.device("cpu"))
    output = torch.from_numpy(output_rows(base, np.arange(base.n_vocab)))
    texts = parity.first_tokens([model.tokenize(text) for text in PASSAGES], token_count)
    tapped = top.first - 1 if top.first else None
    reader = native.StatesReader(model, max(map(len, texts)), tap_layer=tapped, outputs=True, n_threads=threads)
    allowed, errors = parity.tolerance(tensors), []
    same, tied, kl, count = 0, 0, 0.0, sum(map(len, texts))
    with torch.no_grad():
        for text in texts:
            states = reader.read(text)
            entered = torch.from_numpy(parity.entering(top, text, states.after_layer)).float()
            made = top(entered, [len(text)])
            same += parity.agreeing(made, output, states.best, 0.0)
            tied += parity.agreeing(made, output, states.best, allowed.tie)
            engine = torch.from_numpy(np.asarray(states.post_norm))
            errors.append(((made - engine) @ output.T).std(dim=1))
            kl += float(loss.compare(engine, made, output, torch.tensor(states.best))[:, 0].sum())
    print(
        f"{count} tokens: same likeliest {same / count:.2%}, within {allowed.tie:g} of it {tied / count:.2%}, "
        f"error of a logit {float(torch.cat(errors).median()):.3f}, KL {kl / count:.5f}"
    )
    alone = parity.layer_errors(model, top, texts[0], threads)
    print("layers: " + ", ".join(f"{number} {error:.4f}" for number, error in alone))


if __name__ == "__main__":
    main()
