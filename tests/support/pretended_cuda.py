"""A CUDA device that torch takes for real, without one: its tensors lie in ordinary memory.

What a GPU would refuse is refused here, too: operands on two devices, a look at its memory by NumPy, the processor's
generator, operators without a deterministic implementation. Backward passes are not looked into.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

MEMORY = 1 << 33
DIFFERENT = "expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu"
NOT_DETERMINISTIC = ("cumsum", "kthvalue")
"""Of what torch lists, operators that one could think of here."""


class OnDevice(Tensor):
    """A tensor that says it is on the device."""

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]


class _Pretending(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, kwargs = func.__name__, dict(kwargs or {})
        given = list(_tensors((args, kwargs)))
        there = any(isinstance(one, OnDevice) for one in given)
        owner = getattr(func, "__self__", None)
        if there and owner is Tensor.device:
            return torch.device("cuda", 0)
        if there and owner is Tensor.is_cuda:
            return True
        if there and name in ("numpy", "__array__"):
            raise TypeError("can't convert cuda:0 device type tensor to numpy")
        if name == "_has_compatible_shallow_copy_type":  # asked when a module moves
            return len({isinstance(one, OnDevice) for one in given}) == 1
        if name == "cpu":
            return _moved(func(*args, **kwargs), there=False)
        if name == "to":
            return _to(args, kwargs)
        if kwargs.get("device") is not None:
            there = torch.device(kwargs.pop("device")).type == "cuda"
            if there and kwargs.get("generator") is not None:
                raise RuntimeError("Expected a 'cuda' device type for generator but found 'cpu'")
            return _moved(func(*args, **kwargs), there)
        if there:
            _check(name, args, given)
        return _moved(func(*args, **kwargs), there)


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _tensors(one)
    elif isinstance(value, dict):
        yield from _tensors(list(value.values()))


def _moved(value: Any, there: bool) -> Any:
    if isinstance(value, Tensor):
        return value if isinstance(value, OnDevice) == there else value.as_subclass(OnDevice if there else Tensor)
    if isinstance(value, list | tuple) and any(True for _ in _tensors(value)):
        parts = [_moved(one, there) for one in value]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    if isinstance(value, dict):
        return {name: _moved(one, there) for name, one in value.items()}
    return value


def _to(args: Any, kwargs: Any) -> Tensor:
    tensor, dtype = args[0], kwargs.get("dtype")
    was = there = isinstance(tensor, OnDevice)
    for given in (*args[1:], kwargs.get("device")):
        if isinstance(given, torch.dtype):
            dtype = given
        elif isinstance(given, Tensor):
            there, dtype = isinstance(given, OnDevice), given.dtype
        elif isinstance(given, str | torch.device):
            there = torch.device(given).type == "cuda"
    dtype = tensor.dtype if dtype is None else dtype
    if there == was and dtype == tensor.dtype:
        return tensor
    moved: Tensor = _moved(tensor.as_subclass(Tensor).to(dtype=dtype, copy=True), there)
    return moved


def _check(name: str, args: Any, given: list[Tensor]) -> None:
    mine = isinstance(args[0], OnDevice)
    # Numbers go everywhere, indexes to the tensor that they are for, and a copy is made from anywhere.
    fine = name in ("copy_", "__set__") or (mine and name == "__getitem__")
    if mine and name == "__setitem__":
        fine = not any(True for _ in _tensors(args[1])) or all(isinstance(one, OnDevice) for one in _tensors(args[2]))
    if not fine and any(not isinstance(one, OnDevice) and one.dim() > 0 for one in given):
        raise RuntimeError(f"{name}: {DIFFERENT}")
    if name in NOT_DETERMINISTIC and given[0].is_floating_point() and torch.are_deterministic_algorithms_enabled():
        raise RuntimeError(f"{name} does not have a deterministic implementation on CUDA")


@contextlib.contextmanager
def pretended_cuda(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    autocast, rng_state, save = torch.autocast, torch.get_rng_state, torch.save
    fakes: dict[str, Any] = {
        "is_available": lambda: True,
        "mem_get_info": lambda device=None: (MEMORY, MEMORY),
        "synchronize": lambda device=None: None,
        "get_rng_state": lambda device=None: rng_state(),
        "set_rng_state": lambda state, device=None: None,
    }
    for name, fake in fakes.items():
        monkeypatch.setattr(torch.cuda, name, fake)
    monkeypatch.setattr(torch, "save", lambda value, file: save(_moved(value, there=False), file))
    monkeypatch.setattr(torch, "autocast", lambda kind, *args, **rest: autocast("cpu", *args, **rest))
    with _Pretending():
        yield
