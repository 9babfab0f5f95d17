"""The eight GLUE tasks of the paper (Wang et al. 2019, "GLUE: A Multi-Task Benchmark", table 1).

WNLI is left out, as by most work since BERT: its development set contradicts its training set.
"""

from alignattn.tasks.task import MetricName, TextClassification

HUB_ID = "nyu-mll/glue"


def _glue(
    name: str,
    text_columns: tuple[str, ...],
    labels: tuple[str, ...],
    metrics: tuple[MetricName, ...],
    *,
    label_range: tuple[float, float] | None = None,
    evaluation_splits: tuple[str, ...] = ("validation",),
) -> TextClassification:
    return TextClassification(
        name=name,
        text_columns=text_columns,
        labels=labels,
        metrics=metrics,
        label_range=label_range,
        evaluation_splits=evaluation_splits,
        hub_id=HUB_ID,
        hub_config=name,
        folder=f"glue/{name}",
    )


_SENTENCES = ("sentence1", "sentence2")

GLUE_TASKS = (
    _glue("mrpc", _SENTENCES, ("not_equivalent", "equivalent"), ("accuracy", "f1")),
    _glue("cola", ("sentence",), ("unacceptable", "acceptable"), ("matthews_correlation",)),
    _glue("rte", _SENTENCES, ("entailment", "not_entailment"), ("accuracy",)),
    _glue(
        "mnli",
        ("premise", "hypothesis"),
        ("entailment", "neutral", "contradiction"),
        ("accuracy",),
        evaluation_splits=("validation_matched", "validation_mismatched"),
    ),
    _glue("qnli", ("question", "sentence"), ("entailment", "not_entailment"), ("accuracy",)),
    _glue("qqp", ("question1", "question2"), ("not_duplicate", "duplicate"), ("accuracy", "f1")),
    _glue("sst2", ("sentence",), ("negative", "positive"), ("accuracy",)),
    _glue("stsb", _SENTENCES, (), ("pearson", "spearmanr"), label_range=(0.0, 5.0)),
)
