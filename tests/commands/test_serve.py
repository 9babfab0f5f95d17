"""`alignattn serve`: it answers as `predict` does, refuses bad requests with the reason, and stops without a loss."""

import http.client
import json
import os
import signal
import socket
import threading
import time
import urllib.error
import urllib.request
from collections import Counter

import numpy as np
import pandas as pd
import pytest
from conftest import WORDS
from fastapi.testclient import TestClient
from processes import Python

import alignattn
from alignattn.cli import main
from alignattn.commands import serve
from alignattn.evaluation.calibration.decisions import Calibration, LabelledRows
from alignattn.finetuning.decisions import write_run_calibration

TEXTS = [f"the {word}" for word in WORDS]


@pytest.fixture(scope="module")
def run(tiny_checkpoint, tmp_path_factory):
    """A calibrated run on one text."""
    folder = tmp_path_factory.mktemp("serve")
    pd.DataFrame({"text": TEXTS, "label": ["no", "yes"] * (len(TEXTS) // 2) + ["no"] * (len(TEXTS) % 2)}).to_csv(
        folder / "rows.csv", index=False
    )
    words = f"finetune --model {tiny_checkpoint} --train_file {folder / 'rows.csv'} --text_columns text --max_steps 2"
    words += f" --max_length 32 --attention qvi --save_strategy no --use_cpu true --output_dir {folder / 'run'}"
    assert main(words.split()) == 0
    shares = np.random.default_rng(0).dirichlet([1, 1], 100)
    rows = LabelledRows(shares, shares.argmax(axis=1), shares[:, 0])
    (folder / "run" / "calibration").mkdir()
    write_run_calibration(folder / "run" / "calibration", Calibration(1.3, rows, rows))
    return folder / "run"


@pytest.fixture(scope="module")
def predictor(run):
    return alignattn.load_run(run).with_decisions(coverage=0.9, max_error=0.2)


@pytest.fixture
def client(predictor):
    with TestClient(serve.app_of(predictor, 1), raise_server_exceptions=False) as client:
        yield client


def test_rows_are_answered_as_by_the_predictor(client, predictor):
    (one, *_), several = predictor.predict(TEXTS[:1], top_k=1), predictor.predict(TEXTS, top_k=1)
    assert {"set", "decision"} <= one.keys()
    for row in (TEXTS[0], TEXTS[:1], {"text": TEXTS[0]}):
        answer = client.post("/predict", json={"row": row}).json()
        assert answer | {"probability": 0, "probabilities": 0} == one | {"probability": 0, "probabilities": 0}
        assert answer["probability"] == pytest.approx(one["probability"])
    answers = client.post("/predict", json={"rows": TEXTS}).json()
    assert [answer["prediction"] for answer in answers] == [answer["prediction"] for answer in several]
    assert client.post("/predict", json={"rows": []}).json() == []
    assert client.get("/health").json() == {"status": "ok", "task": predictor.task.name, "labels": ["no", "yes"]}
    assert "/predict" in client.get("/openapi.json").json()["paths"]
    assert client.get("/docs").status_code == 200


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ('{"row": ""}', "row 1: column 'text' is empty"),
        ('{"rows": ["a", 3]}', "row 2 is 3"),
        ('{"row": {"said": "a"}}', "row 1 has no 'text'"),
        ('{"row": {"text": 1e999}}', "is not text"),
        ('{"row": "a", "rows": []}', "the body is not"),
        ('{"rows": "a"}', "the body is not"),
        ("[1]", "the body is not"),
        ("{", "the body is not JSON"),
        ("[" * 100_000, "nested too deeply"),
    ],
)
def test_a_bad_request_is_refused_with_the_reason(body, reason, client):
    refused = client.post("/predict", content=body)
    assert refused.status_code == 400
    assert reason in refused.json()["detail"]


def test_a_large_body_is_refused(client, monkeypatch):
    monkeypatch.setattr(serve, "MAX_BYTES", 100)
    refused = client.post("/predict", json={"row": "a" * 100})
    assert refused.status_code == 413
    assert "more than 100 bytes" in refused.json()["detail"]


def test_a_bad_row_and_an_error_of_the_model_concern_only_their_sender(client, predictor, monkeypatch):
    """Requests that wait together are one batch."""
    predict, batches, is_first = type(predictor).predict, [], threading.Event()

    def watched(self, rows, **options):
        batches.append(len(rows))
        if len(batches) == 1:
            is_first.wait(60)
        if "fail" in rows:
            raise RuntimeError("the model fails")
        return predict(self, rows, **options)

    monkeypatch.setattr(type(predictor), "predict", watched)
    statuses = {}

    def ask(name, row):
        statuses[name] = client.post("/predict", json={"row": row}).status_code

    threads = [threading.Thread(target=ask, args=("first", "a"))]
    threads[0].start()
    while not batches:
        time.sleep(0.01)
    others = {"good": "a cat", "bad": "", "failing": "fail", "fine": "a dog"}
    threads += [threading.Thread(target=ask, args=item) for item in others.items()]
    for thread in threads[1:]:
        thread.start()
    time.sleep(0.5)
    is_first.set()
    for thread in threads:
        thread.join()
    assert statuses == {"first": 200, "good": 200, "bad": 400, "failing": 500, "fine": 200}
    assert max(batches) > 1


class Server:
    """The command in a process of its own, and the outcomes of its clients: a status, or the kind of an error."""

    def __init__(self, run, *words):
        self.process = Python(["-m", "alignattn", "serve", "--run", run, "--port", "0", *words])
        self.outcomes, self.clients = Counter(), []
        while "\n" not in self.process.printed():
            assert self.process.poll() is None
            time.sleep(0.1)
        self.url = self.process.printed().partition("/docs")[0]
        while not self.is_healthy():
            assert self.process.poll() is None
            time.sleep(0.1)

    def is_healthy(self):
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=300) as answer:
                return answer.status == 200
        except urllib.error.URLError:
            return False

    def ask(self, rows, clients):
        """Send the rows from several clients; return when the server has accepted them."""
        is_sent = threading.Barrier(clients + 1)
        self.clients = [threading.Thread(target=self._ask, args=(rows, is_sent)) for _ in range(clients)]
        for client in self.clients:
            client.start()
        is_sent.wait()
        # Answered later than these requests arrived.
        assert self.is_healthy()
        assert self.is_healthy()

    def _ask(self, rows, is_sent):
        connection = http.client.HTTPConnection(self.url.removeprefix("http://"), timeout=300)
        connection.request("POST", "/predict", json.dumps({"rows": rows}))
        is_sent.wait()
        try:
            answer = connection.getresponse()
            self.outcomes[answer.status if len(json.loads(answer.read())) == len(rows) else "lost"] += 1
        except (ConnectionError, http.client.HTTPException):
            self.outcomes["connection error"] += 1
        finally:
            connection.close()

    def join(self):
        for client in self.clients:
            client.join()


def test_fifty_clients_lose_nothing_and_a_stopped_server_answers_what_it_accepted(run):
    server = Server(run, "--max_error", "0.2")
    server.ask(TEXTS[:3], 50)
    server.join()
    assert server.outcomes == {200: 50}
    server.ask(TEXTS * 20, 4)
    os.kill(server.process.pid, signal.SIGTERM)
    server.join()
    assert server.outcomes == {200: 54}
    done = server.process.finish()
    assert done.returncode == 0
    assert "\nmax_error 0.2: rows with a confidence of at least" in done.stdout


def test_the_clients_of_a_killed_server_get_a_connection_error(run):
    server = Server(run)
    server.ask(TEXTS * 2000, 4)
    os.kill(server.process.pid, signal.SIGKILL)
    server.join()
    assert server.outcomes == {"connection error": 4}
    assert server.process.finish().returncode == -signal.SIGKILL


def test_a_used_port_is_refused(run, capsys):
    with socket.create_server(("127.0.0.1", 0)) as used:
        port = used.getsockname()[1]
        assert main(["serve", "--run", str(run), "--port", str(port)]) == 2
    assert f"--port {port}: Address already in use" in capsys.readouterr().err
