"""Text classification beyond GLUE: the tasks of Zhang et al. 2021, table 2, and of Wu et al. 2020, table 1."""

from alignattn.tasks.task import MetricName, TextClassification

_METRICS: tuple[MetricName, ...] = ("accuracy", "macro_f1")

TEXT_CLASSIFICATION_TASKS = (
    TextClassification(
        name="snli",
        text_columns=("premise", "hypothesis"),
        labels=("entailment", "neutral", "contradiction"),
        metrics=_METRICS,
        hub_id="stanfordnlp/snli",
        folder="snli",
    ),
    TextClassification(
        name="twitterppdb",
        text_columns=("sentence1", "sentence2"),
        labels=("not_duplicate", "duplicate"),
        metrics=_METRICS,
        evaluation_splits=("test",),
        folder="twitter_ppdb",
    ),
    TextClassification(
        name="agnews",
        text_columns=("text",),
        labels=("World", "Sports", "Business", "Sci/Tech"),
        metrics=_METRICS,
        evaluation_splits=("validation", "test"),
        derives_validation=True,
        hub_id="fancyzhx/ag_news",
        folder="ag_news",
    ),
    TextClassification(
        name="amazonelectronics",
        text_columns=("text",),
        labels=("1 star", "2 stars", "3 stars", "4 stars", "5 stars"),
        metrics=_METRICS,
        evaluation_splits=("validation", "test"),
        folder="amazon_electronics",
    ),
)
