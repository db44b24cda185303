"""Our base conversion against llama.cpp's own converter: tensor for tensor, byte for byte, key for key.

    python benchmarks/compare_with_llama_cpp.py PATH/convert_hf_to_gguf.py [MODEL...] [--type F16]
    python benchmarks/compare_with_llama_cpp.py PATH/convert_hf_to_gguf.py --pre-tokenizers

PATH: an unpacked llama.cpp (llama-cpp-python's source distribution carries one under vendor/). MODEL: Hugging Face
folders, by default all fixtures under tests/data/hf. Left out of the comparison: general.* keys other than
general.file_type and general.quantization_version (names and provenance), and EXPECTED below. Exits 1 on any other
difference. Needs transformers and torch, which llama.cpp's converter imports.

--pre-tokenizers: llama.cpp knows the pre-tokenizer of a vocabulary by a digest of the ids that it gives to a test
text. The published vocabularies in PATH/models are given the regular expressions of our table; their ids must have the
digest that llama.cpp lists for them.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from medusa_cli.converters.base import write_base
from medusa_cli.converters.base.pretokenizers import KNOWN
from medusa_cli.converters.checkpoints.checkpoint import open_checkpoint
from medusa_cli.converters.gguf.header import Header, read_header

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


def compare(model: Path, script: Path, file_type: str, folder: Path) -> Comparison:
    """Converts `model` both ways into `folder`."""
    ours, theirs = folder / "ours.gguf", folder / "theirs.gguf"
    write_base(open_checkpoint(model), ours, file_type)
    pre = read_header(ours)[0].get("tokenizer.ggml.pre")
    command = [sys.executable, "-c", RUN_PEER, str(script), pre, str(model)]
    run = subprocess.run(
        [*command, "--outtype", file_type.lower(), "--outfile", str(theirs)], capture_output=True, text=True
    )
    if run.returncode:
        raise SystemExit(f"{script} failed on {model}:\n{run.stderr[-2000:]}")
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


def compare_pretokenizers(script: Path) -> list[str]:
    """One line for each published vocabulary, "DIFFERENT" in those that got another digest."""
    source = (script.parent / "conversion" / "base.py").read_text(encoding="utf-8")
    text = re.search(r"chktxt = ('.*')", source)
    if text is None:
        raise SystemExit(f"{script}: this llama.cpp recognises pre-tokenizers in another way")
    listed = dict(re.findall(r'chkhsh == "([0-9a-f]{64})":\n.*\n\s+res = "([^"]+)"', source))
    lines = []
    for name, form in PUBLISHED.items():
        ids = published_ids(script.parent / "models" / f"ggml-vocab-{name}.gguf", form, ast.literal_eval(text[1]))
        digests = [hashlib.sha256(str(variant).encode()).hexdigest() for variant in (ids, ids[1:])]
        verdict = "equal" if name in [listed.get(digest) for digest in digests] else "DIFFERENT"
        lines.append(f"{name:<16} as {form:<16} {len(ids):>4} ids  {verdict}")
    return lines


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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("script", type=Path)
    parser.add_argument("models", type=Path, nargs="*")
    parser.add_argument("--type", default="F16", choices=["F32", "F16", "BF16"])
    parser.add_argument("--pre-tokenizers", action="store_true")
    arguments = parser.parse_args()
    if arguments.pre_tokenizers:
        lines = compare_pretokenizers(arguments.script)
        print("\n".join(lines))
        return int(any(line.endswith("DIFFERENT") for line in lines))
    models = arguments.models or sorted(path.parent for path in FIXTURES.glob("*/config.json"))
    failed = False
    print(f"{'model':<14} {'tensors':>7} {'bytes':>12} {'keys':>5}  result")
    for model in models:
        with tempfile.TemporaryDirectory() as folder:
            result = compare(model, arguments.script, arguments.type, Path(folder))
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
        failed = failed or bool(result.differences)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
