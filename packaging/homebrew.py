"""Prints the Homebrew formula of a release, for a tap. It compiles, as `pip install .` does.

    python packaging/homebrew.py SDIST --homepage URL --url URL > Formula/medusa-cli.rb

SDIST: the release's source distribution; --url: where it can be downloaded.
"""

from __future__ import annotations

import argparse
import hashlib
import tarfile
from email.message import Message
from email.parser import HeaderParser
from pathlib import Path

PYTHON = "3.13"
FORMULA = """\
class {name} < Formula
  include Language::Python::Virtualenv

  desc "{description}"
  homepage "{homepage}"
  url "{url}"
  sha256 "{sha256}"
  license {licence}

  depends_on "cmake" => :build
  depends_on "python@{python}"

  def install
    virtualenv_create(libexec, "python{python}", system_site_packages: false)
    ENV["CMAKE_ARGS"] = "-DLLAVA_BUILD=OFF -DCMAKE_PROJECT_INCLUDE=#{{buildpath}}/native/libllama_only.cmake"
    system "python{python}", "-m", "pip", "--python", libexec/"bin/python", "install", buildpath
    bin.install_symlink libexec/"bin/medusa"
    generate_completions_from_executable(bin/"medusa", shell_parameter_format: :typer)
  end

  test do
    assert_match version.to_s, shell_output("#{{bin}}/medusa --version")
    system bin/"medusa", "doctor"
  end
end
"""


def formula(sdist: Path, homepage: str, url: str) -> str:
    """The formula, with name, version and licence as the source distribution states them."""
    facts = metadata(sdist)
    licences = facts["License-Expression"].split(" AND ")
    listed = ", ".join(f'"{one}"' for one in licences)
    return FORMULA.format(
        name=facts["Name"].title().replace("-", ""),
        description=facts["Summary"].partition(":")[0],
        homepage=homepage,
        url=url,
        sha256=hashlib.sha256(sdist.read_bytes()).hexdigest(),
        licence=listed if len(licences) == 1 else f"all_of: [{listed}]",
        python=PYTHON,
    )


def metadata(sdist: Path) -> Message:
    with tarfile.open(sdist) as archive:
        (name,) = (one for one in archive.getnames() if one.count("/") == 1 and one.endswith("/PKG-INFO"))
        file = archive.extractfile(name)
        assert file is not None
        return HeaderParser().parsestr(file.read().decode())


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("sdist", type=Path, metavar="SDIST")
    made.add_argument("--homepage", required=True, metavar="URL")
    made.add_argument("--url", required=True, metavar="URL")
    return made


if __name__ == "__main__":
    asked = parser().parse_args()
    print(formula(asked.sdist, asked.homepage, asked.url), end="")
