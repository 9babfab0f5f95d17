"""The rows of question answering: those that SQuAD's own files nest, and what can be wrong with one."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from alignattn.utils.errors import shown

PARAGRAPHS, QUESTIONS = "paragraphs", "qas"
"""What an article calls its paragraphs, and a paragraph its questions."""


def is_nested(value: Any) -> bool:
    """Return whether a value of JSON is an article or a paragraph of SQuAD's own files."""
    return isinstance(value, dict) and (PARAGRAPHS in value or QUESTIONS in value)


def nested_questions(value: Mapping[str, Any]) -> Iterator[tuple[dict[str, Any], str | None]]:
    """Yield a row a question of an article or a paragraph, and what is wrong with it, or None.

    Args:
        value: of which `is_nested` is true.
    """
    title = value.get("title")
    paragraphs = value.get(PARAGRAPHS, [value])
    for paragraph in paragraphs if isinstance(paragraphs, list) else [paragraphs]:
        questions = paragraph.get(QUESTIONS) if isinstance(paragraph, Mapping) else None
        if not isinstance(questions, list) or not isinstance(paragraph, Mapping):
            yield {}, f"a paragraph of article {shown(title)} has no list {QUESTIONS!r} of questions"
            continue
        for question in questions:
            if not isinstance(question, Mapping):
                yield {}, f"a question of article {shown(title)} is {shown(question)} and no JSON object"
                continue
            row = {"title": title, "context": paragraph.get("context"), **question}
            problem = None
            if question.get("is_impossible") is True:
                row["answers"] = question.get("answers") or []
                problem = "it has answers, and its is_impossible is true" if row["answers"] else None
            yield row, problem


def columnar_answers(answers: Any) -> Any:
    """Return a list of answers, as SQuAD's own files have it, as the two lists of `qa_problem`; others as they are."""
    fields = ("text", "answer_start")
    if not isinstance(answers, list):
        return answers
    if not all(isinstance(answer, Mapping) and answer.keys() >= set(fields) for answer in answers):
        return answers
    return {name: [answer[name] for answer in answers] for name in fields}


def qa_problem(context: Any, question: Any, answers: Any) -> str | None:
    """What is wrong with a row in SQuAD's columns; None where nothing is.

    Args:
        context: The text that holds the answers.
        question: The question, a text.
        answers: `{"text": [texts], "answer_start": [characters]}`, counted in Unicode code points from 0; both
            lists are empty for an unanswerable question.

    Returns:
        A phrase about the row, such as "its question is empty", that fits after its number.
    """
    problem = question_problem(context, question)
    if problem is not None:
        return problem
    if not isinstance(answers, Mapping) or not {"text", "answer_start"} <= answers.keys():
        return "its answers are not of the form {'text': [...], 'answer_start': [...]}"
    texts, starts = answers["text"], answers["answer_start"]
    for name, values in (("text", texts), ("answer_start", starts)):
        if isinstance(values, str) or not isinstance(values, Sequence):
            return f"its answers' {name!r} is {shown(values)}, which is not a list"
    if len(texts) != len(starts):
        return f"its answers have {_count(len(texts), 'text')} and {_count(len(starts), 'answer_start')}"
    problems = (_answer_problem(context, text, start) for text, start in zip(texts, starts, strict=True))
    return next((problem for problem in problems if problem), None)


def question_problem(context: Any, question: Any) -> str | None:
    """What is wrong with the texts of a row, as of `qa_problem`; None where nothing is."""
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
    elsewhere = "nor anywhere else in it" if found < 0 else f"but at character {found}"
    return f"its answer {shown(text)} is not at character {start} of its context, {elsewhere}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
