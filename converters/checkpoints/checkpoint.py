"""Hugging Face checkpoints as named tensors: a folder or a file in, one tensor at a time out.

Every file is read through here, and none is trusted: links may not lead out of the folder, names may not be paths,
and what an index promises must be in its shards.
"""

from __future__ import annotations

import re
import stat
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import MedusaError
from ..files import explain_os_error, opened
from .safetensors_file import FLOATS, FLOATS8, SafetensorsFile, StoredTensor
from .strict_json import parse_json
from .torch_file import TorchFile

__all__ = ["Checkpoint", "StoredTensor", "open_checkpoint", "open_side_files"]

CONFIG = "config.json"
MODEL_STEMS = (("model", ".safetensors"), ("pytorch_model", ".bin"))
HEAD_STEMS = ("medusa_lm_head", "hydra_lm_head")
SUFFIXES = (".safetensors", ".pt", ".pth", ".bin")
NOT_WEIGHTS = {"training_args.bin", "optimizer.pt", "optimizer.bin", "scheduler.pt", "rng_state.pth"}
SCALES = (".weight_scale", ".input_scale", ".output_scale", ".k_scale", ".v_scale")
OTHER_QUANTIZATION = (".weight_scale_2", ".weight_scale_inv", ".weight_packed", ".qweight", ".weight.absmax")
MAX_INDEX_BYTES = 64 << 20
MAX_TEXT_BYTES = 256 << 20
WeightFile = SafetensorsFile | TorchFile
SHARD = re.compile(r"(?P<stem>.+)-\d{5}-of-(?P<count>\d{5})(?P<suffix>\.safetensors|\.bin)")


class Checkpoint:
    """The tensors and side files of one model.

    name: what messages call it (the path as it was given). root: the folder with the files. config: config.json, {} if
    there is none. tensors: every stored tensor by name, in the order of the files. files: the weight files, for
    provenance.

    FP8 weights come with their quantization's scales applied (W.weight_scale, one value or one per row); those scales,
    and those of activations and KV cache, which no F16 model needs, are not among the tensors.
    """

    def __init__(
        self, path: Path, root: Path, files: Iterable[WeightFile], where: Mapping[str, str] | None = None
    ) -> None:
        """where: tensor name -> file name from an index; it decides if two files have the same name."""
        self.name = str(path)
        self.root = root
        self.tensors: dict[str, StoredTensor] = {}
        self.files: list[Path] = []
        self._source: dict[str, WeightFile] = {}
        for file in files:
            self.files.append(file.path)
            for name, tensor in file.tensors.items():
                if where and where.get(name, file.path.name) != file.path.name:
                    continue
                if name in self.tensors:
                    other = self._source[name].path.name
                    raise MedusaError(f"{file.path}: tensor {name!r} is also in {other}: remove one")
                self.tensors[name], self._source[name] = tensor, file
        self._scales = _take_scales(self.name, self.tensors)
        self.config = self.read_json(CONFIG) or {}

    def load(self, name: str) -> NDArray[Any]:
        """The values of one tensor, torch order, in its own memory, which is freed with the array.

        float16, float32 and integers as stored; BF16 and F8 as float32. KeyError for unknown names, MedusaError if the
        file has changed in the meantime.
        """
        self.tensors[name]
        values = self._source[name].load(name)
        scale = self._scales.get(name)
        if scale is not None:
            values *= self._source[scale].load(scale).astype(np.float32).reshape(-1, 1)
        return values

    def path(self, file_name: str) -> Path | None:
        """The regular file of that name beside the weights, None if there is none.

        MedusaError if the name is a path, or the file is a link that leads out of the folder.
        """
        return inside(self.root, file_name)

    def read_text(self, file_name: str) -> str | None:
        """The UTF-8 text of a file beside the weights, None if there is none. MedusaError for anything else."""
        path = self.path(file_name)
        return None if path is None else _read_text(path, MAX_TEXT_BYTES)

    def read_json(self, file_name: str) -> dict[str, Any] | None:
        """The JSON object in a file beside the weights, None if there is none. MedusaError for anything else."""
        text = self.read_text(file_name)
        return None if text is None else parse_json(text, str(self.root / file_name))


def open_checkpoint(path: Path) -> Checkpoint:
    """The checkpoint in a folder, or in one .safetensors, .pt, .pth or .bin file (side files: those beside it).

    A folder's weights are its model files (single or sharded, safetensors before torch) together with its head files
    (medusa_lm_head.*, hydra_lm_head.*); else the one weight file there. MedusaError if there is none, if several could
    be meant, if shards are missing, and for everything that the readers refuse.
    """
    path = Path(path)
    try:
        if path.is_dir():
            return _open_folder(path)
        if not stat.S_ISREG(path.stat().st_mode):
            raise MedusaError(f"{path}: neither a folder nor a regular file")
    except OSError as error:
        raise explain_os_error(error, path) from error
    return Checkpoint(path, path.parent, [_open_file(path)])


def open_side_files(path: Path) -> Checkpoint:
    """Configuration and tokenizer of the checkpoint in a folder, without its weights, which need not be there."""
    path = Path(path)
    if not path.is_dir():
        raise MedusaError(f"{path}: neither a GGUF nor a folder with a model's config.json and tokenizer")
    return Checkpoint(path, path, [])


def _take_scales(label: str, tensors: dict[str, StoredTensor]) -> dict[str, str]:
    """Removes the quantization scales from `tensors`. Returns FP8 weight -> name of its scale.

    MedusaError for quantized weights other than FP8, and for FP8 in blocks.
    """
    scales: dict[str, str] = {}
    for scale in [name for name in tensors if name.endswith(SCALES)]:
        weight = scale.removesuffix("_scale")
        if not scale.endswith(".weight_scale"):
            del tensors[scale]
            continue
        quantized = tensors.get(weight)
        if quantized is None or quantized.dtype not in FLOATS8 or len(quantized.shape) != 2:
            raise MedusaError(f"{label}: {weight!r} is quantized, but not to FP8: use the unquantized checkpoint")
        stored = tensors.pop(scale)
        if stored.shape not in ((), (1,), quantized.shape[:1], (quantized.shape[0], 1)) or stored.dtype not in FLOATS:
            raise MedusaError(f"{label}: scales {scale!r} are not one value or one for each row: not supported")
        scales[weight] = scale
    for name in tensors:
        if name.endswith(OTHER_QUANTIZATION):
            raise MedusaError(f"{label}: tensor {name!r} belongs to a quantization that is not supported: use F16")
    return scales


def inside(root: Path, file_name: str) -> Path | None:
    """`root / file_name` if that is a regular file inside the folder, None if nothing is there.

    MedusaError for names that are paths and for links that leave the folder. One layout may do that: huggingface_hub's
    download cache, whose snapshots/REVISION/ folders hold links into the blobs/ beside them.
    """
    label = root / file_name
    if file_name in ("", ".", "..") or set(file_name) & set("/\\:\0"):
        raise MedusaError(f"{root}: {file_name!r} is not a plain file name, the checkpoint is damaged or hostile")
    try:
        folder = root.resolve(strict=True)
        target = (folder / file_name).resolve(strict=True)
        regular = stat.S_ISREG(target.stat().st_mode)
    except FileNotFoundError:
        if label.is_symlink():
            raise MedusaError(f"{label}: the link leads nowhere, download the file again") from None
        return None
    except (OSError, RuntimeError) as error:
        if isinstance(error, OSError):
            raise explain_os_error(error, label) from error
        raise MedusaError(f"{label}: the link leads to itself") from None
    if target.parent != folder and target.parent != _cache_blobs(folder):
        raise MedusaError(f"{label}: a link that leaves the folder, refused: copy the file here if you trust it")
    if not regular:
        raise MedusaError(f"{label}: not a regular file")
    return folder / file_name


def _cache_blobs(folder: Path) -> Path | None:
    """The blobs folder that belongs to a snapshot folder of huggingface_hub's cache, else None."""
    repository = folder.parent.parent
    if folder.parent.name != "snapshots" or not re.match(r"(?:models|datasets|spaces)--", repository.name):
        return None
    return repository / "blobs"


def _open_folder(root: Path) -> Checkpoint:
    try:
        present = {entry.name for entry in root.iterdir()}
    except OSError as error:
        raise explain_os_error(error, root) from error
    names, where = model_files(present, lambda index: read_index(_existing(root, index)))
    names = names + head_files(present) or other_files(present, str(root))
    checkpoint = Checkpoint(root, root, [_open_file(_existing(root, name)) for name in names], where)
    for name, file_name in where.items():
        if name not in checkpoint.tensors:
            raise MedusaError(f"{root / file_name}: lacks tensor {name!r} that its index lists, download it again")
    return checkpoint


def model_files(
    present: Collection[str], index_of: Callable[[str], dict[str, str]]
) -> tuple[list[str], dict[str, str]]:
    """Names of a model's weight files among the files of a folder, and its index (tensor name -> file name).

    index_of reads an index file by name. Both are empty if the folder has no model.
    """
    for stem, suffix in MODEL_STEMS:
        if stem + suffix in present:
            return [stem + suffix], {}
        if f"{stem}{suffix}.index.json" in present:
            where = index_of(f"{stem}{suffix}.index.json")
            return sorted(set(where.values())), where
    return [], {}


def head_files(present: Collection[str]) -> list[str]:
    """Names of the files that hold only heads; if one comes in several formats, the safest."""
    found = ([stem + suffix for suffix in SUFFIXES if stem + suffix in present] for stem in HEAD_STEMS)
    return [names[0] for names in found if names]


def other_files(present: Collection[str], label: str) -> list[str]:
    """The one weight file of another name, or all shards of one set without an index. MedusaError for anything else."""
    names = sorted(name for name in present if name.endswith(SUFFIXES) and name not in NOT_WEIGHTS)
    names = [name for name in names if name.endswith(".safetensors")] or names
    if not names:
        raise MedusaError(f"{label}: no weights (.safetensors, .pt or .bin) in this folder")
    shard = SHARD.fullmatch(names[0])
    if shard:
        count = int(shard["count"])
        expected = {f"{shard['stem']}-{i:05d}-of-{shard['count']}{shard['suffix']}" for i in range(1, count + 1)}
        if set(names) == expected:
            return names
        raise MedusaError(f"{label}: holds {len(names)} weight files, not the {count} parts of one model and no index")
    if len(names) > 1:
        raise MedusaError(f"{label}: several weight files ({names[0]}, {names[1]}), name the one you mean")
    return names


def read_index(path: Path) -> dict[str, str]:
    """The weight_map of an index file: tensor name -> file name. MedusaError for anything else."""
    where = parse_json(_read_text(path, MAX_INDEX_BYTES), str(path)).get("weight_map")
    if not isinstance(where, dict) or not where or not all(isinstance(file, str) for file in where.values()):
        raise MedusaError(f"{path}: no weight_map of tensor names to files, download the file again")
    return where


def _existing(root: Path, file_name: str) -> Path:
    path = inside(root, file_name)
    if path is None:
        raise MedusaError(f"{root / file_name}: this part of the model is missing, download it")
    return path


def _open_file(path: Path) -> WeightFile:
    if path.suffix == ".safetensors":
        return SafetensorsFile(path)
    if path.suffix in SUFFIXES:
        return TorchFile(path)
    raise MedusaError(f"{path}: not a weight file, expected one of {', '.join(SUFFIXES)}")


def _read_text(path: Path, limit: int) -> str:
    with opened(path) as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise MedusaError(f"{path}: larger than {limit >> 20} MiB, which no file of this kind is")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        raise MedusaError(f"{path}: not UTF-8 text, download it again") from None
