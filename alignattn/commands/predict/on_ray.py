"""A folder's files on a cluster: Ray Data hands them to workers, each of which holds the model."""

import json
import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from alignattn.commands.predict import PredictOptions
from alignattn.commands.predict.folder import Job
from alignattn.commands.predict.seen import SeenRows
from alignattn.utils.errors import AlignAttnError, one_line
from alignattn.utils.options import values_of
from alignattn.utils.progress import counted
from alignattn.utils.ray_cluster import gpu_or_core, ray_cluster

OWN_PROGRESS = ("ray.data._internal.execution.streaming_executor", "ray.data._internal.progress")
"""Loggers by which Ray Data tells how far it is, which is told here as of any work."""


class FileWorker:
    """Predicts files on a machine of the cluster.

    Args:
        values: of the options of the call, whose paths are absolute.
        temperature: as for `load_predictor`.
    """

    def __init__(self, values: dict[str, Any], temperature: float) -> None:
        from alignattn.commands.predict.rows import load_prediction
        from alignattn.finetuning.run_folder import read_finished_run

        options = PredictOptions(**values)
        self.run = read_finished_run(Path(options.run), "--run")
        self.prediction = load_prediction(self.run, temperature, options)

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Predict a batch of one file, and return what is to be known of its rows.

        What is wrong with it is returned as well, for an error would be tried again.
        """
        problems = [self._problem(*paths) for paths in zip(batch["source"], batch["target"], strict=True)]
        seen = json.dumps(vars(self.prediction.seen))
        self.prediction = replace(self.prediction, seen=SeenRows())
        return {"problem": np.array(problems), "seen": np.array([seen])}

    def _problem(self, source: str, target: str) -> str:
        from alignattn.commands.predict.inputs import file_source

        try:
            rows = file_source(Path(source), self.run.task, may_be_empty=True)
            self.prediction.write(rows, Path(target), lambda rows: None)
        except (AlignAttnError, OSError) as error:
            return one_line(error)
        return ""


def predict_on_ray(options: PredictOptions, temperature: float, jobs: Sequence[Job]) -> SeenRows:
    """Predict files on a cluster, whose machines share the storage that they lie on, and return what is odd of rows.

    Args:
        options: of the call.
        temperature: as for `load_predictor`.
        jobs: the files.
    """
    # Workers are elsewhere.
    paths = {name: str(Path(str(getattr(options, name))).resolve()) for name in ("run", "file")}
    values = values_of(options) | paths
    seen = SeenRows()
    with ray_cluster(options.ray_address) as ray:
        # It is imported where it is used: it takes seconds.
        import ray.data

        for name in OWN_PROGRESS:
            logging.getLogger(name).setLevel(logging.ERROR)
        wanted = gpu_or_core(ray)
        room = int(ray.cluster_resources().get("GPU" if "num_gpus" in wanted else "CPU", 1))
        workers = min(len(jobs), options.processes or room)
        ray.data.DataContext.get_current().enable_progress_bars = False
        files = [{"source": str(job.source.resolve()), "target": str(job.target.resolve())} for job in jobs]
        done = ray.data.from_items(files, override_num_blocks=len(files)).map_batches(
            FileWorker,
            batch_size=1,
            compute=ray.data.ActorPoolStrategy(size=workers),
            fn_constructor_args=(values, temperature),
            **wanted,
        )
        try:
            for row in counted(done.iter_rows(), "predict", len(jobs), "file"):
                if row["problem"]:
                    raise AlignAttnError(str(row["problem"]))
                seen.add(SeenRows.from_dict(json.loads(str(row["seen"]))))
        except ray.exceptions.RayError as error:
            raise AlignAttnError(f"a worker of the Ray cluster died: {one_line(error)}") from error
    return seen
