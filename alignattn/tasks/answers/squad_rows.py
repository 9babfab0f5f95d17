"""Problems of rows of question answering."""

from collections.abc import Mapping, Sequence
from typing import Any

from alignattn.utils.errors import shown


def columnar_answers(answers: Any) -> Any:
    """Convert a list of answers, as in SQuAD's own files, to the two lists of `qa_problem`; keep other values."""
    fields = ("text", "answer_start")
    if not isinstance(answers, list):
        return answers
    if not all(isinstance(answer, Mapping) and answer.keys() >= set(fields) for answer in answers):
        return answers
    return {name: [answer[name] for answer in answers] for name in fields}


def qa_problem(context: Any, question: Any, answers: Any, *, has_unanswerable: bool = True) -> str | None:
    """Return the problem of a row in SQuAD's columns, or None.

    Args:
        context: the text that holds the answers.
        question: a text.
        answers: `{"text": [texts], "answer_start": [characters]}`, counted in Unicode code points from 0; both lists
            are empty for an unanswerable question.
        has_unanswerable: whether a question may have no answer.

    Returns:
        A phrase such as "its question is empty", that fits after the row's number.
    """
    if problem := question_problem(context, question):
        return problem
    if not isinstance(answers, Mapping) or not {"text", "answer_start"} <= answers.keys():
        return "its answers are not of the form {'text': [...], 'answer_start': [...]}"
    texts, starts = answers["text"], answers["answer_start"]
    for name, values in (("text", texts), ("answer_start", starts)):
        if isinstance(values, str) or not isinstance(values, Sequence):
            return f"its answers' {name!r} is {shown(values)}, not a list"
    if len(texts) != len(starts):
        return f"its answers have {len(texts)} text(s) and {len(starts)} answer_start(s)"
    if not texts and not has_unanswerable:
        return "its question has no answer, which this task requires (squadv2 does not)"
    problems = (_answer_problem(context, text, start) for text, start in zip(texts, starts, strict=True))
    return next((problem for problem in problems if problem), None)


def question_problem(context: Any, question: Any) -> str | None:
    """Return the problem of the texts of a row, as `qa_problem` does."""
    for name, text in (("context", context), ("question", question)):
        if not isinstance(text, str):
            return f"its {name} is {shown(text)}, which is not text"
        if not text.strip():
            return f"its {name} is empty"
    return None


def _answer_problem(context: str, text: Any, start: Any) -> str | None:
    if not isinstance(text, str):
        return f"its answer is {shown(text)}, which is not text"
    if not text.strip():
        return "its answer is empty; an unanswerable question has no answers at all"
    if not isinstance(start, int) or isinstance(start, bool):
        return f"its answer_start is {shown(start)}, which is not a whole number"
    if not 0 <= start < len(context):
        return f"its answer starts at character {start}, and its context has {len(context)}"
    if context.startswith(text, start):
        return None
    found = context.find(text)
    elsewhere = "nor anywhere else in the context" if found < 0 else f"but at character {found}"
    return f"its answer {shown(text)} is not at character {start} of its context, {elsewhere}"
