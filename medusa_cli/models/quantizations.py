"""Which file of a repository is meant: quantizations by the names of files, split files, and the one to take."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from medusa_cli.support.errors import MedusaError

DEFAULT = "Q4_K_M"
SMALLER = ("Q4_K_S", "IQ4_NL", "Q4_0", "IQ4_XS", "Q3_K_XL", "Q3_K_L", "Q3_K_M", "IQ3_M")
"""Tried after the default, nearest first, as long as answers stay sensible."""
LARGER = ("Q4_K_L", "Q4_K_XL", "Q4_1", "Q5_K_S", "Q5_0", "Q5_K_M", "Q5_K_L", "Q5_K_XL", "Q5_1", "Q6_K", "Q6_K_L",
          "Q6_K_XL", "Q8_0", "Q8_K_XL", "MXFP4", "BF16", "F16", "F32")  # fmt: skip
"""Tried if there is none of those; SMALLEST comes last, largest first."""
SMALLEST = ("IQ3_S", "Q3_K_S", "IQ3_XS", "IQ3_XXS", "Q2_K_XL", "Q2_K_L", "Q2_K", "Q2_K_S", "IQ2_M", "IQ2_S", "IQ2_XS",
            "IQ2_XXS", "IQ1_M", "IQ1_S", "TQ2_0", "TQ1_0")  # fmt: skip
ORDER = (DEFAULT, *SMALLER, *LARGER, *SMALLEST)
LABEL = re.compile(
    r"(?:^|[^A-Za-z0-9])((?:UD-)?(?:I?Q\d_[A-Z0-9]+(?:_[A-Z0-9]+)*|TQ\d_\d|MXFP4(?:_MOE)?|BF16|F16|FP16|F32|FP32))"
    r"(?=$|[^A-Za-z0-9])",
    re.IGNORECASE,
)
SPLIT = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.IGNORECASE)
NO_MODEL = re.compile(r"(^|[^a-z])(mmproj|imatrix|lora|adapter|vocab|control[-_]vector)([^a-z]|$)", re.IGNORECASE)
"""Files beside models that are not models."""
OF_HEADS = re.compile(r"medusa|hydra", re.IGNORECASE)
"""Files that may hold draft heads alone."""
DRAFTER_PREFIX = "mtp-"
"""Of files with layers for further tokens (MTP) alone."""
ASSISTANT, EAGLE, DFLASH = "gemma4-assistant", "eagle3", "dflash"
DRAFTERS = (ASSISTANT, EAGLE, DFLASH)
"""The architectures of other files that only draft for a model."""
OF_DRAFTER = re.compile(rf"^{DRAFTER_PREFIX}|assistant|eagle|dflash", re.IGNORECASE)
"""Files that may hold a drafter alone."""
LARGEST_DRAFTER = 0.5
"""A drafter is fetched with its model up to this share of its size."""
MOST_PARTS = 1000
SHOWN = 12


@dataclass(frozen=True)
class Candidate:
    """A model in a repository. files: its parts in order. quant: in capitals, "" if the name does not tell."""

    name: str
    files: tuple[str, ...]
    quant: str

    @property
    def rank(self) -> tuple[int, str]:
        """Place in the order of choice, then the name."""
        plain = self.quant.removeprefix("UD-")
        known = ORDER.index(plain) if plain in ORDER else len(ORDER)
        return (2 * known + self.quant.startswith("UD-"), self.name)


def candidates(names: Collection[str], heads: Collection[str] = ()) -> list[Candidate]:
    """The models among the files of a repository, the one to take first. heads: files that hold draft heads alone.

    Split models with a missing part are left out.
    """
    wanted = [name for name in names if name.lower().endswith(".gguf") and name not in heads]
    found = []
    for name in wanted:
        parts = parts_of(name)
        is_first = parts[:1] == [name] and set(parts) <= set(wanted)
        if is_first and not NO_MODEL.search(name.rpartition("/")[2]):
            found.append(Candidate(name, tuple(parts), quant_of(name)))
    return sorted(found, key=lambda one: one.rank)


def parts_of(first: str) -> list[str]:
    """All file names of a split model, by that of any part; the name alone if it is not split."""
    split = SPLIT.fullmatch(first)
    if split is None:
        return [first]
    count = int(split["count"])
    ending = first[-len(".gguf") :]
    if not 1 <= int(split["number"]) <= count <= MOST_PARTS:
        return []
    return [f"{split['stem']}-{number:05}-of-{count:05}{ending}" for number in range(1, count + 1)]


def quant_of(name: str) -> str:
    """The last quantization in a file's name, else in its folder's; "" for none."""
    folder, _, file = name.rpartition("/")
    labels = LABEL.findall(re.sub(r"\.gguf$", "", file, flags=re.IGNORECASE)) or LABEL.findall(folder)
    label = labels[-1].upper() if labels else ""
    return {"FP16": "F16", "FP32": "F32", "MXFP4_MOE": "MXFP4"}.get(label, label)


def pick(found: Sequence[Candidate], label: str, quant: str | None, file: str | None) -> Candidate:
    """The model that is meant. MedusaError, with what there is, if none or more than one fits."""
    if file is not None:
        return _by_file(found, label, file)
    fitting = [one for one in found if quant is None or _same(one.quant, quant)]
    if not fitting:
        raise MedusaError(f"{label}: holds no {quant}: there are {listed(found) or 'no models'}")
    best = fitting[0]
    rivals = [one for one in fitting if one.quant == best.quant and one.name != best.name]
    whole = [one for one in (best, *rivals) if len(one.files) == 1]
    if not rivals or len(whole) == 1:
        return whole[0] if rivals else best
    names = [one.name for one in (best, *rivals)]
    shown = ", ".join(names[:SHOWN]) + (", ..." if len(names) > SHOWN else "")
    what = best.quant or "models"
    raise MedusaError(f"{label}: has several {what}: choose one as {label}/FILE, from {shown}")


def _by_file(found: Sequence[Candidate], label: str, file: str) -> Candidate:
    for one in found:
        if file in one.files:
            return one
    near = difflib.get_close_matches(file, [one.name for one in found], 3, 0.5)
    names = near or [one.name for one in found[:3]]
    raise MedusaError(f"{label}: has no {file}" + (f": did you mean {' or '.join(names)}?" if names else ""))


def _same(one: str, other: str) -> bool:
    """Whether two names of a quantization mean the same: "q4_k_m", "UD-Q4_K_M"."""
    return one == other.upper() or (one != "" and one.removeprefix("UD-") == other.upper())


def drafter_for(model: Candidate, drafters: Sequence[str], sizes: Mapping[str, int]) -> str | None:
    """The file of next-token layers to take with the model: of its quantization, else the smallest; None: too large."""
    by_size = sorted(drafters, key=lambda name: (not _same(quant_of(name), model.quant), sizes.get(name, 0)))
    most = LARGEST_DRAFTER * total(model, sizes)
    return next((name for name in by_size if sizes.get(name, 0) <= most), None)


def listed(found: Sequence[Candidate], without: str | None = None) -> str:
    """The quantizations there are, each once; the names of files that tell none."""
    labels = list(dict.fromkeys(one.quant or one.name for one in sorted(found, key=lambda one: one.name)))
    labels = [label for label in labels if label != without]
    return ", ".join(labels[:SHOWN]) + (f" and {len(labels) - SHOWN} more" if len(labels) > SHOWN else "")


def next_smaller(found: Sequence[Candidate], sizes: Mapping[str, int], limit: int) -> Candidate | None:
    """The largest model of at most `limit` bytes. sizes: each file's."""
    fitting = [one for one in found if 0 < total(one, sizes) <= limit]
    return max(fitting, key=lambda one: total(one, sizes), default=None)


def total(one: Candidate, sizes: Mapping[str, int]) -> int:
    """Bytes of all parts."""
    return sum(sizes.get(name, 0) for name in one.files)
