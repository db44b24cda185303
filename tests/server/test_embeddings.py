"""`serve` with an embedding model: OpenAI's client, the forms of inputs, and what is refused."""

from __future__ import annotations

import base64
import json
import random
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from architectures import CONTEXT, TOKENS
from command_line import invoke
from embedding_models import WIDTH, write_embedder, write_reading_embedder
from server_process import served
from server_run import Running, serving, wait_for

import medusa_cli
from medusa_cli.server import embeddings as server
from medusa_cli.server.app import Limits

openai = pytest.importorskip("openai")

PATH = "/v1/embeddings"
TEXTS = ["the tide comes in", "a sea", "the tide came in"]


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_reading_embedder(tmp_path_factory.mktemp("embeddings") / "letters.gguf")


@pytest.fixture(scope="module")
def engine(file: Path) -> Iterator[medusa_cli.Embedder]:
    with medusa_cli.Embedder(file, quiet=True, n_gpu_layers=0) as found:
        yield found


@pytest.fixture(scope="module")
def running(engine: medusa_cli.Embedder) -> Iterator[Running]:
    with serving(engine) as found:
        yield found


@pytest.fixture(scope="module")
def client(running: Running) -> Iterator[Any]:
    with openai.OpenAI(base_url=f"{running.url}/v1", api_key="none", max_retries=0) as found:
        yield found


def post(running: Running, body: dict[str, Any], path: str = PATH) -> Any:
    # Not httpx's own JSON, which refuses what half of a surrogate pair is.
    headers = {"content-type": "application/json"}
    return running.http.post(running.url + path, content=json.dumps(body), headers=headers)


def test_the_client_gets_what_the_engine_makes(client: Any, engine: medusa_cli.Embedder) -> None:
    expected = engine.embed(TEXTS)
    assert (engine.n_ctx, engine.width, engine.n_vocab) == (CONTEXT, WIDTH, TOKENS)
    for options in ({}, {"encoding_format": "float"}, {"encoding_format": "base64"}, {"dimensions": WIDTH}):
        found = client.embeddings.create(model="any", input=TEXTS, **options)
        assert [one.index for one in found.data] == [0, 1, 2]
        rows = [
            np.frombuffer(base64.b64decode(one.embedding), "<f4") if isinstance(one.embedding, str) else one.embedding
            for one in found.data
        ]
        assert np.abs(np.array(rows) - expected).max() < 1e-6
        tokens = sum(len(engine.tokens(text)) for text in TEXTS)
        assert (found.model, found.usage.prompt_tokens, found.usage.total_tokens) == ("letters.gguf", tokens, tokens)


def test_texts_and_token_ids_are_the_same(client: Any, engine: medusa_cli.Embedder) -> None:
    ids = [engine.tokens(text) for text in TEXTS]
    assert (ids[1][0], ids[1][-1]) == (101, 102)
    given: list[Any] = [TEXTS[1], [TEXTS[1]], ids[1], [ids[1]]]
    rows = [client.embeddings.create(model="any", input=one).data[0].embedding for one in given]
    assert all(row == rows[0] for row in rows)
    assert len(client.embeddings.create(model="any", input=ids).data) == 3


def test_many_inputs(client: Any) -> None:
    letters = random.Random(0)
    texts = ["".join(letters.choices("abcdef ", k=letters.randrange(1, 90))) + "a" for _ in range(100)]
    rows = np.array([one.embedding for one in client.embeddings.create(model="any", input=texts).data])
    for at in (0, 31, 32, 99):
        single = client.embeddings.create(model="any", input=texts[at]).data[0].embedding
        assert np.abs(rows[at] - single).max() < 1e-3


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"input": ""}, "input"),
    ({"input": []}, "input"),
    ({"input": [""]}, "input"),
    ({"input": [[]]}, "input"),
    ({"input": ["a", ""]}, "input"),
    ({"input": ["a", [1]]}, "input"),
    ({"input": [1, "a"]}, "input"),
    ({"input": [True]}, "input"),
    ({"input": [1.5]}, "input"),
    ({"input": [-1]}, "input"),
    ({"input": [TOKENS]}, "vocabulary ends at 255"),
    ({"input": [[1], [2**40]]}, "input"),
    ({"input": 3}, "input"),
    ({"input": {"text": "a"}}, "input"),
    ({"input": None}, "input"),
    ({}, "input"),
    ({"input": "\ud800"}, "surrogate"),
    ({"input": ["a"] * 2049}, "2048"),
    ({"input": [[1]] * 2049}, "2048"),
    ({"input": "a", "dimensions": 128}, "256 dimensions"),
    ({"input": "a", "dimensions": 0}, "dimensions"),
    ({"input": "a", "encoding_format": "int8"}, "encoding_format"),
    ({"input": "a", "add_special_tokens": False}, "add_special_tokens"),
    ({"input": "a", "strange": 1}, "strange"),
]


@pytest.mark.parametrize(("body", "said"), WRONG, ids=[json.dumps(body)[:40] for body, _ in WRONG])
def test_wrong_values(running: Running, body: dict[str, Any], said: str) -> None:
    response = post(running, body)
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert error["type"] == "invalid_request_error"
    assert said in f"{error['message']} {error['param']}"


def test_inputs_that_are_too_long(
    client: Any, running: Running, engine: medusa_cli.Embedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert client.embeddings.create(model="any", input=[1] * CONTEXT).usage.prompt_tokens == CONTEXT
    for given in ([1] * (CONTEXT + 1), "a" * (CONTEXT - 1)):
        error = post(running, {"input": given}).json()["error"]
        assert (error["param"], error["code"]) == ("input", "context_length_exceeded")
        assert f"input has {CONTEXT + 1} tokens, this model takes at most {CONTEXT}" in error["message"]
    assert "input[1] has 513" in post(running, {"input": ["a", "a" * (CONTEXT - 1)]}).text
    monkeypatch.setattr(server, "MOST_TOKENS", 10)
    assert "more than 10 tokens" in post(running, {"input": [[1] * 6] * 2}).json()["error"]["message"]


def test_fields_that_change_nothing(running: Running) -> None:
    body = {"input": "a", "model": "x", "user": "me", "dimensions": None, "encoding_format": None}
    assert post(running, body).status_code == 200


def test_what_wants_text_is_refused(client: Any, running: Running) -> None:
    with pytest.raises(openai.BadRequestError, match="makes embeddings and writes no text"):
        client.chat.completions.create(model="any", messages=[{"role": "user", "content": "Hello"}])
    for path in (*server.WRITING_PATHS, *server.MESSAGES_PATHS):
        assert post(running, {}, path).status_code == 400
    assert post(running, {}, "/v1/messages").json()["type"] == "error"


def test_models_health_metrics_and_the_page(client: Any, running: Running) -> None:
    (model,) = client.models.list()
    assert (model.id, model.n_ctx, model.n_embd) == ("letters.gguf", CONTEXT, WIDTH)
    assert client.models.retrieve("letters.gguf").id == "letters.gguf"
    assert running.http.get(f"{running.url}/health").json() == {"status": "ok", "model": "letters.gguf", "waiting": 0}
    before = counted(running)
    client.embeddings.create(model="any", input=[[1, 2], [3]])
    wait_for(lambda: counted(running) == (before[0] + 3, before[1] + 2))  # once the client has its answer
    page = running.http.get(running.url)
    assert (page.status_code, page.text.splitlines()[0][:12]) == (200, "letters.gguf")
    assert "/v1/embeddings" in running.http.get(f"{running.url}/openapi.json").json()["paths"]


def counted(running: Running) -> tuple[float, float]:
    lines = running.http.get(f"{running.url}/metrics").text.splitlines()
    values = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    return float(values["medusa_prompt_tokens_total"]), float(values["medusa_embeddings_total"])


def test_a_full_queue_and_a_client_that_leaves(engine: medusa_cli.Embedder, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = threading.Event()

    def slow(texts: Any, on_progress: Any) -> Any:
        while not gate.wait(0.01):
            if on_progress() is False:
                return np.empty((0, WIDTH), np.float32)
        return np.zeros((len(texts), WIDTH), np.float32)

    monkeypatch.setattr(engine, "embed", slow)
    with serving(engine, limits=Limits(waiting=0)) as running:
        queue = running.server.served.queue
        with pytest.raises(httpx.ReadTimeout):
            running.http.post(running.url + PATH, json={"input": "a"}, timeout=0.3)
        wait_for(lambda: queue.running is None)
        threads = [threading.Thread(target=post, args=(running, {"input": "a"}))]
        threads[0].start()
        wait_for(lambda: queue.running is not None)
        assert post(running, {"input": "b"}).status_code == 429
        gate.set()
        threads[0].join()
        assert post(running, {"input": "b"}).status_code == 200


@pytest.mark.parametrize("command", ["chat", "generate", "serve"])
def test_commands(file: Path, command: str) -> None:
    options = {"generate": ["-p", "x"], "serve": ["--port", "0", "--temp", "0.5"], "chat": []}[command]
    code, _, errors = invoke(command, str(file), *options)
    assert code == 1
    expected = "which --temp does not concern: leave it out" if command == "serve" else "`medusa serve` serves it"
    assert expected in errors
    assert len(errors.splitlines()) == 1


def test_serve_as_a_process(file: Path) -> None:
    with served(str(file), "-c", "100") as found, openai.OpenAI(base_url=f"{found.url}/v1", api_key="none") as client:
        assert len(client.embeddings.create(model="any", input="hello").data[0].embedding) == WIDTH
        with pytest.raises(openai.BadRequestError, match="this model takes at most 100"):
            client.embeddings.create(model="any", input="a" * 100)
        code, errors = found.end()
    assert (code, errors) == (0, "")


def test_python(file: Path, tmp_path: Path) -> None:
    with pytest.raises(medusa_cli.MedusaError, match="writes no text"):
        medusa_cli.Model(file, quiet=True)
    plain = write_embedder(tmp_path / "plain.gguf", "qwen3", pooling_type=0)
    with pytest.raises(medusa_cli.MedusaError, match="does not say how"):
        medusa_cli.Embedder(plain, quiet=True)
    with pytest.raises(medusa_cli.MedusaError, match="lower ctx_size"):
        medusa_cli.Embedder(file, quiet=True, ctx_size=600)
    with medusa_cli.Embedder(file, quiet=True) as embedder:
        assert embedder.embed(["a", [1, 2]]).shape == (2, WIDTH)
        with pytest.raises(medusa_cli.MedusaError, match="list of texts"):
            embedder.embed("a")
