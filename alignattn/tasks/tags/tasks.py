"""Token classification: named entities of MSRA's corpus (Levow 2006, SIGHAN Bakeoff-3)."""

from alignattn.tasks.task import TokenClassification

TOKEN_CLASSIFICATION_TASKS = (
    TokenClassification(
        name="msra",
        evaluation_splits=("validation", "test"),
        derives_validation=True,
        max_length=256,
        hub_id="levow/msra_ner",
        hub_revision="refs/convert/parquet",
        folder="msra_ner",
    ),
)
