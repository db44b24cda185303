"""Names of whole-file quantizations: llama.cpp's general.file_type.

Not gguf-py's list: that changes with its releases, while the libllama that quantizes is pinned.
"""

from __future__ import annotations

from ..errors import MedusaError

FILE_TYPES = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 7: "Q8_0", 8: "Q5_0", 9: "Q5_1", 10: "Q2_K", 11: "Q3_K_S", 12: "Q3_K_M",
    13: "Q3_K_L", 14: "Q4_K_S", 15: "Q4_K_M", 16: "Q5_K_S", 17: "Q5_K_M", 18: "Q6_K", 19: "IQ2_XXS", 20: "IQ2_XS",
    21: "Q2_K_S", 22: "IQ3_XS", 23: "IQ3_XXS", 24: "IQ1_S", 25: "IQ4_NL", 26: "IQ3_S", 27: "IQ3_M", 28: "IQ2_S",
    29: "IQ2_M", 30: "IQ4_XS", 31: "IQ1_M", 32: "BF16", 36: "TQ1_0", 37: "TQ2_0", 38: "MXFP4",
}  # fmt: skip
UNQUANTIZED = ("F32", "F16", "BF16")
ALIASES = {"Q4_K": "Q4_K_M", "Q5_K": "Q5_K_M", "Q3_K": "Q3_K_M"}


def file_type(name: str) -> tuple[int, str]:
    """Number and canonical name of a file type, whatever the case. MedusaError for an unknown one."""
    wanted = ALIASES.get(name.upper(), name.upper())
    for number, known in FILE_TYPES.items():
        if known == wanted:
            return number, known
    raise MedusaError(f"{name}: unknown, choose one of {', '.join(FILE_TYPES.values())}")
