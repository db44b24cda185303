"""What a person types for a model: paths, names on the Hub, addresses; and which file of a repository is meant."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from medusa_cli.hub.repository import is_safe_name
from medusa_cli.models import quantizations
from medusa_cli.models.names import HubName, parse
from medusa_cli.support.errors import MedusaError

WORD = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,20}", fullmatch=True).filter(lambda text: not text.endswith(".gguf"))
QUANT = st.sampled_from(["Q4_K_M", "IQ3_XXS", "UD-Q4_K_XL", "F16"])
FILE = st.lists(WORD, min_size=1, max_size=3).map(lambda parts: "/".join(parts) + ".gguf")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a/b", HubName("a/b")),
        ("a/b:q8_0", HubName("a/b", quant="q8_0")),
        ("a/b@v1:Q8_0", HubName("a/b", "v1", quant="Q8_0")),
        ("a/b:Q8_0@refs/pr/3", HubName("a/b", "refs/pr/3", quant="Q8_0")),
        ("a/b/x.gguf", HubName("a/b", file="x.gguf")),
        ("a/b/c/x.GGUF@main", HubName("a/b", "main", "c/x.GGUF")),
        ("a/b@main/c/x.gguf", HubName("a/b", "main", "c/x.gguf")),
        ("hf.co/a/b:Q4_0", HubName("a/b", quant="Q4_0")),
        ("hf://a/b", HubName("a/b")),
        ("https://huggingface.co/a/b", HubName("a/b")),
        ("https://huggingface.co/a/b/tree/v1/folder?x=1#top", HubName("a/b", "v1")),
        ("https://huggingface.co/a/b/blob/main/x%20y.gguf", HubName("a/b", "main", "x y.gguf")),
        ("https://hf.co/a/b/resolve/refs%2Fpr%2F1/d/x.gguf?download=true", HubName("a/b", "refs/pr/1", "d/x.gguf")),
        ("http://mirror.example:8080/a/b", HubName("a/b")),
    ],
)
def test_names_and_addresses(text: str, expected: HubName, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://mirror.example:8080")
    assert parse(text) == expected


@pytest.mark.parametrize(
    "text",
    ["", "demo", "x.gguf", "dir/x.gguf", "./a/b", "../a/b", "/a/b", "~/a", "C:/a/b.gguf", "C:\\a\\b.gguf", "a/b/c",
     "a/../b", "a/b/../x.gguf", "a/b:Q4_0:Q8_0", "a/b@v1@v2", "a/b/x.gguf:Q4_0", "a/b/\x1b[31mx.gguf", "a b/c"],
)  # fmt: skip
def test_everything_else_is_a_path(text: str) -> None:
    assert isinstance(parse(text), Path)


def test_what_exists_is_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert parse("a/b") == HubName("a/b")
    (tmp_path / "a" / "b").mkdir(parents=True)
    assert parse("a/b") == Path("a/b")
    assert parse("hf.co/a/b") == HubName("a/b")


@pytest.mark.parametrize(
    "text",
    ["https://example.com/a/b", "https://huggingface.co/datasets/a/b", "https://huggingface.co/a", "hf.co/",
     "https://huggingface.co/a/b/blob/main/config.json", "hf.co/a/b/blob/main/..%2F..%2Fx.gguf", "http://["],
)  # fmt: skip
def test_addresses_of_no_model_are_one_line(text: str) -> None:
    with pytest.raises(MedusaError) as caught:
        parse(text)
    assert "address" in str(caught.value)


@given(WORD, WORD, st.none() | st.sampled_from(["main", "v1.0", "refs/pr/2"]), st.none() | QUANT | FILE)
def test_a_name_means_itself_again(owner: str, repo: str, revision: str | None, rest: str | None) -> None:
    file = rest if rest and rest.endswith(".gguf") else None
    name = HubName(f"{owner}/{repo}", revision, file, None if file else rest)
    assert parse(f"hf.co/{name}") == name
    if not Path(str(name)).exists():
        assert parse(str(name)) == name


@given(
    st.text(max_size=60)
    | st.lists(st.sampled_from(["a", "/", ":", "@", ".", "..", "hf.co", "://", "%2F", "\x1b", "~"])).map("".join)
)
def test_any_text_is_a_path_a_safe_name_or_one_line(text: str) -> None:
    found: Path | HubName | None = None
    with contextlib.suppress(MedusaError):
        found = parse(text)
    if isinstance(found, HubName):
        assert str(found).isprintable()
        assert found.file is None or is_safe_name(found.file)


@given(st.text(max_size=40) | st.lists(st.sampled_from(["..", ".", "a", "/", "\\", "\0", "\x1b", "C:"])).map("".join))
def test_safe_names_stay_inside_their_folder(name: str) -> None:
    if is_safe_name(name):
        folder = Path("/nowhere/snapshot")
        assert (folder / name).resolve().is_relative_to(folder)
        assert name.isprintable()


# --- which file -------------------------------------------------------------------------------------


def picked(names: list[str], quant: str | None = None, file: str | None = None) -> str:
    return quantizations.pick(quantizations.candidates(names), "org/repo", quant, file).name


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        (["Q2_K", "Q4_K_M", "Q4_K_S", "Q8_0"], "Q4_K_M"),
        (["Q2_K", "Q3_K_M", "Q4_K_S", "Q5_K_M"], "Q4_K_S"),
        (["Q2_K", "Q3_K_M", "Q5_K_M"], "Q3_K_M"),
        (["Q2_K", "IQ2_M", "Q5_K_M", "Q8_0"], "Q5_K_M"),
        (["Q8_0", "F16", "BF16"], "Q8_0"),
        (["IQ1_S", "Q2_K"], "Q2_K"),
        (["UD-Q4_K_XL", "UD-Q2_K_XL"], "UD-Q4_K_XL"),
        (["f32", "fp16"], "fp16"),
    ],
)
def test_the_default_is_q4_k_m_or_the_nearest_sensible_one(labels: list[str], expected: str) -> None:
    assert picked([f"Model-7B.{label}.gguf" for label in labels]) == f"Model-7B.{expected}.gguf"


def test_quantizations_by_name() -> None:
    names = ["m-Q4_K_M.gguf", "m-UD-Q4_K_XL.gguf", "m.q8_0.gguf", "BF16/m.gguf", "mmproj-m-F16.gguf", "m.imatrix.gguf"]
    assert picked(names, "q4_k_m") == "m-Q4_K_M.gguf"
    assert picked(names, "Q4_K_XL") == picked(names, "UD-Q4_K_XL") == "m-UD-Q4_K_XL.gguf"
    assert picked(names, "Q8_0") == "m.q8_0.gguf"
    assert picked(names, "bf16") == "BF16/m.gguf"
    with pytest.raises(MedusaError, match=r"^org/repo: holds no F16: there are BF16, Q4_K_M, UD-Q4_K_XL, Q8_0$"):
        picked(names, "F16")
    with pytest.raises(MedusaError, match=r"has no m-Q4_K_S\.gguf: did you mean m-Q4_K_M\.gguf"):
        picked(names, file="m-Q4_K_S.gguf")


def test_split_models_are_one_and_must_be_whole() -> None:
    parts = [f"Q8_0/m-Q8_0-0000{number}-of-00003.gguf" for number in (1, 2, 3)]
    whole = quantizations.candidates([*parts, "m-Q2_K.gguf"])
    assert [one.files for one in whole] == [tuple(parts), ("m-Q2_K.gguf",)]
    assert quantizations.pick(whole, "r", None, parts[1]).files == tuple(parts)
    assert quantizations.candidates(parts[:2]) == []
    assert quantizations.candidates(["m-00001-of-99999.gguf", "m-00003-of-00002.gguf"]) == []


def test_several_models_in_one_repository_must_be_told_apart() -> None:
    names = ["a-Q4_K_M.gguf", "b-Q4_K_M.gguf", "a-Q8_0.gguf"]
    with pytest.raises(
        MedusaError, match=r"several Q4_K_M: choose one as org/repo/FILE, from a-Q4_K_M.gguf, b-Q4_K_M.gguf"
    ):
        picked(names)
    assert picked(names, "Q8_0") == "a-Q8_0.gguf"
    assert picked(names, file="b-Q4_K_M.gguf") == "b-Q4_K_M.gguf"


@given(
    st.lists(
        st.from_regex(r"[a-c]{1,2}[-.](Q[2-8]_K(_[SML])?|F16|x)(-0000[1-3]-of-0000[1-3])?\.gguf", fullmatch=True),
        max_size=8,
        unique=True,
    )
)
def test_every_choice_is_of_files_that_are_there(names: list[str]) -> None:
    found = quantizations.candidates(names)
    assert all(set(one.files) <= set(names) for one in found)
    assert [one.rank for one in found] == sorted(one.rank for one in found)
    for one in found:
        assert quantizations.pick(found, "r", None, one.name) in found
