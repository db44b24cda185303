"""Base models from Hugging Face files: goldens, logits and tokens against transformers."""

from __future__ import annotations

import json
import shutil
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import _native_testing as testing
import gguf
import make_hf_fixtures as fixtures
import numpy as np
import pytest
from hf_files import convert, edit_json, edit_weights
from medusa_cli.converters.base import ARCHITECTURES, pretokenizers
from medusa_cli.converters.base.registry import interleave_halves
from medusa_cli.converters.checkpoints.checkpoint import Checkpoint, open_checkpoint
from medusa_cli.converters.gguf.header import read_header

from medusa_cli import native
from medusa_cli.support.errors import MedusaError

NAMES = list(fixtures.FIXTURES)
SENTENCEPIECE = ["llama-spm", "mistral-spm", "gemma3", "phi3-spm"]
BYTE_LEVEL = ["llama-bpe", "qwen2", "qwen3", "phi4-bpe"]

NASTY = [
    "",
    "Hello world",
    " a",
    "  two leading, two trailing  ",
    "\n",
    "a\n\n\nb\r\n\tc \n",
    "don't I'LL we'Ve 'tis",
    "12345 6 78 3.14 1,000,000",
    "你好,世界。 한국어 ไทย",
    "\U0001f680 emoji \U0001f636\u200d\U0001f32b\ufe0f",
    "naïve café ÀÉÎõü Ωμέγα مرحبا؟",
    "x" * 50,
    "a  b   c    d     e",
    "▁▁ ▁",
    "\u00a0nbsp \u200bzero\u3000wide",
    "\x00\x01\x7f",
    "for (int i=0;i<10;++i) {\n    x += 1;\n}\n",
    "HTTPServer camelCase snake_case UPPER",
    '=====----- `code` "quoted" $5 100% a@b.c //',
    "end.",
]


@pytest.fixture
def copy(tmp_path: Path) -> Callable[[str], Path]:
    """Copies a fixture, so that a test can damage it."""

    def make(name: str) -> Path:
        return Path(shutil.copytree(fixtures.HERE / name, tmp_path / name))

    return make


def read_tensor(path: Path, name: str) -> np.ndarray:
    return next(np.array(tensor.data) for tensor in gguf.GGUFReader(path).tensors if tensor.name == name)


# --- what is written ---------------------------------------------------------------------------------------------


def test_every_architecture_has_a_fixture() -> None:
    configs = [json.loads((fixtures.HERE / name / "config.json").read_text()) for name in NAMES]
    assert {config["architectures"][0] for config in configs} == set(ARCHITECTURES)


def test_fixtures_are_small() -> None:
    assert sum(path.stat().st_size for path in fixtures.HERE.rglob("*")) < 1_500_000


@pytest.mark.parametrize("name", NAMES)
def test_golden(name: str) -> None:
    """Names, shapes, types, bytes of all tensors and all metadata."""
    expected = json.loads((fixtures.HERE / fixtures.GOLDENS).read_text())[name]
    found = json.loads(json.dumps(fixtures.golden(fixtures.HERE / name)))
    assert found["metadata"] == expected["metadata"]
    assert found["tensors"] == expected["tensors"]


@pytest.mark.parametrize("name", ["llama-spm", "qwen3"])
def test_bf16_rounds_to_nearest(name: str, tmp_path: Path) -> None:
    path = convert(fixtures.HERE / name, tmp_path / "b.gguf", "BF16")
    assert read_header(path)[0].get("general.file_type") == 32
    stored = open_checkpoint(fixtures.HERE / name).load("model.embed_tokens.weight").astype(np.float32)
    bits = read_tensor(path, "token_embd.weight").view(np.uint16).astype(np.uint32) << 16
    assert np.abs(bits.view(np.float32).reshape(stored.shape) - stored).max() <= np.abs(stored).max() * 2**-8
    torch = pytest.importorskip("torch")
    expected = torch.from_numpy(stored).to(torch.bfloat16).view(torch.int16).numpy().view(np.uint16)
    assert np.array_equal((bits >> 16).astype(np.uint16).reshape(stored.shape), expected)


def test_llama3_factors_are_the_published_ones(tmp_path: Path) -> None:
    """Ends: no scaling of short wavelengths, the whole factor for long ones, something between for one of them."""
    factors = read_tensor(convert(fixtures.HERE / "llama-bpe", tmp_path / "l.gguf"), "rope_freqs.weight")
    assert factors.dtype == np.float32
    assert factors[0] == 1
    assert factors[-1] == 8
    assert np.all(np.diff(factors) >= 0)


def test_interleave_halves() -> None:
    rows = np.arange(8)[:, None]
    assert interleave_halves(rows, 1)[:, 0].tolist() == [0, 4, 1, 5, 2, 6, 3, 7]
    assert interleave_halves(rows[:, 0], 2).tolist() == [0, 2, 1, 3, 4, 6, 5, 7]


def test_provenance_name_and_progress(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    provenance = {"general.name": "a name", "general.source.huggingface.repository": "org/repo", "medusa.x": "y"}
    path = convert(
        fixtures.HERE / "qwen3",
        tmp_path / "q.gguf",
        provenance=provenance,
        progress=lambda done, total: seen.append((done, total)),
    )
    header, size = read_header(path)
    assert {key: header.get(key) for key in provenance} == provenance
    total = sum(tensor.nbytes for tensor in header.tensors)
    assert seen[-1] == (total, total)
    assert seen == sorted(seen)
    assert size >= header.data_offset + total


def test_name_is_the_folders_without_provenance(tmp_path: Path) -> None:
    assert read_header(convert(fixtures.HERE / "qwen3", tmp_path / "q.gguf"))[0].get("general.name") == "qwen3"


def test_one_tensor_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alive: set[int] = set()
    most = 0
    load = Checkpoint.load

    def counted(self: Checkpoint, name: str) -> Any:
        nonlocal most
        values = load(self, name)
        alive.add(id(values))
        weakref.finalize(values, alive.discard, id(values))
        most = max(most, len(alive))
        return values

    monkeypatch.setattr(Checkpoint, "load", counted)
    convert(fixtures.HERE / "gemma3", tmp_path / "g.gguf")
    assert most == 1


def test_rename_separates_base_and_heads(copy: Any, tmp_path: Path) -> None:
    """A full model of base and heads: prefixed names, tensors that are not the base's."""
    folder = copy("llama-spm")

    def prefix(weights: dict[str, np.ndarray]) -> None:
        for name in list(weights):
            weights[f"base.{name}"] = weights.pop(name)
        weights["heads.0.weight"] = np.ones((4, 4), np.float16)

    edit_weights(folder, prefix, np.float16)
    with pytest.raises(MedusaError, match=r"tensor 'base\.lm_head\.weight' is unknown|tensor 'base"):
        convert(folder, tmp_path / "no.gguf")

    def rename(name: str) -> str | None:
        return name[5:] if name.startswith("base.") else None

    found = convert(folder, tmp_path / "renamed.gguf", rename=rename, provenance={"general.name": "x"})
    plain = convert(fixtures.HERE / "llama-spm", tmp_path / "plain.gguf", provenance={"general.name": "x"})
    for tensor in read_header(plain)[0].tensors:
        assert np.array_equal(read_tensor(found, tensor.name), read_tensor(plain, tensor.name))


def test_gemma3_config_as_transformers_4_wrote_it(copy: Any, tmp_path: Path) -> None:
    folder = copy("gemma3")

    def old(config: dict[str, Any]) -> None:
        del config["rope_parameters"], config["layer_types"], config["head_dim"]
        config |= {"rope_scaling": {"factor": 4.0, "rope_type": "linear"}, "sliding_window_pattern": 6, "head_dim": 16}

    edit_json(folder / "config.json", old)
    expected = read_header(convert(fixtures.HERE / "gemma3", tmp_path / "new.gguf"))[0].metadata()
    assert read_header(convert(folder, tmp_path / "old.gguf"))[0].metadata() == expected


def test_template_that_ends_with_another_token(copy: Any, tmp_path: Path) -> None:
    """The token a post-processor puts behind each text is the end of sequence; the named one ends a turn."""
    folder = copy("qwen2")
    end = {"SpecialToken": {"id": "<|endoftext|>", "type_id": 0}}
    single = [{"Sequence": {"id": "A", "type_id": 0}}, end]
    pair = [{"Sequence": {"id": "A", "type_id": 0}}, end, {"Sequence": {"id": "B", "type_id": 1}}, end]
    processor = {"type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": {}}
    edit_json(folder / "tokenizer.json", lambda value: value.update(post_processor=processor))
    header = read_header(convert(folder, tmp_path / "t.gguf"))[0]
    tokens = header.get("tokenizer.ggml.tokens")
    assert tokens[header.get("tokenizer.ggml.eos_token_id")] == "<|endoftext|>"
    assert tokens[header.get("tokenizer.ggml.eot_token_id")] == "<|im_end|>"
    assert header.get("tokenizer.ggml.add_eos_token") is True
    assert header.get("tokenizer.ggml.add_bos_token") is False
    assert header.get("tokenizer.ggml.add_sep_token") is False


@pytest.mark.parametrize("same", [True, False])
def test_tied_head_that_is_stored_anyway(same: bool, copy: Any, tmp_path: Path) -> None:
    """transformers unties a head that is stored with other values; one with the same values is stored once."""
    folder = copy("qwen2")

    def store(weights: dict[str, np.ndarray]) -> None:
        weights["lm_head.weight"] = weights["model.embed_tokens.weight"] + (0 if same else 1)

    edit_weights(folder, store)
    names = [tensor.name for tensor in read_header(convert(folder, tmp_path / "t.gguf"))[0].tensors]
    assert ("output.weight" in names) is not same


def test_medusa_class_names_are_their_bases(copy: Any, tmp_path: Path) -> None:
    folder = copy("llama-spm")
    edit_json(folder / "config.json", lambda config: config.update(architectures=["MedusaLlamaForCausalLM"]))
    assert read_header(convert(folder, tmp_path / "m.gguf"))[0].get("general.architecture") == "llama"


@pytest.mark.parametrize(
    ("strips", "folder_name", "name"),
    [(True, "tuned", "Phi-3 tuned"), (True, "my-phi3", "my-phi3"), (False, "Phi-3-mini", "phi 3-mini")],
)
def test_phi3_name_says_whether_tokens_strip(strips: bool, folder_name: str, name: str, copy: Any) -> None:
    """libllama reads from general.name whether the blanks behind a Phi-3's special tokens are dropped."""
    folder = copy("phi3-spm")
    folder = folder.rename(folder.parent / folder_name)
    if not strips:

        def keep(config: dict[str, Any]) -> None:
            for token in config["added_tokens_decoder"].values():
                token["rstrip"] = False

        edit_json(folder / "tokenizer_config.json", keep)
    path = convert(folder, folder.parent / "p.gguf")
    assert read_header(path)[0].get("general.name") == name
    user = native.Model(str(path), n_gpu_layers=0).tokenize("<|user|>  x", add_special=False)
    blanks = native.Model(str(path), n_gpu_layers=0).tokenize("<|user|>x", add_special=False)
    assert (user == blanks) is strips


# --- against transformers ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_logits_agree_with_transformers(name: str, tmp_path: Path) -> None:
    """Last logits after 5, 24 (beyond gemma3's window) and 300 tokens (beyond the original context of rope scalings).

    Bound: half a per cent of the logits' spread from F32 weights (the cache is F16), one per cent from F16 weights.
    """
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    reference = transformers.AutoModelForCausalLM.from_pretrained(fixtures.HERE / name, dtype=torch.float32).eval()
    for file_type, bound in (("F32", 0.005), ("F16", 0.01)):
        path = convert(fixtures.HERE / name, tmp_path / f"{file_type}.gguf", file_type)
        model = native.Model(str(path), n_gpu_layers=0)
        # Mistral's window of 128 is not applied by libllama: only lengths within it can agree.
        for count in (5, 24, 120 if name == "mistral-spm" else 300):
            tokens = np.random.default_rng(count).integers(3, 300, count).tolist()
            with torch.no_grad():
                expected = reference(torch.tensor([tokens])).logits[0, -1].numpy()
            found = np.array(testing.teacher_forced(model, tokens, prompt_length=count, n_threads=1)[1])
            assert np.abs(found - expected).max() < bound * expected.std(), (file_type, count)


@pytest.mark.parametrize(
    ("name", "scaling"),
    [
        ("qwen2", {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128, "attention_factor": 0.8}),
        ("qwen2", {"type": "yarn", "factor": 2.0, "beta_fast": 16.0, "beta_slow": 2.0}),
        ("qwen2", {"type": "linear", "factor": 3.0}),
        ("qwen2", {"type": "dynamic", "factor": 3.0}),
        ("llama-spm", {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 64}),
        ("llama-spm", None),
    ],
)
def test_rope_scalings_agree_with_transformers(name: str, scaling: Any, copy: Any, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    folder = copy(name)
    edit_json(folder / "config.json", lambda config: config.update(rope_scaling=scaling))
    reference = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    model = native.Model(str(convert(folder, tmp_path / "r.gguf", "F32")), n_gpu_layers=0)
    tokens = np.random.default_rng(1).integers(3, 300, 200).tolist()
    with torch.no_grad():
        expected = reference(torch.tensor([tokens])).logits[0, -1].numpy()
    found = np.array(testing.teacher_forced(model, tokens, prompt_length=len(tokens), n_threads=1)[1])
    assert np.abs(found - expected).max() < 0.01 * expected.std()


@pytest.mark.parametrize("name", BYTE_LEVEL)
def test_byte_level_tokens_agree_with_transformers(name: str, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    reference = transformers.AutoTokenizer.from_pretrained(fixtures.HERE / name)
    model = native.Model(str(convert(fixtures.HERE / name, tmp_path / "t.gguf")), n_gpu_layers=0)
    added = list(reference.get_added_vocab())
    for text in [*NASTY, *added, *(f"a {token} b\n{token}{token}c" for token in added)]:
        assert model.tokenize(text) == reference(text)["input_ids"], text
        assert model.detokenize(model.tokenize(text, add_special=False), special=True) == text


@pytest.mark.parametrize("name", SENTENCEPIECE)
def test_sentencepiece_tokens_agree_with_sentencepiece(name: str, tmp_path: Path) -> None:
    """Plain text against the library itself; special tokens cut the text, and each part counts as a text."""
    from sentencepiece import SentencePieceProcessor

    processor = SentencePieceProcessor()
    processor.LoadFromFile(str(fixtures.HERE / name / "tokenizer.model"))
    model = native.Model(str(convert(fixtures.HERE / name, tmp_path / "t.gguf")), n_gpu_layers=0)
    texts = [text for text in NASTY if not (name == "gemma3" and "   " in text)]  # an added token there
    for text in texts:
        assert model.tokenize(text, add_special=False) == processor.EncodeAsIds(text), text
        assert model.tokenize(text)[:1] == [2 if name == "gemma3" else 1]
    for id in range(fixtures.SPM_PIECES, model.n_vocab):
        token = model.token_piece(id, special=True).decode()
        if token and not token.startswith("[PAD"):
            expected = [*processor.EncodeAsIds("ab"), id, *processor.EncodeAsIds("cd")]
            assert model.tokenize(f"ab{token}cd", add_special=False) == expected


def test_gemma_added_blanks_are_one_token(tmp_path: Path) -> None:
    """An added token of blanks is spelled with blanks, because libllama looks for it before it escapes them."""
    model = native.Model(str(convert(fixtures.HERE / "gemma3", tmp_path / "t.gguf")), n_gpu_layers=0)
    decoder = json.loads((fixtures.HERE / "gemma3" / "tokenizer_config.json").read_text())["added_tokens_decoder"]
    blanks = next(int(id) for id, token in decoder.items() if token["content"] == "▁▁▁")
    assert model.tokenize("a   b", add_special=False).count(blanks) == 1


def test_byte_fallback_tokens_agree_with_tokenizers(tmp_path: Path) -> None:
    """A tokenizer.json alone. Leading blanks are left out: tokenizers adds none before one, libllama always."""
    tokenizers = pytest.importorskip("tokenizers")
    folder = fixtures.HERE / "mistral-json"
    reference = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    model = native.Model(str(convert(folder, tmp_path / "t.gguf")), n_gpu_layers=0)
    for text in [text for text in NASTY if text[:1] not in (" ", "▁")]:
        assert model.tokenize(text) == reference.encode(text).ids, text
    assert model.tokenize("[INST]", add_special=False) == [fixtures.SPM_PIECES]


def _splitters() -> dict[str, Any]:
    """libllama's name -> a pre-tokenizer of the tokenizers library that must be recognised as it."""
    tokenizers = pytest.importorskip("tokenizers")
    pre = tokenizers.pre_tokenizers
    level = pre.ByteLevel(add_prefix_space=False, use_regex=False)

    def split(*regexes: str, **options: Any) -> Any:
        options = options or {"behavior": "isolated"}
        return pre.Sequence([*(pre.Split(tokenizers.Regex(regex), **options) for regex in regexes), level])

    full = pre.ByteLevel(add_prefix_space=False)
    return {
        "gpt-2": full,
        "smollm": pre.Sequence([pre.Digits(individual_digits=True), full]),
        "qwen2": split(pretokenizers.QWEN2),
        "dbrx": split(pretokenizers.LLAMA3, behavior="removed", invert=True),
        "llama-bpe": split(pretokenizers.LLAMA3),
        "tekken": split(pretokenizers.TEKKEN),
        "gpt-4o": split(pretokenizers.GPT4O),
        "deepseek-coder": pre.Sequence(
            [
                *(pre.Split(tokenizers.Regex(regex), "isolated") for regex in pretokenizers.DEEPSEEK_CODER[:-1]),
                pre.Digits(individual_digits=True),
                level,
            ]
        ),
    }


@pytest.mark.parametrize("name", sorted(pretokenizers.KNOWN.values()))
def test_known_pretokenizers_split_alike(name: str, copy: Any, tmp_path: Path) -> None:
    """Each entry of the table, with a vocabulary of its own: the same tokens as the tokenizers library."""
    folder = copy("qwen2")
    (folder / "tokenizer_config.json").unlink()
    skips_merges = any(known == name and skips for (_, skips), known in pretokenizers.KNOWN.items())
    value, count = fixtures.train_byte_level(folder, _splitters()[name], [], ignore_merges=skips_merges)
    assert count <= json.loads((folder / "config.json").read_text())["vocab_size"]
    fixtures.write_json(folder / "tokenizer.json", value)
    path = convert(folder, tmp_path / "t.gguf")
    assert read_header(path)[0].get("tokenizer.ggml.pre") == name
    model = native.Model(str(path), n_gpu_layers=0)
    reference = pytest.importorskip("tokenizers").Tokenizer.from_file(str(folder / "tokenizer.json"))
    for text in [*NASTY, *fixtures.TEXT]:
        assert model.tokenize(text) == reference.encode(text).ids, text


def test_fp8_weights_are_scaled(copy: Any, tmp_path: Path) -> None:
    """What NVIDIA's ModelOpt writes: FP8 with one scale for each matrix."""
    torch, files = pytest.importorskip("torch"), pytest.importorskip("safetensors.torch")
    folder = copy("llama-spm")
    weights = files.load_file(folder / "model.safetensors")
    name = "model.layers.0.mlp.up_proj.weight"
    weights[name] = (weights[name].float() * 100).to(torch.float8_e4m3fn)
    weights[f"{name}_scale"] = torch.tensor(0.01)
    files.save_file(weights, folder / "model.safetensors")
    found = read_tensor(convert(folder, tmp_path / "f.gguf"), "blk.0.ffn_up.weight")
    assert np.array_equal(found, (weights[name].float() * 0.01).half().numpy())
