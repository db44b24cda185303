"""Decoder layers in torch, in the layout of a GGUF: texts of any lengths in one batch, side by side as rows. And their
adapters (LoRA, Hu et al. 2021): small matrices whose product is added to a frozen weight."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from .shape import BIASES, MATRICES, NORMS, OPTIONAL_NORMS, ROPE_FACTORS, BaseTensors, DecoderShape, LayerShape, Rope

SHORT_TEXT = 256
"""Rows up to which products of whole matrices are faster on a CPU than torch's flash attention and its gradient."""

Project = Callable[[str, Tensor, Tensor], Tensor]
"""(name of a matrix, its weight [out, in], input [R, in]) -> [R, out]; the place for adapters."""


def plain(name: str, weight: Tensor, x: Tensor) -> Tensor:
    return functional.linear(x, weight)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return functional.rms_norm(x.float(), (x.shape[-1],), weight, eps)


def as_autocast(x: Tensor) -> Tensor:
    """x in the type of autocast's products, if it is on: what several products read is converted once."""
    device = x.device.type
    return x.to(torch.get_autocast_dtype(device)) if torch.is_autocast_enabled(device) else x


class Dropout(torch.autograd.Function):
    """x with zeros, each with a given probability (to one part in 32,768); what is left is not scaled.

    The bits of several masks come from one draw of torch's generator: torch's own dropout, which draws for each
    element, took a fifth of a step on a CPU.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, probability: float) -> Tensor:
        bits, kind = 8 * x.element_size(), {2: torch.int16, 4: torch.int32}[x.element_size()]
        draws = torch.empty(-(-x.numel() * bits // 64), dtype=torch.int64, device=x.device).random_(-(2**63), None)
        number = draws.view(kind)[: x.numel()].view(x.shape).bitwise_right_shift_(1)
        limit = round((1 - probability) * 2 ** (bits - 1)) - 2 ** (bits - 2)
        kept = number.sub_(limit).bitwise_right_shift_(bits - 1)  # all bits of a number below the limit, else none
        ctx.save_for_backward(kept)
        return Dropout.masked(x, kept)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return Dropout.masked(gradient, *ctx.saved_tensors), None

    @staticmethod
    def masked(x: Tensor, kept: Tensor) -> Tensor:
        return (x.view(kept.dtype) & kept).view(x.dtype)


class Rotation:
    """Rotary embeddings of rows at given positions, over the first `size` numbers of each head."""

    def __init__(self, size: int, adjacent_pairs: bool, rope: Rope, factors: Tensor | None, positions: Tensor) -> None:
        half = torch.arange(0, size, 2, device=positions.device, dtype=torch.float64)
        frequency = rope.scale * rope.base ** (-half / size)
        if rope.factors and factors is not None:
            frequency = frequency / factors.double()
        angle = positions.double()[:, None] * frequency
        self.cos, self.sin = angle.cos().float()[:, None, :], angle.sin().float()[:, None, :]
        self.size, self.adjacent_pairs = size, adjacent_pairs

    def __call__(self, x: Tensor) -> Tensor:
        """x [R, heads, head_size]."""
        x, rest = x[..., : self.size], x[..., self.size :]
        if self.adjacent_pairs:
            first, second = x[..., 0::2], x[..., 1::2]
            turned = torch.stack((first * self.cos - second * self.sin, first * self.sin + second * self.cos), dim=-1)
            return torch.cat((turned.flatten(-2), rest), dim=-1)
        first, second = x.chunk(2, dim=-1)
        return torch.cat((first * self.cos - second * self.sin, first * self.sin + second * self.cos, rest), dim=-1)


class Layer(nn.Module):
    """One layer; its weights are frozen."""

    def __init__(self, tensors: BaseTensors, shape: DecoderShape, number: int, device: torch.device) -> None:
        super().__init__()
        self.shape, self.number = shape, number
        self.of: LayerShape = shape.layers[number]
        names = [f"{part}.weight" for part in (*MATRICES, *NORMS, *OPTIONAL_NORMS)]
        names += [f"{part}.bias" for part in BIASES]
        self.weights = {
            name: torch.from_numpy(tensors.load(f"blk.{number}.{name}")).to(device)
            for name in names
            if tensors.has(f"blk.{number}.{name}")
        }
        self._rounded: dict[str, Tensor] = {}  # weights as autocast wants them, which keeps none of frozen ones

    def forward(self, x: Tensor, lengths: Sequence[int], rotation: Rotation, project: Project = plain) -> Tensor:
        """x [R, hidden]: rows of texts of `lengths`, in order; rotation: of these rows."""
        texts = zip(*(part.split(list(lengths)) for part in self.attention_parts(x, rotation, project)), strict=True)
        return self.leave(x, torch.cat([self.attend(*text) for text in texts]), project)

    def leave(self, x: Tensor, attended: Tensor, project: Project = plain) -> Tensor:
        """The part after attention. x [R, hidden]: what entered the layer; attended [R, heads * head_size]."""
        w = self.weights
        y = self._linear("attn_output", attended, project)
        x = x + (self._norm(y, "post_attention_norm") if "post_attention_norm.weight" in w else y)
        y = as_autocast(self._norm(x, "ffn_norm"))
        gate = self._linear("ffn_gate", y, project)
        gate = functional.gelu(gate, approximate="tanh") if self.shape.gelu else functional.silu(gate)
        y = self._linear("ffn_down", gate * self._linear("ffn_up", y, project), project)
        return x + (self._norm(y, "post_ffw_norm") if "post_ffw_norm.weight" in w else y)

    def attention_parts(self, x: Tensor, rotation: Rotation, project: Project = plain) -> tuple[Tensor, Tensor, Tensor]:
        """Queries [R, heads, head_size], keys and values [R, heads_kv, head_size] of x [R, hidden]."""
        shape, rows, x = self.shape, len(x), as_autocast(self._norm(x, "attn_norm"))
        q = self._linear("attn_q", x, project).view(rows, shape.heads, shape.head_size)
        k = self._linear("attn_k", x, project).view(rows, shape.heads_kv, shape.head_size)
        v = self._linear("attn_v", x, project).view(rows, shape.heads_kv, shape.head_size)
        if "attn_q_norm.weight" in self.weights:
            q, k = self._norm(q, "attn_q_norm"), self._norm(k, "attn_k_norm")
        return rotation(q), rotation(k), v

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Causal attention within one text: [T, heads, head_size] each -> [T, heads * head_size]."""
        window, mask = self.of.window, None
        if len(q) <= SHORT_TEXT and (window is None or len(q) <= window) and q.device.type == "cpu":
            return self._attend_short(q, k, v)
        if window is not None and len(q) > window:
            ones = torch.ones(len(q), len(q), dtype=torch.bool, device=q.device)
            mask = ones.tril() & ~ones.tril(-window)
        q, k, v = (part.transpose(0, 1)[None] for part in (q, k, v))
        out = functional.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=mask is None, scale=self.shape.query_scale, enable_gqa=True
        )
        return out[0].transpose(0, 1).flatten(1)

    def _attend_short(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """The same by whole matrices of scores."""
        rows, of_a_key = len(q), self.shape.heads // self.shape.heads_kv
        q = q.view(rows, self.shape.heads_kv, of_a_key, -1).permute(1, 2, 0, 3).flatten(1, 2)
        k, v = k.transpose(0, 1), v.transpose(0, 1)  # [heads_kv, T, head_size]
        scores = (q @ k.transpose(1, 2)).float() * self.shape.query_scale
        later = torch.ones(rows, rows, dtype=torch.bool).triu(1).repeat(of_a_key, 1)
        weights = scores.masked_fill(later, -torch.inf).softmax(dim=-1)
        out = (weights.to(v.dtype) @ v).unflatten(1, (of_a_key, rows))
        return out.permute(2, 0, 1, 3).flatten(1)

    def _linear(self, part: str, x: Tensor, project: Project) -> Tensor:
        weight, x = self.weights[f"{part}.weight"], as_autocast(x)
        if x.dtype != weight.dtype:
            if part not in self._rounded:
                self._rounded[part] = weight.to(x.dtype)
            weight = self._rounded[part]
        y = project(f"blk.{self.number}.{part}", weight, x)
        bias = self.weights.get(f"{part}.bias")
        return y if bias is None else y + bias

    def _norm(self, x: Tensor, part: str) -> Tensor:
        return rms_norm(x, self.weights[f"{part}.weight"], self.shape.eps)


class TopLayers(nn.Module):
    """The layers from `first` on and the final norm.

    embeddings [V, hidden]: what the model's first layer reads, with the model's own scale; None if it is not included.
    """

    def __init__(self, tensors: BaseTensors, shape: DecoderShape, first: int, device: torch.device) -> None:
        super().__init__()
        self.tensors, self.shape, self.first = tensors, shape, first
        self.layers = [Layer(tensors, shape, number, device) for number in range(first, len(shape.layers))]
        self.output_norm = torch.from_numpy(tensors.load("output_norm.weight")).to(device)
        self.embeddings: NDArray[np.float32] | None = None
        if first == 0:
            self.embeddings = tensors.load("token_embd.weight") * np.float32(shape.embedding_scale)
        self.factors = torch.from_numpy(tensors.load(ROPE_FACTORS)).to(device) if tensors.has(ROPE_FACTORS) else None

    def embedded(self, tokens: Sequence[int]) -> Tensor:
        """[T, hidden]: what the model's first layer reads, if it is included."""
        assert self.embeddings is not None
        return torch.from_numpy(self.embeddings[np.asarray(tokens)])

    @cached_property
    def output(self) -> Tensor:
        """[V, hidden]: the model's whole output matrix."""
        return torch.from_numpy(self.tensors.load(self.tensors.output_name)).to(self.output_norm.device)

    def forward(self, x: Tensor, lengths: Sequence[int], project: Project = plain) -> Tensor:
        """x [R, hidden]: what layer `first` reads, rows of whole texts of `lengths` -> [R, hidden] after the norm."""
        rotations = self.rotations(lengths, x.device)
        for layer in self.layers:
            x = layer(x, lengths, rotations[layer.of.rope], project)
        return rms_norm(x, self.output_norm, self.shape.eps)

    def rotations(self, lengths: Sequence[int], device: torch.device) -> dict[Rope, Rotation]:
        return self.rotations_at(torch.cat([torch.arange(length, device=device) for length in lengths]))

    def rotations_at(self, positions: Tensor) -> dict[Rope, Rotation]:
        """Rotations for rows at these positions [R]."""
        ropes = {layer.of.rope for layer in self.layers}
        size, adjacent = self.shape.head_size, self.shape.adjacent_pairs
        return {rope: Rotation(size, adjacent, rope, self.factors, positions) for rope in ropes}


# --- adapters --------------------------------------------------------------------------------------


class Adapters(nn.Module):
    """Adapters of all matrices of `layers`. Fresh ones change nothing: b is zero."""

    def __init__(self, layers: TopLayers, rank: int, alpha: float, dropout: float) -> None:
        super().__init__()
        self.rank, self.alpha, self.dropout, self.architecture = rank, alpha, dropout, layers.shape.architecture
        self.a, self.b = nn.ParameterDict(), nn.ParameterDict()
        for layer in layers.layers:
            for part in MATRICES:
                rows, columns = layer.weights[f"{part}.weight"].shape
                name = _key(f"blk.{layer.number}.{part}")
                self.a[name] = nn.Parameter(torch.empty(rank, columns).uniform_(-1, 1) * (3 / columns) ** 0.5)
                self.b[name] = nn.Parameter(torch.zeros(rows, rank))

    @property
    def scale(self) -> float:
        return self.alpha / self.rank

    def project(self, name: str, weight: Tensor, x: Tensor) -> Tensor:
        """A Project that includes what was learned."""
        a, b = self.matrices(name)
        y, scale = functional.linear(x, weight), self.scale
        if self.training and self.dropout:
            x, scale = Dropout.apply(x, self.dropout), scale / (1 - self.dropout)
        return y + functional.linear(functional.linear(x, a) * scale, b)

    def names(self) -> list[str]:
        """blk.{layer}.{part} for all matrices."""
        return [name.replace("/", ".") for name in self.a]

    def matrices(self, name: str) -> tuple[Tensor, Tensor]:
        """(a [rank, in], b [out, rank]): scale * b @ a is added to the weight."""
        return self.a[_key(name)], self.b[_key(name)]

    @torch.no_grad()
    def change(self, name: str) -> Tensor:
        """[out, in]: what is added to the weight."""
        a, b = self.matrices(name)
        return b @ a * self.scale

    @torch.no_grad()
    def size(self) -> float:
        """The Frobenius norm of all changes together."""
        pairs = map(self.matrices, self.names())
        squares = [(b.T @ b * (a @ a.T)).sum() for a, b in pairs]  # |b @ a|^2, without the product of that size
        return self.scale * float(torch.stack(squares).sum().clamp(min=0).sqrt())


def _key(name: str) -> str:
    """Modules do not allow dots."""
    return name.replace(".", "/")
