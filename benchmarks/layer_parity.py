"""How near the top layers in torch are to the engine's.

    python benchmarks/layer_parity.py MODEL [--layers 8] [--tokens 2000] [--threads 1]

Passages of the package through both: how often the likeliest token is the same, with and without those that are tied
within 0.1 logits; the KL of what follows from the states after the final norm; the error of each layer alone, of what
it adds (the last layer: of the states after the final norm), the median over the rows of one passage.
"""

from __future__ import annotations

import argparse

import numpy as np
from rich.console import Console


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=2000)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()

    import torch

    from medusa_cli import native
    from medusa_cli.models import references
    from medusa_cli.models.base_file import output_rows, read_base
    from medusa_cli.prompts.seeds.passages import PASSAGES
    from medusa_cli.training.backbone import layers, loss, parity, shape, weights

    torch.set_num_threads(args.threads)
    path = references.resolve(args.model, Console(stderr=True)).path
    model, base, tensors = native.Model(str(path)), read_base(path), weights.BaseTensors(path)
    decoder = shape.read_shape(tensors.header)
    top = layers.TopLayers(tensors, decoder, len(decoder.layers) - args.layers, torch.device("cpu"))
    output = torch.from_numpy(output_rows(base, np.arange(base.n_vocab)))
    texts = parity.first_tokens([model.tokenize(text) for text in PASSAGES], args.tokens)
    reader = native.StatesReader(
        model, max(map(len, texts)), tap_layer=top.first - 1, outputs=True, n_threads=args.threads
    )
    same, tied, kl, count = 0, 0, 0.0, sum(map(len, texts))
    with torch.no_grad():
        for text in texts:
            states = reader.read(text)
            assert states.after_layer is not None
            made = top(torch.from_numpy(parity.as_stored(states.after_layer)).float(), [len(text)])
            same += parity.agreeing(made, output, states.best, 0.0)
            tied += parity.agreeing(made, output, states.best, parity.TIE)
            engine = torch.from_numpy(np.asarray(states.post_norm))
            kl += float(loss.compare(engine, made, output, torch.tensor(states.best))[:, 0].sum())
    print(f"{count} tokens: same likeliest {same / count:.2%}, ties aside {tied / count:.2%}, KL {kl / count:.4f}")
    errors = parity.layer_errors(model, top, texts[0], args.threads)
    print("layers: " + ", ".join(f"{number} {error:.4f}" for number, error in errors))


if __name__ == "__main__":
    main()
