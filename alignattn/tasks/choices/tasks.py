"""Multiple choice: SWAG (Zellers et al. 2018) and HellaSwag (Zellers et al. 2019)."""

from alignattn.tasks.task import MultipleChoice

_CHOICES = ("A", "B", "C", "D")

MULTIPLE_CHOICE_TASKS = (
    MultipleChoice(
        name="swag",
        context_column="sent1",
        start_column="sent2",
        ending_columns=("ending0", "ending1", "ending2", "ending3"),
        labels=_CHOICES,
        hub_id="allenai/swag",
        hub_config="regular",
        folder="swag",
    ),
    MultipleChoice(
        name="hellaswag",
        context_column="ctx",
        ending_columns=("endings",),
        labels=_CHOICES,
        hub_id="Rowan/hellaswag",
        folder="hellaswag",
    ),
)
