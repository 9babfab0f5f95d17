"""`alignattn serve`: answer rows over HTTP with a finished run, in batches of what waits."""

import asyncio
import itertools
import signal
import socket
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from alignattn.finetuning.run_folder import check_run_folder, read_finished_run, warn_plain
from alignattn.utils.command import Command
from alignattn.utils.errors import AlignAttnError, check_installed, one_line
from alignattn.utils.files import parse_json, to_json
from alignattn.utils.options import REQUIRED, Count, Options, option

if TYPE_CHECKING:
    from fastapi import FastAPI

    from alignattn.finetuning.predictor import Predictor

MAX_BYTES, MAX_ROWS, MAX_SECONDS = 10 * 2**20, 256, 60
"""Of a request's body; of a batch, which no further request joins; of the last answers of a stopped server."""

ROW = {"description": "A text, the texts of a row, or its columns by name.", "type": ["string", "array", "object"]}
BODY = {"type": "object", "properties": {"row": ROW, "rows": {"type": "array", "items": ROW}}, "maxProperties": 1}


@dataclass(frozen=True, kw_only=True)
class ServeOptions(Options):
    """The options of `alignattn serve`."""

    run: str = option(REQUIRED, "Folder of a finished run.", metavar="DIR", place=check_run_folder)
    host: str = option("127.0.0.1", "Address to listen on; 0.0.0.0: answer other machines too.", metavar="ADDRESS")
    port: int = option(8000, "Port to listen on; 0: any free one.", low=0, high=65535)
    top_k: Count | None = option(None, "Classes or answers per row (default: all classes; one answer).")
    coverage: float | None = option(None, "Also give sets of classes, as in predict.", above=0, below=1)
    sets: str = option("lac", "As in predict.", choices=("lac", "aps"), requires=("coverage",))
    max_error: float | None = option(None, "Also give decisions, as in predict.", above=0, below=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_installed("fastapi", "serve", "`alignattn serve`")


COMMAND = Command(
    "serve",
    "answer rows over HTTP with a finished run",
    ServeOptions,
    run="alignattn.commands.serve:serve",
    examples=("alignattn serve --run runs/mrpc", "alignattn serve --run runs/mrpc --max_error 0.05 --port 8080"),
)


def serve(options: ServeOptions) -> None:
    """Answer requests until SIGTERM or Ctrl-C; accepted ones are answered before the end."""
    import uvicorn

    from alignattn.finetuning.predictor import load_predictor

    run = read_finished_run(Path(options.run), "--run")
    if run.task.file_column is not None:
        raise AlignAttnError(f"--run {run.folder}: rows of {run.task.name} name files, which clients must not read")
    # Bound before the model is loaded, so that a used port is reported at once; uvicorn listens when it is ready.
    listener = socket.socket(socket.AF_INET6 if ":" in options.host else socket.AF_INET)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((options.host, options.port))
    except OSError as error:
        raise AlignAttnError(
            f"cannot listen on --host {options.host} --port {options.port}: {error.strerror}"
        ) from error
    warn_plain(run.folder, run.options)
    predictor = load_predictor(run)
    if options.coverage is not None or options.max_error is not None:
        predictor = predictor.with_decisions(coverage=options.coverage, max_error=options.max_error, sets=options.sets)
    settings: Any = {"log_level": "warning", "access_log": False, "timeout_graceful_shutdown": MAX_SECONDS}
    url = f"http://{options.host}:{listener.getsockname()[1]}"
    start = f"{url}/docs describes /predict and /health of {run.folder}; Ctrl-C stops it"
    print("\n".join([start, *(predictor.decisions.remarks() if predictor.decisions else [])]), flush=True)
    for number in (signal.SIGTERM, signal.SIGINT):  # uvicorn catches them, and raises them again at its end
        signal.signal(number, signal.SIG_IGN)
    uvicorn.Server(uvicorn.Config(app_of(predictor, options.top_k), **settings)).run(sockets=[listener])


def app_of(predictor: "Predictor", top_k: int | None = None) -> "FastAPI":
    """Return the application: `/predict`, `/health` and their page `/docs`."""
    from fastapi import FastAPI, HTTPException, Request, Response

    waiting: asyncio.Queue[tuple[list[Any], asyncio.Future[Any]]] = asyncio.Queue()

    def answers_of(requests: list[list[Any]]) -> list[Any]:
        """Return the answers to the rows of each request, or its error: a bad row concerns only its sender."""
        try:
            answers = iter(predictor.predict(list(itertools.chain(*requests)), top_k=top_k))
            return [list(itertools.islice(answers, len(rows))) for rows in requests]
        except Exception as error:
            return [error] if len(requests) == 1 else [answers_of([rows])[0] for rows in requests]

    async def work() -> None:
        """Predict in one thread; the requests that arrive meanwhile are the next batch."""
        loop = asyncio.get_running_loop()
        with ThreadPoolExecutor(1) as thread:
            while True:
                jobs = [await waiting.get()]
                while not waiting.empty() and sum(len(rows) for rows, _ in jobs) < MAX_ROWS:
                    jobs.append(waiting.get_nowait())
                found = await loop.run_in_executor(thread, answers_of, [rows for rows, _ in jobs])
                for (_, future), answers in zip(jobs, found, strict=True):
                    if not future.done():
                        future.set_result(answers)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        worker = asyncio.create_task(work())
        yield
        worker.cancel()

    app = FastAPI(title=f"alignattn: {predictor.task.name}", lifespan=lifespan)

    @app.get("/health")
    def health() -> dict[str, Any]:
        return {"status": "ok", "task": predictor.task.name, "labels": list(getattr(predictor.task, "labels", ()))}

    @app.post("/predict", openapi_extra={"requestBody": {"content": {"application/json": {"schema": BODY}}}})
    async def predict(request: Request) -> Response:
        """Answer {"row": …} with an answer, and {"rows": […]} with a list of answers."""
        content = bytearray()
        async for chunk in request.stream():
            content += chunk
            if len(content) > MAX_BYTES:
                raise HTTPException(413, f"the body has more than {MAX_BYTES:,} bytes: send the rows in parts")
        try:
            body = parse_json(bytes(content))
        except ValueError as error:
            raise HTTPException(400, f"the body is not JSON: {one_line(error)}") from error
        if not isinstance(body, dict) or len(body) != 1 or not ("row" in body or isinstance(body.get("rows"), list)):
            raise HTTPException(400, 'the body is not {"row": a row} or {"rows": [rows]}')
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        waiting.put_nowait((body.get("rows", [body.get("row")]), future))
        answers = await future
        if isinstance(answers, ValueError | TypeError):  # libraries refuse some values themselves
            raise HTTPException(400, one_line(answers))
        if isinstance(answers, Exception):
            raise answers
        return Response(to_json(answers[0] if "row" in body else answers), media_type="application/json")

    return app
