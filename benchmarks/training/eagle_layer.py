"""Does a decoder layer with attention, trained on its own outputs (EAGLE-3, 2503.01840), draft better than Hydra heads?

    medusa train MODEL --kind hydra -o any.gguf --sidecar --recipe RECIPE       # tokens, seed, work_dir = "WORK"
    python benchmarks/training/eagle_layer.py MODEL --text WORK/*/text --work FOLDER --results FILE
        [--layers 1 14 28] [--epochs 2] [--batch 256] [--rate 7e-4] [--together ROWS]
    python benchmarks/training/eagle_layer.py MODEL --results FILE --table

The layer reads the states after three --layers (from 0) and the next token's embedding; below a root, its own states.
It begins as a copy of the model's top layer, with the last of the three states as its input. Four levels learn at once,
with the output rows and the teacher of Hydra heads. --together: a batch is of pieces of texts, up to so many rows each,
which attend to all that is before them; without it, of whole texts. inner_states.py trains Hydra heads on the same
text, and says how trees are judged. A run that was stopped goes on where it was; its CPU time is then that of the last
call.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from inner_states import HEADS, Material, inner_states, learned, options, read_material, show
from numpy.typing import NDArray
from streams import CPU, add_row, embeddings
from torch import Tensor, nn
from torch.nn import functional

from medusa_cli.models.base_file import embedding_rows
from medusa_cli.training.backbone.layers import Rotation, rms_norm
from medusa_cli.training.backbone.shape import BaseTensors, DecoderShape, read_shape
from medusa_cli.training.backbone.states import LayerStates
from medusa_cli.training.heads.fit import DraftsFit, FitPlan
from medusa_cli.training.heads.layers import HeadInputs
from medusa_cli.training.heads.rows import Contexts, DraftRows, FileRows, TextRows
from medusa_cli.training.mtp.layer import pair_texts
from medusa_cli.training.recipes import RECIPES
from medusa_cli.training.streams.layers import Piece, attend_texts
from medusa_cli.training.text import dataset

STATES, TYPICAL_TEXTS, ROWS_AT_ONCE = 3, 64, 600
FRESH, EMBEDDING = 0.1, 0.5
"""Sizes of random numbers beside what is copied: in the matrix that states go through, and of the part of attention's
matrices that reads embeddings."""


class EagleLayer(nn.Module):
    """Pair i: the token after token i, and the states after token i."""

    count = HEADS

    def __init__(self, tensors: BaseTensors, decoder: DecoderShape, sizes: Tensor) -> None:
        """sizes [3h]: typical ones of the states' numbers."""
        super().__init__()
        top = len(decoder.layers) - 1
        self.decoder, self.rope = decoder, decoder.layers[top].rope
        self.hidden = hidden = len(sizes) // STATES
        self.register_buffer("scale", 1 / sizes)
        self.scale: Tensor

        def copied(name: str, factor: float = 1.0) -> nn.Parameter:
            return nn.Parameter(torch.from_numpy(tensors.load(name)) * factor)

        def wide(part: str) -> nn.Parameter:
            matrix = torch.from_numpy(tensors.load(f"blk.{top}.{part}.weight"))
            return nn.Parameter(torch.cat((torch.randn_like(matrix) * matrix.std() * EMBEDDING, matrix), 1))

        own = sizes[-hidden:]
        unit = float(own.median())  # norms make the result independent of it
        self.fusion = nn.Parameter(torch.randn(hidden, STATES * hidden) * FRESH / (STATES * hidden) ** 0.5)
        with torch.no_grad():
            self.fusion[:, -hidden:] += torch.diag(own / unit)
        self.embedding_norm = nn.Parameter(torch.ones(hidden))
        self.state_norm, self.ffn_norm = (copied(f"blk.{top}.{part}_norm.weight") for part in ("attn", "ffn"))
        self.q, self.k, self.v = (wide(f"attn_{part}") for part in "qkv")
        self.mix, self.down = (copied(f"blk.{top}.{part}.weight", 1 / unit) for part in ("attn_output", "ffn_down"))
        self.gate, self.up = (copied(f"blk.{top}.ffn_{part}.weight") for part in ("gate", "up"))
        self.output_norm = copied("output_norm.weight")

    def output(self, shared: Tensor) -> Tensor:
        return shared

    def forward(self, inputs: HeadInputs, dtype: torch.dtype = torch.float32) -> Tensor:
        """[count, B, h] float32. inputs: whole texts, with a context of pairs [P, 4h]."""
        assert inputs.embedded is not None
        matrices = (self.fusion, self.q, self.k, self.v, self.mix, self.gate, self.up, self.down)
        self._cast = {id(matrix): matrix.to(dtype) for matrix in matrices}  # once for all levels
        embedded = inputs.embedded.to(dtype)
        texts = pair_texts(inputs, embedded)
        state = self._linear(self.fusion, texts.states * self.scale, dtype).float()
        x = self._read(texts.tokens, state, dtype)
        past = self._keys_values(x, self._rotation(texts.places), dtype)
        state, x = state[texts.roots], x[texts.roots]
        own_keys, own_values, left = list[Tensor](), list[Tensor](), list[Tensor]()
        for depth in range(self.count):
            rotation = self._rotation(texts.places[texts.roots] + depth)
            if depth > 0:
                state = left[-1]
                x = self._read(embedded[:, depth], state, dtype)
                keys, values = self._keys_values(x, rotation, dtype)
                own_keys.append(keys)
                own_values.append(values)
            none = past[0].new_zeros(len(state), 0, *past[0].shape[1:])
            own = [torch.stack(parts, dim=1) if parts else none for parts in (own_keys, own_values)]
            left.append(self._left(state, x, rotation, (own[0], own[1]), past, texts.pieces, dtype))
        return rms_norm(torch.stack(left), self.output_norm, self.decoder.eps)

    def _read(self, embedded: Tensor, state: Tensor, dtype: torch.dtype) -> Tensor:
        """[R, 2h]: what attention reads."""
        eps = self.decoder.eps
        parts = rms_norm(embedded, self.embedding_norm, eps), rms_norm(state, self.state_norm, eps)
        return torch.cat(parts, dim=1).to(dtype)

    def _keys_values(self, x: Tensor, rotation: Rotation, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """[R, heads_kv, head_size] each."""
        k, v = (self._linear(w, x, dtype).unflatten(1, (self.decoder.heads_kv, -1)) for w in (self.k, self.v))
        return rotation(k).to(dtype), v

    def _left(
        self,
        state: Tensor,
        x: Tensor,
        rotation: Rotation,
        own: tuple[Tensor, Tensor],
        past: tuple[Tensor, Tensor],
        pieces: Sequence[Piece],
        dtype: torch.dtype,
    ) -> Tensor:
        """[R, h]: the next level's states. own: keys and values of each row's draft."""
        shape, depth = self.decoder, own[0].shape[1]
        q = rotation(self._linear(self.q, x, dtype).view(-1, shape.heads, shape.head_size)).to(dtype)
        own_k, own_v = (part.flatten(0, 1) for part in own)
        mixed = attend_texts(q, (own_k, own_v), past, pieces, depth, shape.query_scale)
        state = state + self._linear(self.mix, mixed, dtype).float()
        y = rms_norm(state, self.ffn_norm, shape.eps)
        inner = functional.silu(self._linear(self.gate, y, dtype)) * self._linear(self.up, y, dtype)
        return state + self._linear(self.down, inner, dtype).float()

    def _rotation(self, positions: Tensor) -> Rotation:
        return Rotation(self.decoder.head_size, self.decoder.adjacent_pairs, self.rope, None, positions)

    def _linear(self, weight: Tensor, x: Tensor, dtype: torch.dtype) -> Tensor:
        return functional.linear(x.to(dtype), self._cast[id(weight)])


class EagleFit(DraftsFit):
    at_once = ROWS_AT_ONCE

    def __init__(self, plan: FitPlan, layer: EagleLayer) -> None:
        super().__init__(plan, layer, layer, CPU)


def answer_rows(states: LayerStates, tokens: int) -> NDArray[np.float16]:
    """[tokens, 3h]: the states before each token of an answer."""
    rows = np.lib.format.open_memmap(states.folder.parent / "wide.npy", "w+", np.float16, (tokens, states.width))
    for number, text in enumerate(states.texts):
        inner = states.read(number)[text.answer_at :]
        rows[text.span.start : text.span.start + len(inner)] = inner
        if number % 200 == 0:
            print(f"states of text {number} of {len(states.texts)}", flush=True)
    return rows


def pairs_of(material: Material, states: LayerStates) -> TextRows:
    """Rows, and for a row the pairs of its text before it, prompt included."""
    base = material.base
    matrix = torch.from_numpy(embedding_rows(base, np.arange(base.n_vocab)).astype(np.float16))
    places = {text.span.start: number for number, text in enumerate(states.texts)}
    tokens = torch.from_numpy(material.tokens).long()
    rows = FileRows([answer_rows(states, len(tokens))], CPU)

    def of_prompt(start: int) -> Tensor:
        number = places[start]
        text = states.texts[number]
        before = torch.from_numpy(np.array(states.read(number)[: text.answer_at]))
        return torch.cat((matrix[torch.from_numpy(text.fed[1 : text.answer_at + 1]).long()], before), dim=1)

    contexts = Contexts(
        material.corpus.starts(), of_prompt, lambda at: torch.cat((matrix[tokens[at]], rows.gather(at)), dim=1)
    )
    return TextRows(rows, embeddings(base, material.tokens), material.teacher, contexts)


def train(name: str, arguments: Namespace) -> None:
    material = read_material(arguments)
    states = inner_states(material, arguments.layers, arguments.work)
    source, output = pairs_of(material, states), material.output
    some = [states.read(number)[text.answer_at :] for number, text in enumerate(states.texts[:TYPICAL_TEXTS])]
    sizes = torch.from_numpy(np.sqrt(np.mean(np.square(np.concatenate(some).astype(np.float32)), axis=0)))
    examples = dataset.examples_of(material.tokens, material.split.train, material.t2d, HEADS)
    if arguments.together:
        examples = examples.in_pieces(arguments.together)
    recipe = replace(RECIPES["mtp"], rate=arguments.rate, batch=arguments.batch, depth_weight=0.8)
    steps = int(arguments.epochs * len(examples.rows) / recipe.batch)
    plan = FitPlan(states.key["states"], "eagle", "teacher", HEADS, 0, steps, recipe.batch, "cpu", recipe, len(output))
    tensors = BaseTensors(material.base.path)
    torch.manual_seed(plan.seed)
    layer = EagleLayer(tensors, read_shape(tensors.header), sizes)
    fit, checkpoint = EagleFit(plan, layer), arguments.work / f"{name}.pt"
    fit.restore(checkpoint)
    add_row(arguments.results, learned(name, material, fit, DraftRows(source, examples, output), checkpoint))


def parser() -> ArgumentParser:
    parser = options(__doc__)
    parser.add_argument("--layers", type=int, nargs=STATES, default=[1, 14, 28])
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--rate", type=float, default=7e-4)
    parser.add_argument("--together", type=int, default=0)
    return parser


def main() -> None:
    arguments = parser().parse_args()
    torch.set_num_threads(1)
    if not arguments.table:
        name = f"{arguments.epochs:g} rounds, batch {arguments.batch}, rate {arguments.rate:g}"
        train(name + (f", {arguments.together} rows together" if arguments.together else ""), arguments)
    show(arguments.results, "one layer")


if __name__ == "__main__":
    main()
