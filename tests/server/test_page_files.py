"""The page's files: the libraries are those that were published, all is served, and nothing is asked of elsewhere."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from server_fakes import FakeModel
from server_run import serving

from medusa_cli.server import page

FOLDER = Path(page.__file__).parent
LIBRARIES = FOLDER / "vendor"


def test_the_libraries_are_those_of_the_list() -> None:
    rows = re.findall(
        r"^\| (\S+\.\S+) \| .* \| (\w{64}) \|$", (LIBRARIES / "README.md").read_text("utf-8"), re.MULTILINE
    )
    found = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in LIBRARIES.glob("*.*s")}
    assert dict(rows) == found
    assert len(found) == 3


def test_every_library_has_its_licence() -> None:
    text = (LIBRARIES / "README.md").read_text("utf-8")
    licences = {path.stem: path.read_text("utf-8") for path in (LIBRARIES / "licenses").iterdir()}
    assert len(licences) == 8
    for name, licence in licences.items():
        assert name in text
        assert "Copyright" in licence


def test_the_page_stays_small() -> None:
    assert sum(path.stat().st_size for path in FOLDER.rglob("*") if path.suffix in (".js", ".css", ".html")) < 450_000


def test_every_file_is_served() -> None:
    names = {
        path.relative_to(FOLDER).as_posix() for path in FOLDER.rglob("*") if path.suffix in (".js", ".css", ".html")
    }
    assert {name for name, _ in page.FILES.values()} == names
    with serving(FakeModel()) as running:
        for path, (name, kind) in page.FILES.items():
            response = running.http.get(running.url + path)
            assert response.content == (FOLDER / name).read_bytes()
            assert response.headers["content-type"].split(";")[0] == kind


def test_no_script_of_ours_makes_html_of_text() -> None:
    for path in FOLDER.glob("*.js"):
        found = re.findall(
            r"innerHTML|outerHTML|insertAdjacentHTML|DOMParser|document\.write|eval\(|https?://(?!www\.w3\.org/)\w",
            path.read_text("utf-8"),
        )
        assert found == [], path.name
