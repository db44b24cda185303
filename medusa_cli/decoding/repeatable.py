"""Whether a text could depend on what is drafted: then a seed gives the same text only with the same drafts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from medusa_cli.decoding.options import AcceptKind, EngineOptions

if TYPE_CHECKING:
    from medusa_cli import native

KEEPING_RULES = (AcceptKind.greedy.value, AcceptKind.exact.value)
"""Accept rules that say what plain decoding says, whatever is drafted. The others follow the tree."""


def width_matters(model: native.Model, options: EngineOptions) -> str:
    """Why the bits of a forward pass depend on how many tokens it takes; "" where they do not.

    They do not where all matrices and attention run on our kernels. Tries a pass over one token.
    """
    from medusa_cli import native

    if model.gpu:
        return "the model runs on a GPU"
    kernels = native.kernel_info()
    if kernels["selected"] is None:
        return f"llama.cpp's kernels run: {kernels['reason']}"
    if model.is_recurrent:
        return "the model carries a recurrent state"
    if not (placement := model.placement):
        return "which kernels run is not known on this platform"
    for group in placement:
        if group.role in ("matrix", "experts") and group.buffer != kernels["buffer"]:
            return f"llama.cpp multiplies with the {group.type} weights"
    attention = native.attention_use(model, type_k=options.cache_type_k.value, type_v=options.cache_type_v.value)
    if attention.left or not attention.served:
        return f"attention is llama.cpp's: {attention.reason or 'it is not fused'}"
    return ""
