"""Rotary position parameters of a config.json, old spelling (rope_theta, rope_scaling) and new (rope_parameters).

libllama knows each scaling as metadata keys (linear, yarn), as a tensor of factors per frequency (llama3), or as two
such tensors (longrope). "dynamic" scaling starts only beyond max_position_embeddings, which is the context length we
write, so it needs nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

from ..errors import MedusaError
from .config import Config, is_number

SPELLINGS = {"su": "longrope", "llama-3": "llama3", "": "default"}


@dataclass(frozen=True)
class Rope:
    """One kind of layer's rotary embedding. kind: "default", "linear", "yarn", "llama3", "longrope" or "dynamic"."""

    kind: str
    theta: float
    values: dict[str, Any]
    where: str

    def number(self, key: str, default: float | None = None) -> float:
        """A finite positive number of the scaling. MedusaError if it is invalid, or missing without a default."""
        value = self.values.get(key)
        if value is None and default is not None:
            return default
        if not is_number(value) or value <= 0:
            raise MedusaError(
                f"{self.where}: {key} of the {self.kind} rope scaling is {repr(value)[:40]}, "
                "expected a number above 0: repair the file"
            )
        return float(value)

    def factors(self, key: str, count: int) -> NDArray[np.float32]:
        """A list of `count` positive numbers as a tensor."""
        value = self.values.get(key)
        good = isinstance(value, list) and len(value) == count and all(is_number(item) and item > 0 for item in value)
        if not good:
            raise MedusaError(f"{self.where}: {key} of the rope scaling is not a list of {count} positive numbers")
        return np.array(value, np.float32)


def read_rope(config: Config, supported: tuple[str, ...], layers: str = "full_attention") -> Rope:
    """The rotary parameters for `layers`. MedusaError for scalings that libllama lacks for this architecture."""
    values = config.section("rope_parameters") or config.section("rope_scaling")
    theta = config.get("rope_theta")
    nested = values.get(layers)
    if nested is not None:
        if not isinstance(nested, dict):
            raise MedusaError(f"{config.where}: rope_parameters.{layers} is not an object, repair the file")
        values = nested
    theta = values.get("rope_theta", theta)
    if not is_number(theta) or theta <= 0:
        raise MedusaError(f"{config.where}: rope_theta is {repr(theta)[:40]}, expected a number above 0")
    kind = values.get("rope_type", values.get("type")) or "default"
    kind = SPELLINGS.get(kind, kind) if isinstance(kind, str) else repr(kind)
    if kind not in supported:
        raise MedusaError(
            f"{config.where}: rope scaling {kind[:40]!r} is not supported for this architecture "
            f"(only {', '.join(supported)}): use a finished GGUF"
        )
    return Rope(kind, float(theta), values, config.where)


def write_scaling(writer: gguf.GGUFWriter, rope: Rope, context_length: int) -> None:
    """The metadata keys of linear and yarn scaling; nothing for the other kinds."""
    if rope.kind == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(rope.number("factor"))
    if rope.kind == "yarn":
        _write_yarn(writer, rope, context_length)


def _write_yarn(writer: gguf.GGUFWriter, rope: Rope, context_length: int) -> None:
    unusual = [key for key in ("mscale", "mscale_all_dim") if rope.values.get(key)]
    if unusual or rope.values.get("truncate") is False:
        name = (unusual or ["truncate"])[0]
        raise MedusaError(f"{rope.where}: yarn rope scaling with {name} is not supported: use a finished GGUF")
    factor = rope.number("factor")
    writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
    writer.add_rope_scaling_factor(factor)
    writer.add_rope_scaling_orig_ctx_len(int(rope.number("original_max_position_embeddings", context_length)))
    if rope.values.get("extrapolation_factor") is not None:
        _add_yarn(writer, "ext_factor", rope.number("extrapolation_factor"))
    for key in ("attention_factor", "attn_factor"):
        if rope.values.get(key) is not None:
            _write_attention_factor(writer, rope.number(key), factor)
            break
    for key in ("beta_fast", "beta_slow"):
        if rope.values.get(key) is not None:
            _add_yarn(writer, key, rope.number(key))


def _add_yarn(writer: gguf.GGUFWriter, name: str, value: float) -> None:
    """A key that the oldest gguf package we accept has no method for."""
    writer.add_float32(f"{writer.arch}.rope.scaling.yarn_{name}", value)


def _write_attention_factor(writer: gguf.GGUFWriter, wanted: float, factor: float) -> None:
    """libllama computes yarn's usual attention factor itself and multiplies it by rope.scaling.attn_factor.

    The key made for this, yarn_attn_factor, is overwritten when the model is loaded; it is kept for other readers.
    """
    _add_yarn(writer, "attn_factor", wanted)
    usual = 1 + 0.1 * math.log(factor) if factor > 1 else 1.0
    if abs(wanted / usual - 1) > 1e-6:
        writer.add_rope_scaling_attn_factors(wanted / usual)


def llama3_factors(rope: Rope, dimensions: int) -> NDArray[np.float32]:
    """Divisors of the dimensions/2 rotary frequencies: 1 for short wavelengths, `factor` for long, blended between."""
    factor, low, high = (rope.number(k, d) for k, d in (("factor", 8), ("low_freq_factor", 1), ("high_freq_factor", 4)))
    original = rope.number("original_max_position_embeddings", 8192)
    if high <= low:
        raise MedusaError(f"{rope.where}: high_freq_factor of the rope scaling is not above low_freq_factor")
    # As llama.cpp does it: frequencies in float32, everything else in float64. NumPy's own powers of float32 differ in
    # their last bit between processors.
    exponents = np.arange(0, dimensions, 2, dtype=np.float32) / np.float32(dimensions)
    powers = np.array([rope.theta ** float(exponent) for exponent in exponents], np.float32)
    wavelengths = 2 * math.pi / (np.float32(1) / powers).astype(np.float64)
    smooth = (original / wavelengths - low) / (high - low)
    blended = 1 / ((1 - smooth) / factor + smooth)
    longest = np.where(wavelengths > original / low, factor, blended)
    return np.where(wavelengths < original / high, 1, longest).astype(np.float32)


def longrope_attention_factor(rope: Rope, context_length: int, original: int) -> float:
    """The factor by which longrope multiplies sine and cosine."""
    if rope.values.get("attention_factor") is not None:
        return rope.number("attention_factor")
    scale = context_length / original
    return math.sqrt(1 + math.log(scale) / math.log(original)) if scale > 1 else 1.0
