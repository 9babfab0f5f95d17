"""`alignattn robustness show`: every word of both texts, the changed ones marked, in the terminal and in a page."""

import json
import os
import re
import subprocess
import sys
from functools import partial
from html.parser import HTMLParser

import pytest
from robustness_helpers import run_robustness

from alignattn.commands.robustness.examples import changed_words, summary_line
from alignattn.commands.robustness.show import examples_page, render_terminal
from alignattn.robustness.records import AttackRecord, read_examples
from alignattn.utils.errors import AlignAttnError

show = partial(run_robustness, "show")
VOID = {"meta", "input"}
NASTY = "<script>alert('x')</script> & \"quoted\" </article>"


def line(index=0, **fields):
    return {
        "index": index,
        "recipe": "textfooler",
        "outcome": "succeeded",
        "label": 1,
        "original": {"sentence": "a truly good film"},
        "perturbed": {"sentence": "a truly decent film"},
        "original_scores": [0.02, 0.98],
        "perturbed_scores": [0.7, 0.3],
        "queries": 31,
        "words": 4,
        "words_changed": 1,
        "seed": 3,
        "error": None,
        **fields,
    }


def skipped(index, **fields):
    nothing = {"perturbed": None, "perturbed_scores": None, "queries": 1, "words_changed": 0}
    return line(index, outcome="skipped", **{**nothing, **fields})


def failed(index):
    return line(index, outcome="failed", perturbed_scores=[0.4, 0.6])


def save(folder, *lines, end=""):
    path = folder / "results.jsonl"
    path.write_text("".join(json.dumps(one) + "\n" for one in lines) + end, encoding="utf-8")
    return path


def records_of(folder, *lines):
    return read_examples(save(folder, *lines))


class Page(HTMLParser):
    """A page as a browser parses it: its texts by tag; the tags must be well nested."""

    def __init__(self, page):
        super().__init__()
        self.open: list[str] = []
        self.texts: dict[str, list[str]] = {}
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and data.strip():
            self.texts.setdefault(self.open[-1], []).append(data.strip())


@pytest.mark.parametrize(
    ("before", "after", "left", "right"),
    [
        ("a b c", "a x c", ["=a", "-b", "=c"], ["=a", "+x", "=c"]),
        ("a b", "a b", ["=a b"], ["=a b"]),
        ("a c", "a b c", ["=a", "=c"], ["=a", "+b", "=c"]),
        ("a b c", "a c", ["=a", "-b", "=c"], ["=a", "=c"]),
        ("terrible film", "t errible film", ["-terrible", "=film"], ["+t errible", "=film"]),
        ("", "new", [], ["+new"]),
        ("a  b", "a b", ["=a b"], ["=a b"]),
        ("the\u200b end", "the end", ["-the\\u200b", "=end"], ["+the", "=end"]),
    ],
)
def test_changed_words_are_marked(before, after, left, right):
    signs = {"same": "=", "deleted": "-", "inserted": "+"}
    pieces = changed_words(before, after)
    assert [[signs[kind] + words for kind, words in side] for side in pieces] == [left, right]


def test_every_word_of_a_long_text_is_shown_and_only_one_is_marked():
    before = ["word", "other", "the"] * 200
    after = before.copy()
    after[301] = "changed"
    left, right = changed_words(" ".join(before), " ".join(after))
    assert " ".join(words for _, words in left).split() == before
    assert " ".join(words for _, words in right).split() == after
    assert [words for kind, words in left if kind != "same"] == ["other"]
    assert [words for kind, words in right if kind != "same"] == ["changed"]


def test_the_terminal_shows_an_example(tmp_path):
    text = render_terminal(records_of(tmp_path, line(7)), color=False, limit=None, labels=["bad", "good"])
    assert text.splitlines() == [
        "row 7 · textfooler · succeeded · 31 queries · 1 of 4 words changed",
        "  label good",
        "  predicted good (bad 0.020, good 0.980)",
        "  attacked bad (bad 0.700, good 0.300)",
        "  sentence: a truly [-good-] film",
        "          → a truly {+decent+} film",
        "",
        "1 example(s): 0 failed, 1 succeeded, 0 skipped; attacks that failed: 0.0% of 1",
    ]


def test_colour_marks_the_same_words(tmp_path):
    records = records_of(tmp_path, line())
    plain = render_terminal(records, color=False, limit=None)
    coloured = render_terminal(records, color=True, limit=None)
    assert "\x1b" not in plain
    assert re.findall(r"\x1b\[1;3\dm(.*?)\x1b\[0m", coloured) == ["good", "decent"]
    assert re.sub(r"\x1b\[[\d;]*m", "", coloured) == re.sub(r"\[-|-\]|\{\+|\+\}", "", plain)


def test_a_label_without_a_name_is_its_number(tmp_path):
    text = render_terminal(records_of(tmp_path, line(label=-1)), color=False, limit=None, labels=["bad"])
    assert "label -1" in text
    assert "predicted 1 (bad 0.020, 1 0.980)" in text


def test_pairs_show_both_texts(tmp_path):
    pair = line(original={"a": "one two", "b": "three"}, perturbed={"a": "one two", "b": "four"})
    text = render_terminal(records_of(tmp_path, pair), color=False, limit=None)
    for expected in ("  a: one two\n   → one two\n", "  b: [-three-]\n   → {+four+}"):
        assert expected in text


def test_a_skipped_example_shows_its_text_and_error(tmp_path):
    nothing = {"original_scores": [], "error": "the text has\nno words"}
    for record in (skipped(2), skipped(2, **nothing)):
        text = render_terminal(records_of(tmp_path, record), color=False, limit=None)
        assert "  sentence: a truly good film\n\n" in text
        assert "→" not in text
    assert "error the text has no words" in text


def test_no_text_reaches_the_terminal_as_a_command(tmp_path):
    record = line(
        original={"sentence": "\x1b[2Jgone \x07 \ud800"}, perturbed={"sentence": "\x9b31m"}, recipe="\x1b]0;x"
    )
    text = render_terminal(records_of(tmp_path, record), color=False, limit=None)
    assert all(char.isprintable() or char == "\n" for char in text)
    assert "\\x1b[2Jgone \\x07 \\ud800" in text
    examples_page(records_of(tmp_path, record), "title").encode("utf-8")


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (
            [line(0), failed(1), failed(2), skipped(3)],
            "2 failed, 1 succeeded, 1 skipped; attacks that failed: 66.7% of 3",
        ),
        ([skipped(0)], "0 failed, 0 succeeded, 1 skipped; attacks that failed: no row was attacked"),
    ],
)
def test_the_summary_counts(lines, said, tmp_path):
    assert summary_line(records_of(tmp_path, *lines)) == f"{len(lines)} example(s): {said}"


def test_the_page_marks_the_changed_words_and_loads_nothing(tmp_path):
    text = examples_page(records_of(tmp_path, line(0), failed(1), skipped(2)), "a title", labels=["bad", "good"])
    page = Page(text)
    assert page.texts["del"] == ["good", "good"]
    assert page.texts["ins"] == ["decent", "decent"]
    assert page.texts["h1"] == ["a title"]
    assert [attrs["class"] for tag, attrs in page.tags if tag == "article"] == ["succeeded", "failed", "skipped"]
    assert {tag for tag, _ in page.tags}.isdisjoint({"script", "link", "img", "iframe"})
    assert not re.search(r"https?:|url\(|@import", text)
    assert "prefers-color-scheme: dark" in text
    assert "predicted good (bad 0.020, good 0.980)" in page.texts["p"]
    assert any("33" not in words and "50.0% of 2" in words for words in page.texts["p"])


def test_the_page_filters_by_outcome(tmp_path):
    text = examples_page(records_of(tmp_path, line(0), failed(1), failed(2)), "title")
    page = Page(text)
    choices = {attrs["id"] for tag, attrs in page.tags if tag == "input"}
    assert choices == {attrs["for"] for tag, attrs in page.tags if tag == "label"}
    assert page.texts["label"] == ["all (3)", "failed (2)", "succeeded (1)", "skipped (0)"]
    hidden = re.findall(r"#(\S+):checked ~ main > article:not\(\.(\w+)\) \{ display: none; \}", text)
    assert {f"show-{outcome}" for _, outcome in hidden} | {"show-all"} == choices
    assert all(choice == f"show-{outcome}" for choice, outcome in hidden)


def test_texts_cannot_break_out_of_the_page(tmp_path):
    record = line(original={NASTY: NASTY}, perturbed={NASTY: NASTY + " <img src=x>"}, recipe=NASTY, error=NASTY)
    page = Page(examples_page(records_of(tmp_path, record), NASTY, labels=[NASTY, NASTY]))
    assert {tag for tag, _ in page.tags}.isdisjoint({"script", "img"})
    assert page.texts["title"] == page.texts["h1"] == page.texts["dt"] == [NASTY]
    assert page.texts["ins"] == ["<img src=x>"]


def test_the_command_prints_the_selected_examples(tmp_path, capsys):
    path = str(save(tmp_path, *(line(number) for number in range(25)), failed(25)))
    show(path)
    printed = capsys.readouterr().out
    assert "\x1b" not in printed
    assert printed.count("\nrow ") + printed.startswith("row ") == 20
    assert "6 more: see --limit and --html" in printed
    show(path, "--limit", "2", "--outcome", "succeeded", "--labels", "bad", "good")
    printed = capsys.readouterr().out
    assert re.findall(r"^row (\d+)", printed, re.MULTILINE) == ["0", "1"]
    assert "label good" in printed
    assert "25 example(s)" in printed


@pytest.mark.parametrize(("labels", "name"), [(["bad", "good"], "good"), ([], "1")])
def test_classes_have_the_names_of_the_header(labels, name, made, tmp_path, capsys):
    path = save(tmp_path, line(0))
    header = json.loads((made / "attacks/aa-ct/textbugger.json").read_text())
    path.with_suffix(".json").write_text(json.dumps(header | {"labels": labels}))
    show(str(path))
    assert f"label {name}\n" in capsys.readouterr().out
    show(str(path), "--labels", "no", "yes", "--html", str(tmp_path / "page.html"))
    assert "label yes" in (tmp_path / "page.html").read_text()


def test_the_command_writes_a_page_and_overwrites_nothing(tmp_path, capsys):
    path = save(tmp_path, line(0), failed(1), skipped(2))
    page = tmp_path / "new" / "page.html"
    show(str(path), "--html", str(page))
    assert f"written to {page}" in capsys.readouterr().out
    assert len([tag for tag, _ in Page(page.read_text(encoding="utf-8")).tags if tag == "article"]) == 3
    before = path.read_bytes()
    for taken in (page, path, tmp_path):
        with pytest.raises(AlignAttnError, match=r"already exists|is a folder"):
            show(str(path), "--html", str(taken))
    assert path.read_bytes() == before


def test_characters_that_the_encoding_lacks_are_escaped(tmp_path):
    path = save(tmp_path, line(0, original={"sentence": "a naïve film “here”"}))
    command = [sys.executable, "-m", "alignattn.cli", "robustness", "show", str(path)]
    shown = subprocess.run(command, env=os.environ | {"PYTHONIOENCODING": "latin-1"}, capture_output=True, check=False)
    assert shown.returncode == 0, shown.stderr.decode()
    text = shown.stdout.decode("latin-1")
    assert "naïve" in text
    assert r"\u201chere\u201d" in text
    assert "1 example(s)" in text


def test_a_torn_last_line_is_left_out_and_reported(tmp_path, capsys):
    path = save(tmp_path, line(0), failed(1), end=json.dumps(line(2))[:50])
    before = path.read_bytes()
    show(str(path))
    captured = capsys.readouterr()
    assert "2 example(s)" in captured.out
    assert "last line" in captured.err
    assert path.read_bytes() == before


def test_lines_written_while_a_file_is_read_are_not_reported_as_torn(tmp_path, monkeypatch, capsys):
    path = save(tmp_path, line(0))
    from_line = AttackRecord.from_line

    def read_while_it_grows(text):
        with path.open("a") as file:
            file.write(json.dumps(line(1)) + "\n")
        return from_line(text)

    monkeypatch.setattr(AttackRecord, "from_line", read_while_it_grows)
    assert len(read_examples(path)) == 1
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "has no example"),
        (b'{"torn', "has no example"),
        (b'{"a": 1}\n', "line 1"),
        (b"[1]\n", "line 1"),
        (b"word\n", "line 1"),
        (b"\xff\xfe\n", "UTF-8"),
    ],
)
def test_a_file_without_results_is_one_line(content, said, tmp_path):
    path = tmp_path / "results.jsonl"
    path.write_bytes(content)
    with pytest.raises(AlignAttnError) as caught:
        show(str(path))
    assert said in str(caught.value)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("change", [{"outcome": "won"}, {"queries": "many"}, {"original": ["x"]}, {"label": None}])
def test_a_line_with_a_wrong_field_names_it(change, tmp_path):
    path = save(tmp_path, line(0), line(1, **change))
    with pytest.raises(AlignAttnError) as caught:
        show(str(path))
    assert "line 2" in str(caught.value)
    assert next(iter(change)) in str(caught.value)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["missing.jsonl"], "there is no file missing.jsonl"),
        ([], "RESULTS"),
        (["{path}", "--limit", "0"], "--limit 0"),
        (["{path}", "--outcome", "won"], "choose one of failed, succeeded, skipped"),
        (["{path}", "--outcome", "skipped"], "no example that is skipped"),
    ],
)
def test_a_mistake_is_one_line(words, said, tmp_path):
    path = save(tmp_path, line(0))
    with pytest.raises(AlignAttnError) as caught:
        show(*(word.format(path=path) for word in words))
    assert said in str(caught.value)
