"""Our conversion of checkpoints: beside llama.cpp's own converter, and its time and memory.

    python benchmarks/conversion.py compare PATH/convert_hf_to_gguf.py [MODEL ...] [--type F16]
    python benchmarks/conversion.py pretokenizers PATH/convert_hf_to_gguf.py
    python benchmarks/conversion.py time --tokenizer tests/data/hf/FOLDER

`COMMAND --help` says what each of them measures.
"""

from __future__ import annotations

import ast
import hashlib
import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
from argparse import ArgumentParser
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any, Literal

import common
from medusa_cli.converters.base import write_base
from medusa_cli.converters.base.pretokenizers import KNOWN
from medusa_cli.converters.checkpoints.checkpoint import open_checkpoint
from medusa_cli.converters.gguf.header import Header, read_header

from medusa_cli.support.errors import MedusaError

FIXTURES = Path(__file__).parent.parent / "tests" / "data" / "hf"
COMPARED_GENERAL = ("general.architecture", "general.type", "general.file_type", "general.quantization_version")

EXPECTED = {
    "mistral-json": {
        "tokenizer.ggml.scores": "llama.cpp writes a placeholder, -1000; ours come from the merges",
        "tokenizer.ggml.token_type": "llama.cpp takes added special tokens without a role for user-defined ones",
        "tokenizer.ggml.add_space_prefix": "llama.cpp leaves its default; ours says what tokenizer.json says",
    },
}
"""Fixture -> keys that differ on purpose, and why."""

PUBLISHED = {
    "llama-bpe": "llama-bpe",
    "qwen2": "qwen2",
    "gpt-2": "gpt-2",
    "starcoder": "smollm",
    "deepseek-coder": "deepseek-coder",
}
"""Vocabulary in llama.cpp's models folder -> name in our table (Starcoder's and SmolLM's are the same)."""
CONTROL = 3

# llama.cpp recognises a byte-level tokenizer by a hash over the ids it gives to a test text, so it knows vocabularies
# that were published, and no others. Where it gives up it is told our answer: the rest can then be compared.
RUN_PEER = """
import runpy, sys
from pathlib import Path
script, answer = sys.argv[1:3]
sys.path.insert(0, str(Path(script).parent))
from conversion.base import TextModel
recognise = TextModel.get_vocab_base_pre
def patched(self, tokenizer):
    try:
        return recognise(self, tokenizer)
    except NotImplementedError:
        print("PRE-TOKENIZER-NOT-RECOGNISED")
        return answer
TextModel.get_vocab_base_pre = patched
sys.argv = [script, *sys.argv[3:]]
runpy.run_path(script, run_name="__main__")
"""


@dataclass(frozen=True)
class Comparison:
    """differences: unexpected ones, as lines. told_pre: llama.cpp did not know the pre-tokenizer and was told ours."""

    model: str
    tensors: int
    nbytes: int
    keys: int
    expected: list[str]
    differences: list[str]
    told_pre: bool


def convert_both_ways(model: Path, script: Path, file_type: str, folder: Path) -> Comparison:
    """Converts `model` both ways into `folder`."""
    ours, theirs = folder / "ours.gguf", folder / "theirs.gguf"
    write_base(open_checkpoint(model), ours, file_type)
    pre = read_header(ours)[0].get("tokenizer.ggml.pre")
    command = [sys.executable, "-c", RUN_PEER, str(script), pre, str(model)]
    run = subprocess.run(
        [*command, "--outtype", file_type.lower(), "--outfile", str(theirs)], capture_output=True, text=True
    )
    if run.returncode:
        raise MedusaError(f"{script} failed on {model}:\n{run.stderr[-2000:]}")
    told = "PRE-TOKENIZER-NOT-RECOGNISED" in run.stdout
    header, other = read_header(ours)[0], read_header(theirs)[0]
    keys, expected, differences = compare_metadata(header.metadata(), other.metadata(), EXPECTED.get(model.name, {}))
    differences += compare_tensors(header, ours.read_bytes(), other, theirs.read_bytes())
    nbytes = sum(tensor.nbytes for tensor in header.tensors)
    return Comparison(model.name, len(header.tensors), nbytes, keys, expected, differences, told)


def compare_metadata(
    ours: dict[str, Any], theirs: dict[str, Any], expected: dict[str, str]
) -> tuple[int, list[str], list[str]]:
    """(number of keys compared, expected differences found, lines on the others)."""
    names = [
        key for key in dict.fromkeys([*ours, *theirs]) if not key.startswith("general.") or key in COMPARED_GENERAL
    ]
    differing = [key for key in names if ours.get(key) != theirs.get(key)]
    lines = [
        f"{key}: ours {repr(ours.get(key))[:200]}, theirs {repr(theirs.get(key))[:200]}"
        for key in differing
        if key not in expected
    ]
    return len(names), [key for key in differing if key in expected], lines


def compare_tensors(ours: Header, our_bytes: bytes, theirs: Header, their_bytes: bytes) -> list[str]:
    """Lines on tensors that differ in presence, order, shape, type or bytes."""
    if [tensor.name for tensor in ours.tensors] != [tensor.name for tensor in theirs.tensors]:
        mine, their = ({tensor.name for tensor in header.tensors} for header in (ours, theirs))
        return [f"tensor names or order differ: only ours {sorted(mine - their)}, only theirs {sorted(their - mine)}"]
    lines = []
    for first, second in zip(ours.tensors, theirs.tensors, strict=True):
        if (first.shape, first.type) != (second.shape, second.type):
            lines.append(f"{first.name}: ours {first.shape} {first.type}, theirs {second.shape} {second.type}")
            continue
        start, other = ours.data_offset + first.offset, theirs.data_offset + second.offset
        if our_bytes[start : start + first.nbytes] != their_bytes[other : other + first.nbytes]:
            lines.append(f"{first.name}: bytes differ")
    return lines


@dataclass
class Compare:
    """Our base conversion against llama.cpp's own converter: tensor for tensor, byte for byte, key for key.

    SCRIPT: convert_hf_to_gguf.py of an unpacked llama.cpp (llama-cpp-python's source distribution carries one under
    vendor/). MODEL: Hugging Face folders, by default all fixtures under tests/data/hf. Left out of the comparison:
    general.* keys other than general.file_type and general.quantization_version (names and provenance), and EXPECTED in
    this script. Exits with 1 on any other difference. llama.cpp's converter needs transformers and torch.
    """

    script: Path
    models: tuple[Path, ...] = ()
    _: KW_ONLY
    type: Literal["F32", "F16", "BF16"] = "F16"

    def run(self) -> None:
        models = self.models or sorted(path.parent for path in FIXTURES.glob("*/config.json"))
        differing = []
        print(f"{'model':<14} {'tensors':>7} {'bytes':>12} {'keys':>5}  result")
        for model in models:
            with tempfile.TemporaryDirectory() as folder:
                result = convert_both_ways(model, self.script, self.type, Path(folder))
            notes = [f"{key} differs on purpose" for key in result.expected]
            notes += ["pre-tokenizer name not checked"] if result.told_pre else []
            verdict = "DIFFERENT" if result.differences else "equal"
            print(
                f"{result.model:<14} {result.tensors:>7} {result.nbytes:>12,} {result.keys:>5}  {verdict}"
                + (f" ({'; '.join(notes)})" if notes else ""),
                flush=True,
            )
            for line in result.differences:
                print(f"    {line}")
            differing += [result.model] if result.differences else []
        if differing:
            raise MedusaError(f"not equal: {', '.join(differing)}")


@dataclass
class Pretokenizers:
    """The regular expressions of our pre-tokenizers on published vocabularies.

    llama.cpp knows the pre-tokenizer of a vocabulary by a digest of the ids that it gives to a test text. The published
    vocabularies in the folder models beside SCRIPT (convert_hf_to_gguf.py) are given the regular expressions of our
    table; their ids must have the digest that llama.cpp lists for them. Exits with 1 where they have not.
    """

    script: Path

    def run(self) -> None:
        source = (self.script.parent / "conversion" / "base.py").read_text(encoding="utf-8")
        text = re.search(r"chktxt = ('.*')", source)
        if text is None:
            raise MedusaError(f"{self.script}: this llama.cpp recognises pre-tokenizers in another way")
        listed = dict(re.findall(r'chkhsh == "([0-9a-f]{64})":\n.*\n\s+res = "([^"]+)"', source))
        wrong = []
        for name, form in PUBLISHED.items():
            vocabulary = self.script.parent / "models" / f"ggml-vocab-{name}.gguf"
            ids = published_ids(vocabulary, form, ast.literal_eval(text[1]))
            digests = [hashlib.sha256(str(variant).encode()).hexdigest() for variant in (ids, ids[1:])]
            equal = name in [listed.get(digest) for digest in digests]
            print(f"{name:<16} as {form:<16} {len(ids):>4} ids  {'equal' if equal else 'DIFFERENT'}")
            wrong += [] if equal else [name]
        if wrong:
            raise MedusaError(f"not equal: {', '.join(wrong)}")


def published_ids(path: Path, form: str, text: str) -> list[int]:
    """BOS and the ids of `text` from the vocabulary in a GGUF with the pre-tokenizer that the table calls `form`."""
    from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers

    header = read_header(path)[0]
    tokens, kinds = header.get("tokenizer.ggml.tokens"), header.get("tokenizer.ggml.token_type")
    merges = [tuple(merge.split(" ")) for merge in header.get("tokenizer.ggml.merges")]
    regexes, skips_merges = next(key for key, known in KNOWN.items() if known == form)
    vocabulary = {token: id for id, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, ignore_merges=skips_merges))
    splits = [pre_tokenizers.Split(Regex(regex), "isolated") for regex in regexes]
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*splits, level])
    tokenizer.normalizer = normalizers.NFC()
    special = [token for token, kind in zip(tokens, kinds, strict=True) if kind == CONTROL]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    return [header.get("tokenizer.ggml.bos_token_id"), *tokenizer.encode(text).ids]


HIDDEN, INNER, HEADS, KEY_HEADS = 2048, 5632, 32, 4  # TinyLlama


def make_base(folder: Path, tokenizer: Path, layers: int) -> int:
    """A Llama of random F16 weights, with that folder's tokenizer. Returns the size of its vocabulary."""
    import torch
    from safetensors.torch import save_file

    folder.mkdir()
    for file in tokenizer.iterdir():
        if file.suffix != ".safetensors":
            shutil.copy(file, folder)
    config = json.loads((tokenizer / "config.json").read_text())
    config |= {
        "hidden_size": HIDDEN,
        "intermediate_size": INNER,
        "num_hidden_layers": layers,
        "head_dim": HIDDEN // HEADS,
    }
    config |= {"num_attention_heads": HEADS, "num_key_value_heads": KEY_HEADS}
    (folder / "config.json").write_text(json.dumps(config))
    vocabulary, keys = config["vocab_size"], HIDDEN // HEADS * KEY_HEADS

    def matrix(rows: int, columns: int) -> Any:
        return (torch.randn(rows, columns) * 0.02).half()

    tensors = {"model.embed_tokens.weight": matrix(vocabulary, HIDDEN), "lm_head.weight": matrix(vocabulary, HIDDEN)}
    tensors["model.norm.weight"] = torch.ones(HIDDEN).half()
    shapes = {
        "self_attn.q_proj": (HIDDEN, HIDDEN),
        "self_attn.k_proj": (keys, HIDDEN),
        "self_attn.v_proj": (keys, HIDDEN),
        "self_attn.o_proj": (HIDDEN, HIDDEN),
        "mlp.gate_proj": (INNER, HIDDEN),
        "mlp.up_proj": (INNER, HIDDEN),
        "mlp.down_proj": (HIDDEN, INNER),
    }
    for layer in range(layers):
        for name, shape in shapes.items():
            tensors[f"model.layers.{layer}.{name}.weight"] = matrix(*shape)
        for name in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"model.layers.{layer}.{name}.weight"] = torch.ones(HIDDEN).half()
    save_file(tensors, folder / "model.safetensors")
    print(f"{sum(tensor.numel() for tensor in tensors.values()) / 1e9:.2f} billion parameters")
    return int(vocabulary)


def make_heads(folder: Path) -> None:
    """Medusa heads on the base's lm_head."""
    import torch

    folder.mkdir()
    tensors = {f"{i}.0.linear.weight": (torch.randn(HIDDEN, HIDDEN) * 0.01).half() for i in range(4)}
    tensors |= {f"{i}.0.linear.bias": torch.zeros(HIDDEN).half() for i in range(4)}
    torch.save(tensors, folder / "medusa_lm_head.pt")
    (folder / "config.json").write_text(json.dumps({"version": "2"}))


def tree_of(pid: int) -> list[int]:
    """The process and its children (Linux)."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        children = []
    return [pid, *(one for child in children for one in tree_of(int(child)))]


def memory(pid: int) -> tuple[int, int]:
    """Bytes of anonymous memory, and of all resident memory (Linux)."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0, 0
    sizes = {
        name: int(rest.split()[0]) << 10
        for name, _, rest in (line.partition(":") for line in lines)
        if "Rss" in name or "VmRSS" in name
    }
    return sizes.get("RssAnon", 0), sizes.get("VmRSS", 0)


@dataclass
class Time:
    """Time and memory of converting a model of about a billion parameters.

    Makes a Llama of TinyLlama's shape with random F16 weights and the tokenizer of the given folder, and Medusa heads
    on the base's lm_head, then runs `medusa convert` on them: the time of each phase and the peak of its memory. Linux
    alone.
    """

    _: KW_ONLY
    tokenizer: Path
    layers: int = 22
    quant: str = "Q4_K_M"

    def run(self) -> None:
        with tempfile.TemporaryDirectory() as scratch:
            base, heads, out = (Path(scratch) / name for name in ("base", "heads", "out.gguf"))
            vocabulary = make_base(base, self.tokenizer, self.layers)
            make_heads(heads)
            command = ["medusa", "convert", heads, "--base", base, "-o", out, "--quant", self.quant, "--json"]
            begun = time.monotonic()
            process = subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, text=True)
            own = resident = 0
            while process.poll() is None:
                now = [memory(pid) for pid in tree_of(process.pid)]
                own, resident = max(own, sum(one for one, _ in now)), max(resident, sum(one for _, one in now))
                time.sleep(0.02)
            total = time.monotonic() - begun
            if process.returncode:
                raise MedusaError("medusa convert failed")
            assert process.stdout is not None
            for title, seconds in json.loads(process.stdout.read())["seconds"].items():
                print(f"{title:<18} {seconds:7.1f} s  {seconds / total:5.0%}")
            print(f"{'in all':<18} {total:7.1f} s, {out.stat().st_size / 1e6:.0f} MB written")
        # The self-check maps the finished model: pages of a file, which the system takes back when it needs them.
        print(f"largest memory of its own {own >> 20} MiB, with mapped files {resident >> 20} MiB")
        largest = max(INNER, vocabulary) * HIDDEN * 2
        print(f"largest tensor {largest >> 20} MiB; x 4 + 1 GiB: {(4 * largest >> 20) + 1024} MiB")


def parser() -> ArgumentParser:
    return common.parser(__doc__, Compare, Pretokenizers, Time)


if __name__ == "__main__":
    common.main(parser())
