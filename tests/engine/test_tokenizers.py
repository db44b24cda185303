"""Long texts and libllama's tokenizers: std::regex, which splits for some, calls itself for every character.

Longer ones for all of its splitters: MEDUSA_FUZZ=50 pytest -m slow tests/engine/test_tokenizers.py
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from fixtures import BASE_VOCAB, tiny_base
from gguf_edits import edited

from medusa_cli import native

REGEX = ("gpt-4o", "tekken", "deepseek-v3", "superbpe", "chatglm-bpe", "bloom", "exaone-moe")
"""Pre-tokenizers without code of their own in libllama, or with some for parts of their patterns only."""
STRETCHES = ("a", " ", ".", "\n", "/\n", "a1-", "a b ", "\u6c34", "\u0301", "aB", "\u3000")

SPLITTERS = [
    "afmoe", "bailingmoe", "bloom", "chameleon", "chatglm-bpe", "codeshell", "command-r", "dbrx", "deepseek-coder",
    "deepseek-llm", "deepseek-v3", "exaone", "exaone-moe", "falcon", "gemma4", "gpt-2", "gpt-4o", "gpt3-finnish",
    "granite-docling", "granite-embed-multi-97m", "grok-2", "hunyuan", "hunyuan-dense", "hy_v4", "jais", "jais-2",
    "joyai-llm", "kimi-k2", "laguna", "llama3", "mellum2", "minerva-7b", "minicpm5", "minimax-m2", "mpt",
    "olmo", "poro-chat", "qwen2", "qwen35", "refact", "sarvam-moe", "seed-coder", "smaug-bpe", "smollm",
    "solar-open", "spark2_5", "stablelm2", "starcoder", "superbpe", "tekken", "tiny_aya", "trillion", "ufakzeka",
    "viking", "youtu",
]  # fmt: skip
"""One name of each that libllama knows, but for "whitespace", which is for vocabularies of another kind."""
MORE = (
    "1", "'s", "\U0001f600", "A", "\t", "\u0e01", "\r\n", "_", "I'", "\u0661", "<", "\u200d", "\ufffd", "\U000e0041",
    "\x00", "-", "=", "\u0130", "\u00df", "\u2028",
)  # fmt: skip
LONG = 20_000 * int(os.environ.get("MEDUSA_FUZZ", "1"))


def check_stretches(path: Path) -> None:
    """In a process of its own: a stack that is too small ends it."""
    program = (
        "import sys; from medusa_cli import native\n"
        "model = native.Model(sys.argv[1], n_gpu_layers=0)\n"
        "for one in sys.argv[2:]:\n"
        "    text = 'Well, ' + one * 120_000 + ' yes.'\n"
        "    assert model.detokenize(model.tokenize(text, add_special=False)) == text, one\n"
        "print('all')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(path), *STRETCHES], capture_output=True, text=True, check=False, timeout=120
    )
    assert (done.returncode, done.stdout) == (0, "all\n"), done.stderr[-500:]


@pytest.mark.parametrize("pre", REGEX)
def test_long_stretches_of_one_kind_are_tokenized(tmp_path: Path, pre: str) -> None:
    check_stretches(tiny_base(tmp_path / "model.gguf", pre=pre))


@pytest.mark.slow
def test_every_splitter_takes_long_stretches(tmp_path: Path) -> None:
    """Within seconds, or refuses them in one line. In a process of its own, as above."""
    paths = [tiny_base(tmp_path / f"{pre}.gguf", pre=pre) for pre in SPLITTERS]
    program = (
        "import sys, time; from medusa_cli import native\n"
        "for path in sys.argv[2:]:\n"
        "    model = native.Model(path, n_gpu_layers=0)\n"
        f"    for one in {STRETCHES + MORE!r}:\n"
        "        begun = time.process_time()\n"
        "        try:\n"
        "            model.tokenize('Well, ' + one * (int(sys.argv[1]) // len(one)) + ' yes.')\n"
        "        except native.NativeError as error:\n"
        "            assert 'in a row, the tokenizer takes' in str(error), error\n"
        "        took = time.process_time() - begun\n"
        "        assert took < 1 + int(sys.argv[1]) / 50_000, (path, one, took)\n"
        "    print(path, flush=True)\n"
    )
    call = [sys.executable, "-c", program, str(LONG), *map(str, paths)]
    done = subprocess.run(call, capture_output=True, text=True, check=False)
    assert done.stdout.split() == [str(path) for path in paths], done.stderr[-500:]
    assert done.returncode == 0


def test_other_kinds_split_like_gpt2(tmp_path: Path) -> None:
    base = tiny_base(tmp_path / "model.gguf", pre="gpt-4o")
    check_stretches(edited(base, tmp_path / "other.gguf", {"tokenizer.ggml.model": "hybriddna"}))


def test_a_longer_text_is_refused_in_one_line(tmp_path: Path) -> None:
    model = native.Model(str(tiny_base(tmp_path / "model.gguf", pre="gpt-4o")), n_gpu_layers=0)
    with pytest.raises(native.NativeError, match=r"has 8000001 characters, the tokenizer takes 8000000 at a time"):
        model.tokenize("a" * 8_000_001)
    assert len(model.tokenize("a " * 1_000_000, add_special=False)) >= 2_000_000


def test_sentencepiece_takes_long_texts(tmp_path: Path) -> None:
    model = native.Model(str(tiny_base(tmp_path / "model.gguf")), n_gpu_layers=0)
    assert len(model.tokenize("\u6c34" * 100_000, add_special=False)) >= 100_000
    assert len(model.tokenize("a b" * 1_000_000, add_special=False)) >= 1_000_000


def test_a_text_that_would_take_sentencepiece_hours_is_refused(tmp_path: Path) -> None:
    """For each character that is no token, libllama copies all tokens before it."""
    model = native.Model(str(tiny_base(tmp_path / "model.gguf")), n_gpu_layers=0)
    begun = time.monotonic()
    for text in ("\u6c34" * 2_600_000, "a" * 8_000_000 + "\u6c34" * 10_000):
        with pytest.raises(native.NativeError, match=r"0 characters that are not in the vocabulary.*shorten it"):
            model.tokenize(text)
    assert time.monotonic() - begun < 5


def test_special_tokens_that_would_take_minutes_are_refused(tmp_path: Path) -> None:
    """At each, libllama walks through all that came before it."""
    model = native.Model(str(tiny_base(tmp_path / "model.gguf", pre="qwen2")), n_gpu_layers=0)
    begun = time.monotonic()
    for text in ("<5>" * 50_001, "<7>, <8>" * 25_001, "<5>" * 2_700_000):
        with pytest.raises(native.NativeError, match=r"more than 50000 special tokens.*shorten it"):
            model.tokenize(text)
    assert len(model.tokenize("<5>" * 100_000, add_special=False, parse_special=False)) == 300_000
    assert len(model.tokenize("<5>" * 20_000, add_special=False)) == 20_000
    assert len(model.tokenize("<5<<" * 100_000, add_special=False)) == 400_000
    assert time.monotonic() - begun < 10


def test_a_vocabulary_without_single_bytes_is_refused(tmp_path: Path) -> None:
    """RWKV's tokenizer starts over at the beginning of a text where no token fits."""
    tokens = [f"\\x{byte:02x}" for byte in range(256)] + [f"<{number}>" for number in range(BASE_VOCAB - 256)]
    keys = {"tokenizer.ggml.model": "rwkv", "tokenizer.ggml.tokens": tokens}
    base = tiny_base(tmp_path / "model.gguf")
    whole = native.Model(str(edited(base, tmp_path / "rwkv.gguf", keys)), n_gpu_layers=0)
    text = "All is well: <7> \u6c34. "
    assert whole.detokenize(whole.tokenize(text * 1000, add_special=False)) == text * 1000
    tokens[ord("<")] = "<<"
    with pytest.raises(native.NativeError, match=r"damaged.gguf: .*several bytes without one for their first byte"):
        native.Model(str(edited(base, tmp_path / "damaged.gguf", keys)), n_gpu_layers=0)


def test_digits_that_would_take_minutes_are_refused(tmp_path: Path) -> None:
    """superbpe looks at all digits behind each one."""
    model = native.Model(str(tiny_base(tmp_path / "model.gguf", pre="superbpe")), n_gpu_layers=0)
    with pytest.raises(native.NativeError, match=r"4001 digits in a row, the tokenizer takes 4000"):
        model.tokenize("1" * 4001)
    assert len(model.tokenize("1" * 2000, add_special=False)) == 2000
    assert len(model.tokenize("a" * 5000, add_special=False)) == 2500
    other = native.Model(str(tiny_base(tmp_path / "other.gguf", pre="gpt-4o")), n_gpu_layers=0)
    assert len(other.tokenize("1" * 20_000, add_special=False)) == 20_000


@pytest.mark.parametrize("pre", REGEX)
def test_the_stack_does_not_change_the_tokens(tmp_path: Path, pre: str) -> None:
    """A stretch that takes a stack of its own, in a text whose other words do not, changes nothing around it."""
    model = native.Model(str(tiny_base(tmp_path / "model.gguf", pre=pre)), n_gpu_layers=0)
    words = "It is 12 o'clock, says\n\n  the cat. "
    before, pair = (model.tokenize(text, add_special=False) for text in (words, "aa"))
    assert model.tokenize(words + "a" * 3000, add_special=False) == before + pair * 1500


def test_white_space_that_would_take_minutes_is_refused(tmp_path: Path) -> None:
    """jais-2 looks for the end of the line behind every 512 of them."""
    model = native.Model(str(tiny_base(tmp_path / "model.gguf", pre="jais-2")), n_gpu_layers=0)
    for one in (" ", "\u3000", "\t\u2003"):
        with pytest.raises(native.NativeError, match=r"white space characters in a row, the tokenizer takes 100000"):
            model.tokenize("a" + one * 100_001)
    assert len(model.tokenize("a" + " " * 50_000 + "b" + " " * 60_000)) > 1000
    assert len(model.tokenize(" a" * 200_000, add_special=False)) == 400_000


def test_other_threads_go_on_while_a_text_is_tokenized(tmp_path: Path) -> None:
    model = native.Model(str(tiny_base(tmp_path / "model.gguf", pre="gpt-4o")), n_gpu_layers=0)
    worker = threading.Thread(target=model.tokenize, args=("So it goes, 12 times. " * 100_000,))
    begun, turns = time.monotonic(), 0
    worker.start()
    while worker.is_alive():
        time.sleep(0.001)
        turns += 1
    assert time.monotonic() - begun > 0.1  # it takes long enough to tell
    assert turns > 20
