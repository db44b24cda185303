"""Sizes and counts as people read them."""

from __future__ import annotations


def size(nbytes: int) -> str:
    """Bytes for people: 98.4 MB."""
    value = float(nbytes)
    for unit in ("B", "kB", "MB"):
        if value < 1000:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.2f} GB"


def count(number: int) -> str:
    """A number of parameters for people: 134.5 M."""
    return f"{number / 1e9:.2f} B" if number >= 1e9 else f"{number / 1e6:.1f} M"
