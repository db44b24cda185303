"""Which classes of config.json's `architectures` can be converted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import MedusaError
from .architecture import Architecture
from .gemma import Gemma3
from .llama import Llama, Mistral
from .phi import Phi3
from .qwen import Qwen2, Qwen3

ARCHITECTURES: dict[str, type[Architecture]] = {
    "LlamaForCausalLM": Llama,
    "MistralForCausalLM": Mistral,
    "Qwen2ForCausalLM": Qwen2,
    "Qwen3ForCausalLM": Qwen3,
    "Gemma3ForCausalLM": Gemma3,
    "Phi3ForCausalLM": Phi3,
}


def find_architecture(config: Mapping[str, Any], where: str) -> type[Architecture]:
    """The class for a config.json. MedusaError that names the architecture when there is none."""
    names = config.get("architectures")
    # Full Medusa models name their class after the base's: MedusaLlamaForCausalLM.
    plain = [str(name).replace("Medusa", "") for name in names] if isinstance(names, list) else []
    known = [name for name in plain if name in ARCHITECTURES]
    if known:
        return ARCHITECTURES[known[0]]
    found = names[0] if isinstance(names, list) and names and isinstance(names[0], str) else "none"
    raise MedusaError(
        f"{where}: architecture {found[:60]} cannot be converted (only {', '.join(ARCHITECTURES)}): "
        "give a GGUF of that model as the base"
    )
