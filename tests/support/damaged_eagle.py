"""EAGLE-3 drafters that are wrong, each made from one of eagle_models by one change."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from architectures import TOKENS, Keys
from eagle_models import DRAFT_TOKENS, EAGLE_MODELS, LAYERS, draft_tokens, write_eagle
from gguf_edits import edited, tensor_names
from random_models import Tensors

Change = Callable[[Tensors], object]


@dataclass(frozen=True)
class Damage:
    """model: of EAGLE_MODELS. write: the damaged file. said: what its refusal must say, if that is obvious."""

    name: str
    model: str
    write: Callable[[Path], Path]
    said: str = ""


def _made(model: str, name: str, *, keys: Keys | None = None, change: Change | None = None, said: str = "") -> Damage:
    """With other keys, and shapes that follow them, or with other tensors."""

    def write(path: Path) -> Path:
        return write_eagle(path, model, keys=keys, change=change)

    return Damage(f"{model}: {name}", model, write, said)


def _edited(model: str, values: Keys, *, without: tuple[str, ...] = ()) -> Damage:
    """With keys that its tensors do not follow, or without some."""

    def write(path: Path) -> Path:
        source = write_eagle(path.with_suffix(".intact"), model)
        full = {f"eagle3.{key}": value for key, value in values.items()}
        result = edited(source, path, full, without=[f"eagle3.{key}" for key in without])
        source.unlink()
        return result

    what = ", ".join([*(f"{key} is {value}" for key, value in values.items()), *(f"no {key}" for key in without)])
    return Damage(f"{model}: {what}", model, write)


def _layer_ids() -> Iterator[Damage]:
    """A drafter reads the input of three layers, of which layer 0 has only the token."""
    wrong = (
        [0, 2, 3],
        [1, 2, LAYERS],
        [1, 2, LAYERS + 1],
        [1, 2, 600],
        [1, 2, 2**31 - 1],
        [-1, 2, 3],
        [1, 2, -(2**31)],
    )
    for ids in (*wrong, [1], [1, 2], [1, 2, 3, 3]):
        yield _made("plain", f"layers {ids}", keys={"target_layers": ids})
    yield _made("plain", "layers as floats", keys={"target_layers": [1.0, 2.0, 3.0]})
    yield _made("plain", "layers as strings", keys={"target_layers": ["1", "2", "3"]})
    yield _edited("plain", {"target_layers": 2})
    yield _edited("plain", {}, without=("target_layers",))


def _widths() -> Iterator[Damage]:
    for width in (128, 512):
        yield _made("plain", f"states of {width}", keys={"target_hidden_size": width})
    for width in (0, 128, 2**31 - 1, 2**31, 2**32 - 1):
        yield _edited("plain", {"target_hidden_size": width})
    yield _edited("plain", {}, without=("target_hidden_size",))
    for width in (128, 512):
        yield _made("plain", f"width {width}, tokens and output of the model", keys={"embedding_length": width})
        yield _made("residual", f"width {width}, output of the model", keys={"embedding_length": width})
        yield _made("fc", f"width {width}, tokens of the model", keys={"embedding_length": width})
    yield _edited("plain", {"norm_before_fc": True})


def _put(name: str, values: np.ndarray[Any, Any]) -> Change:
    return lambda tensors: tensors.update({name: values})


def _with_id(wrong: int) -> np.ndarray[Any, Any]:
    tokens = draft_tokens()
    tokens[DRAFT_TOKENS // 2] = wrong
    return tokens


def _vocabularies() -> Iterator[Damage]:
    tokens = draft_tokens()
    for kind in (np.int32, np.float32, np.float16):
        yield _made("d2t", f"ids of type {kind.__name__}", change=_put("d2t", tokens.astype(kind)))
    for wrong in (-1, TOKENS, 2**31, 2**32 + 1, 2**63 - 1, -(2**63)):
        yield _made("d2t", f"id {wrong}", change=_put("d2t", _with_id(wrong)))
    for size in (1, 100, DRAFT_TOKENS - 1):
        yield _made("d2t", f"{size} ids", change=_put("d2t", tokens[:size]))
    for more in (1, TOKENS):
        yield _made("d2t", f"{more} ids more", change=_put("d2t", np.concatenate([tokens, np.arange(more)])))
    yield _made("d2t", "ids in rows", change=_put("d2t", tokens.reshape(2, -1)))
    yield _made("plain", "a vocabulary smaller than the output matrix of the model", change=_put("d2t", tokens))
    yield _made("plain", "a vocabulary larger than that", change=_put("d2t", np.arange(TOKENS + 1) % TOKENS))
    rows = np.ones((TOKENS - 56, EAGLE_MODELS["residual"].width), np.float32)
    yield _made("residual", "embeddings of too few tokens", change=_put("token_embd.weight", rows))
    yield _made("fc", "output for too few tokens", change=_put("output.weight", rows))


def _other_tokens() -> Damage:
    def write(path: Path) -> Path:
        source = write_eagle(path.with_suffix(".intact"), "plain")
        names = [f"tok_{token}" for token in range(TOKENS)]
        names[200] = "other"
        result = edited(source, path, {"tokenizer.ggml.tokens": names})
        source.unlink()
        return result

    return Damage("plain: another token", "plain", write, "has another token 200")


def _second_layer(tensors: Tensors) -> None:
    for name in [name for name in tensors if name.startswith("blk.0.")]:
        tensors[name.replace("blk.0.", "blk.1.")] = tensors[name]


def _narrow_values(tensors: Tensors) -> None:
    tensors["blk.0.attn_v.weight"] = tensors["blk.0.attn_v.weight"][::2]


def _layers_and_heads() -> Iterator[Damage]:
    for count in (0, 2, 600, 2**32 - 1):
        yield _edited("plain", {"block_count": count})
    yield _made("plain", "two layers", keys={"block_count": 2}, change=_second_layer)
    for key in ("attention.head_count", "attention.head_count_kv"):
        for count in (0, 1, 3, 8, 2**31, 2**32 - 1):
            yield _edited("plain", {key: count})
    for key in ("attention.key_length", "attention.value_length"):
        for size in (0, 32, 128):
            yield _edited("plain", {key: size})
    yield _made("plain", "narrow values", keys={"attention.value_length": 32}, change=_narrow_values)
    for size in (63, 128):
        yield _edited("plain", {"rope.dimension_count": size})
    yield _edited("plain", {}, without=("attention.layer_norm_rms_epsilon",))
    yield _made("wide", "factors for fewer angles", change=_put("rope_freqs.weight", np.ones(16, np.float32)))


def _truncated() -> Iterator[Damage]:
    def cut(size: Callable[[int], int]) -> Callable[[Path], Path]:
        def write(path: Path) -> Path:
            data = write_eagle(path, "wide").read_bytes()
            path.write_bytes(data[: size(len(data))])
            return path

        return write

    sizes: dict[str, Callable[[int], int]] = {
        **{f"first {size} bytes": lambda _, size=size: size for size in (5, 24, 100, 5000)},  # type: ignore[misc]
        "first half": lambda size: size // 2,
        "without the end": lambda size: size - 100_000,
    }
    for name, size in sizes.items():
        yield Damage(f"wide: {name}", "wide", cut(size), "download it again")


DAMAGES = [*_layer_ids(), *_widths(), *_vocabularies(), _other_tokens(), *_layers_and_heads(), *_truncated()]
"""All of these are to be refused, in one line that names the file. Names are unique."""


REPLACEABLE = {("residual", "token_embd.weight"), ("fc", "output.weight"), ("wide", "rope_freqs.weight")}
"""(model, tensor): it works without this tensor, with the target's, or with none. Not so where the width differs, or
where the vocabulary is the drafter's own."""


def without_one(source: Path, folder: Path) -> Iterator[tuple[str, Path]]:
    """Each tensor of the drafter in `source`, and a copy in `folder` without it."""
    for tensor in tensor_names(source):
        yield tensor, edited(source, folder / f"{source.stem}-{tensor}.gguf", without=[tensor])
