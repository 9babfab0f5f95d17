"""Question answering: SQuAD 1.1 (Rajpurkar et al. 2016) and 2.0 (Rajpurkar et al. 2018)."""

from alignattn.tasks.task import QuestionAnswering

QUESTION_ANSWERING_TASKS = (
    QuestionAnswering(name="squad", hub_id="rajpurkar/squad", folder="squad"),
    QuestionAnswering(
        name="squadv2",
        metrics=("f1", "exact", "best_f1", "best_exact"),
        has_unanswerable=True,
        hub_id="rajpurkar/squad_v2",
        folder="squad_v2",
    ),
)
