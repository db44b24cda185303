"""The command line of `medusa serve`: what is refused before a model is loaded, warnings, and defaults of requests."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from command_line import invoke
from server_fakes import FakeModel
from server_run import in_thread

from medusa_cli.server import serve as life
from medusa_cli.server.engine.messages import Load
from medusa_cli.server.engine.remote import Engine


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """What the command would have run. model: what it was opened with; sampling: the defaults of its file."""
    found = SimpleNamespace(model=None, server=None, sampling={}, caches=None)

    def engine(load: Load) -> Engine:
        found.model, found.caches = load.options, load.caches
        return in_thread(FakeModel(name=load.model, sampling_defaults=found.sampling))

    def run(server: life.UvicornServer, bound: socket.socket) -> None:
        found.server = server.served

    monkeypatch.setattr("medusa_cli.server.engine.remote.Engine", engine)
    monkeypatch.setattr(life, "run", run)
    return found


def test_what_is_said_at_the_start(started: SimpleNamespace) -> None:
    code, out, errors = invoke("serve", "demo", "--port", "0")
    assert (code, out) == (0, "")
    assert errors.startswith("demo at http://127.0.0.1:")
    assert len(errors.splitlines()) == 1


def test_another_host_without_a_key_warns(started: SimpleNamespace) -> None:
    code, _, errors = invoke("serve", "demo", "--host", "0.0.0.0", "--port", "0")
    assert code == 0
    assert errors.startswith("WARNING: 0.0.0.0 can be reached from other machines")
    assert "WARNING" not in invoke("serve", "demo", "--host", "0.0.0.0", "--port", "0", "--api-key", "k")[2]


def test_options_are_defaults_of_requests(started: SimpleNamespace) -> None:
    options = ("--temp", "0.2", "--top-k", "7", "-n", "50", "--stop", "END", "--logit-bias", "5=-1", "-s", "3")
    assert invoke("serve", "demo", "--port", "0", *options, "--no-spec", "-c", "512")[0] == 0
    assert started.server.defaults == {
        "temperature": 0.2, "top_k": 7, "max_tokens": 50, "stop": ["END"], "logit_bias": {5: -1.0}, "seed": 3,
    }  # fmt: skip
    assert started.model["repeatable"] is True
    assert (started.model["no_spec"], started.model["ctx_size"]) == (True, 512)
    assert invoke("serve", "demo", "--port", "0")[0] == 0
    assert started.server.defaults == {"temperature": 0.4}
    assert invoke("serve", "other.gguf", "--port", "0")[0] == 0
    assert started.server.defaults == {"temperature": 0.7}


def test_an_option_that_switches_off_is_a_default_too(started: SimpleNamespace) -> None:
    options = ("--top-k", "0", "--no-stop-loops", "--min-p", "0")
    assert invoke("serve", "demo", "--port", "0", *options)[0] == 0
    assert started.server.defaults == {"temperature": 0.4, "top_k": 0, "stop_loops": False, "min_p": 0.0}


def test_the_model_s_own_temperature_is_the_default(started: SimpleNamespace) -> None:
    started.sampling["temperature"] = 0.3
    assert invoke("serve", "demo", "--port", "0")[0] == 0
    assert started.server.defaults == {"temperature": 0.3}
    assert invoke("serve", "demo", "--port", "0", "--temp", "0.9")[0] == 0
    assert started.server.defaults == {"temperature": 0.9}


@pytest.mark.parametrize("key", ["", " ", " k", "a\nb"])
def test_keys_that_nobody_can_send(started: SimpleNamespace, key: str) -> None:
    code, _, errors = invoke("serve", "demo", "--port", "0", "--api-key", key)
    assert code == 2
    assert "--api-key" in errors
    assert started.model is None


def test_a_proxy_that_is_no_address(started: SimpleNamespace) -> None:
    code, _, errors = invoke("serve", "demo", "--port", "0", "--proxy", "10.0.0.1", "--proxy", "example.org")
    assert code == 2
    assert "--proxy" in errors
    assert "example.org" in errors
    assert started.model is None
    assert invoke("serve", "demo", "--port", "0", "--proxy", "10.0.0.1", "--proxy", "fd00::/8")[0] == 0


def test_a_port_that_is_taken(started: SimpleNamespace) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        code, _, errors = invoke("serve", "demo", "--port", port)
    assert code == 1
    assert errors.startswith(f"error: cannot listen on 127.0.0.1, port {port}: ")
    assert started.model is None


def test_a_folder_for_caches(started: SimpleNamespace, tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    options = ("serve", "demo", "--port", "0", "--cache-dir", str(folder), "--cache-disk")
    code, _, errors = invoke(*options, "7")
    assert code == 0
    assert len(errors.splitlines()) == 1
    assert folder.is_dir()
    assert (started.caches.folder, started.caches.disk) == (str(folder), 7 << 20)
    (folder / "x.cache").write_bytes(b"nothing")
    assert invoke(*options, "7")[2].startswith(
        f"note: {folder}: 1 damaged or older caches, or another user's, are left"
    )
    assert invoke(*options, "0")[0] == 2


def test_a_folder_that_cannot_be_written(started: SimpleNamespace, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    places = [tmp_path / "file" / "caches", tmp_path / "file"]
    (tmp_path / "closed").mkdir(mode=0o500)
    if hasattr(os, "geteuid") and os.geteuid() != 0:
        places += [tmp_path / "closed", tmp_path / "closed" / "caches"]
    for place in places:
        code, _, errors = invoke("serve", "demo", "--port", "0", "--cache-dir", str(place))
        assert code == 1
        assert errors.startswith(f"error: --cache-dir {place}: ")
        assert len(errors.splitlines()) == 1
    assert started.model is None


def test_the_extra_is_missing(started: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    code, _, errors = invoke("serve", "demo")
    assert (code, errors) == (1, "error: uvicorn is missing: pip install 'medusa-cli[serve]'\n")


def test_options_that_contradict_each_other(started: SimpleNamespace) -> None:
    assert invoke("serve", "demo", "--accept", "greedy", "--temp", "1")[0] == 2
