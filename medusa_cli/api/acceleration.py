"""Our kernels and attention for llama.cpp in other programs, if they use llama-cpp-python in the same process."""

from __future__ import annotations

from dataclasses import dataclass

from medusa_cli.decoding import figures
from medusa_cli.support.errors import MedusaError


@dataclass(frozen=True, repr=False)
class Acceleration:
    """What models loaded from now on will run on; its repr is the table of `medusa doctor`.

    on: our kernels multiply. kernels: their instruction set, None if there are none for this processor. reason: why
    they are off. attention: whether they have one of their own, which runs where llama.cpp's fused attention would
    (`Llama(..., flash_attn=True)`). supported: instruction sets this processor could use. types: weight types that the
    kernels take; others stay with llama.cpp.
    """

    on: bool
    kernels: str | None
    reason: str
    attention: bool
    supported: tuple[str, ...]
    types: tuple[str, ...]

    def __repr__(self) -> str:
        rows = figures.kernel_rows(
            {
                "selected": self.kernels if self.on else None,
                "reason": self.reason,
                "supported": self.supported,
                "attention": self.attention,
                "types": self.types,
            }
        )
        return "\n".join(f"{label:9}  {value}" for label, value in rows)

    def undo(self) -> Acceleration:
        """accelerate(False)."""
        return accelerate(False)


def accelerate(on: bool = True) -> Acceleration:
    """Gives models of llama-cpp-python our kernels: call it before the first `llama_cpp.Llama(...)`.

    It affects models loaded afterwards in this process; False undoes it for later ones. A loaded model keeps the
    weights it has, but attention follows the newest call, so call it while nothing decodes. If this processor has no
    faster kernels, or MEDUSA_ISA is "off", nothing changes, and the result says why.

    MedusaError when this process has loaded a model already, and when the installed llama-cpp-python is not the one
    that medusa was built for.
    """
    from medusa_cli import native

    native.use_kernels(on)
    native.forward_log(True)
    info = native.kernel_info()
    if on and info["late"]:
        raise MedusaError(
            "accelerate() must be called before the first model of the process is loaded: call it at the start"
        )
    reason = info["reason"] or ("" if info["used"] else "accelerate(False)")
    return Acceleration(
        info["used"], info["selected"], reason, info["attention"], tuple(info["supported"]), tuple(info["types"])
    )
