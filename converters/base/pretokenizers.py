r"""Which of libllama's pre-tokenizers (tokenizer.ggml.pre) a byte-level tokenizer.json asks for.

libllama knows pre-tokenizers by name and carries their regular expressions itself. A tokenizer.json describes its own
as steps; here the steps become regular expressions (a digit splitter is \p{N}, a ByteLevel step brings GPT-2's unless
told not to), and the sequence is looked up. An unknown one is refused: with the wrong pre-tokenizer a model still
answers, only worse, and nobody would know why.
"""

from __future__ import annotations

from typing import Any

from ..errors import MedusaError

MAX_DEPTH = 8

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
DIGIT = r"\p{N}"
DIGITS = r"\p{N}+"

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_TAIL = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_WORD = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|"
LLAMA3 = _WORD + r"\p{N}{1,3}" + _TAIL
QWEN2 = _WORD + r"\p{N}" + _TAIL

_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_SLASH_TAIL = r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_FIRST, _SECOND = rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+", rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*"
TEKKEN = rf"{_FIRST}|{_SECOND}|\p{{N}}{_SLASH_TAIL}"
GPT4O = rf"{_FIRST}{_CONTRACTIONS}?|{_SECOND}{_CONTRACTIONS}?|\p{{N}}{{1,3}}{_SLASH_TAIL}"

DEEPSEEK_CODER = ("[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-퟿]+", DIGIT)

KNOWN: dict[tuple[tuple[str, ...], bool], str] = {
    ((GPT2,), False): "gpt-2",
    ((DIGIT, GPT2), False): "smollm",
    ((QWEN2,), False): "qwen2",
    ((LLAMA3,), False): "dbrx",
    ((LLAMA3,), True): "llama-bpe",
    ((TEKKEN,), True): "tekken",
    ((GPT4O,), False): "gpt-4o",
    (DEEPSEEK_CODER, False): "deepseek-coder",
}
"""(regular expressions in order, whether whole words of the vocabulary skip the merges) -> libllama's name."""


def find_pretokenizer(tokenizer: dict[str, Any], where: str) -> str:
    """libllama's name for the pre-tokenizer of a tokenizer.json. MedusaError for one that it does not have."""
    _check_normalizer(tokenizer.get("normalizer"), where)
    model = tokenizer["model"]
    if model.get("continuing_subword_prefix") or model.get("end_of_word_suffix"):
        raise MedusaError(
            f"{where}: BPE with word prefixes or suffixes is unknown to libllama: give a GGUF as the base"
        )
    steps = _steps(tokenizer.get("pre_tokenizer"), where)
    name = KNOWN.get((tuple(steps), bool(model.get("ignore_merges"))))
    if name is None:
        raise _unknown(where, " then ".join(steps) or "none")
    return name


def _unknown(where: str, form: str) -> MedusaError:
    return MedusaError(
        f"{where}: no pre-tokenizer of libllama is known to match this one ({form[:160]}): give a GGUF as the base"
    )


def _check_normalizer(normalizer: Any, where: str) -> None:
    """Only Unicode composition (NFC) may be asked for: libllama leaves it out, and most text is already composed."""
    parts = normalizer.get("normalizers") if _is(normalizer, "Sequence") else [normalizer]
    for part in parts if isinstance(parts, list) else [parts]:
        if part is not None and not _is(part, "NFC"):
            raise MedusaError(f"{where}: libllama has no normalizer like {repr(part)[:60]}: give a GGUF as the base")


def _steps(step: Any, where: str, depth: int = 0) -> list[str]:
    """The regular expressions that a pre-tokenizer applies one after the other."""
    if _is(step, "Sequence") and isinstance(step.get("pretokenizers"), list) and depth < MAX_DEPTH:
        return [regex for part in step["pretokenizers"] for regex in _steps(part, where, depth + 1)]
    if _is(step, "ByteLevel") and not step.get("add_prefix_space"):
        return [GPT2] if step.get("use_regex", True) else []
    if _is(step, "Digits"):
        return [DIGIT if step.get("individual_digits") else DIGITS]
    # Removing what lies between the matches is the same as isolating them where, as in all known ones, every
    # character belongs to a match.
    if _is(step, "Split") and (step.get("behavior"), bool(step.get("invert"))) in (
        ("Isolated", False),
        ("Removed", True),
    ):
        pattern = step.get("pattern")
        if isinstance(pattern, dict) and isinstance(pattern.get("Regex"), str):
            return [pattern["Regex"]]
    raise _unknown(where, repr(step))


def _is(value: Any, kind: str) -> bool:
    return isinstance(value, dict) and value.get("type") == kind
