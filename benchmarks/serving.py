"""Rows per processor second of `alignattn serve` for 50 clients, beside `Predictor.predict` for all rows at once.

    python benchmarks/serving.py RUN TEXTS

RUN is a run on one text per row, TEXTS a file with one text per line.
"""

import http.client
import json
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import psutil

import alignattn
from alignattn.utils.errors import plural

CLIENTS, ROWS = 50, 500


def ask(address: str, requests: list[list[str]], outcomes: Counter) -> None:
    """Send requests one after the other, and count the outcomes of their rows."""
    connection = http.client.HTTPConnection(address, timeout=600)
    for rows in requests:
        try:
            connection.request("POST", "/predict", json.dumps({"rows": rows}))
            answer = connection.getresponse()
            outcomes["answered" if len(json.loads(answer.read())) == len(rows) else "lost"] += len(rows)
        except (OSError, http.client.HTTPException):
            outcomes["lost"] += len(rows)
            connection.close()


def main() -> None:
    """Print a line for `Predictor.predict` and one for each size of a request."""
    run, file = sys.argv[1:]
    lines = Path(file).read_text().splitlines()
    texts = [lines[row % len(lines)] for row in range(ROWS)]
    predictor = alignattn.load_run(run)
    predictor.predict(texts[:64])
    start = time.process_time()
    predictor.predict(texts)
    print(f"Predictor.predict: {ROWS / (time.process_time() - start):.0f} rows per processor second", flush=True)
    command = [sys.executable, "-m", "alignattn", "serve", "--run", run, "--port", "0"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)  # noqa: S603
    used = psutil.Process(server.pid).cpu_times
    address = server.stdout.readline().split("/")[2]
    while True:
        try:
            warm = Counter()
            ask(address, [texts[:64]], warm)
            if warm["answered"]:
                break
        except OSError:
            time.sleep(0.1)
    for size in (1, 20):
        requests = [texts[first : first + size] for first in range(0, ROWS, size)]
        outcomes: Counter = Counter()
        clients = [
            threading.Thread(target=ask, args=(address, requests[one::CLIENTS], outcomes)) for one in range(CLIENTS)
        ]
        start = sum(used()[:2])
        for client in clients:
            client.start()
        for client in clients:
            client.join()
        seconds = sum(used()[:2]) - start
        speed = f"{outcomes['answered'] / seconds:.0f} rows per processor second, {outcomes['lost']} lost"
        print(f"{CLIENTS} clients, {plural(size, 'row')} a request: {speed}", flush=True)
    server.send_signal(signal.SIGTERM)
    server.wait()


if __name__ == "__main__":
    main()
