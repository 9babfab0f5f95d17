"""The demo's task: generated sentence pairs in two genres, trained on one and evaluated on both."""

from alignattn.commands.demo.data import IN_DOMAIN, LABEL_NAMES, OUT_OF_DOMAIN, TASK_FOLDER
from alignattn.tasks.task import TextClassification

DEMO_TASK = TextClassification(
    name="demo",
    text_columns=("premise", "hypothesis"),
    labels=tuple(LABEL_NAMES[label] for label in sorted(LABEL_NAMES)),
    metrics=("accuracy",),
    evaluation_splits=(f"validation_{IN_DOMAIN}", f"validation_{OUT_OF_DOMAIN}"),
    folder=TASK_FOLDER,
)
