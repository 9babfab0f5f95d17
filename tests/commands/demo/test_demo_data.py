"""The demo's rows, and their labels against an oracle that plays the sentences out in made-up worlds."""

import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow.parquet as pq
import pytest

from alignattn.commands.demo.data import GENRE, LABEL_NAMES, OTHER_GENRE, SentencePair, generate, write_demo_data
from alignattn.commands.demo.vocabulary import GENRES, Genre, Taxon
from alignattn.support.errors import AlignAttnError

ENTAILMENT, NEUTRAL, CONTRADICTION = 0, 1, 2
CROWDS_TRIED = 4000
TRUE_PREMISES_WANTED = 300
LARGEST_GROUP = 6  # more than any number in a sentence


# The oracle: it shares the word lists with the generator, and nothing else.


class Person(NamedTuple):
    noun: str
    modifier: str | None
    doing: dict[str | None, tuple[str, str]]  # time -> activity, place


@dataclass(frozen=True)
class Reading:
    """What a sentence says, read off its text."""

    kind: str  # a quantifier, "the", "encounter", "opinion for", "opinion against" or a bound with its number
    time: str | None
    people: tuple[tuple[str, str | None], ...]  # noun, modifier; of an encounter: who did it, to whom
    negated: bool = False
    activity: str = ""  # of an opinion: the topic
    place: str | None = None


def read_person(text: str, genre: Genre) -> tuple[str, str | None]:
    for modifier in genre.modifiers:
        if found := re.fullmatch(modifier.replace("{}", "(.+)"), text):
            return singular(found[1]), modifier
    return singular(text), None


def singular(noun: str) -> str:
    noun = re.sub("men$", "man", re.sub("ves$", "f", noun))
    return noun.removesuffix("s")


def read(sentence: str, genre: Genre) -> Reading:
    text = sentence[0].lower() + sentence[1:].removesuffix(".")
    time = next((time for time in genre.times if time in text), None)
    if time is not None:
        text = text.removeprefix(f"{time}, ").removesuffix(f" {time}")
    for base, past, participle in genre.verbs:
        if found := re.fullmatch(f"the (.+) (did not {base}|{past}) the (.+)", text):
            people = read_person(found[1], genre), read_person(found[3], genre)
            return Reading("encounter", time, people, "not" in found[2])
        if found := re.fullmatch(f"the (.+) was (not )?{participle} by the (.+)", text):
            people = read_person(found[3], genre), read_person(found[1], genre)
            return Reading("encounter", time, people, found[2] is not None)
    for verb, is_for in ((genre.favour, True), (genre.oppose, False)):
        if found := re.fullmatch(f"the (.+) (did not {verb.base}|{verb.past}) ({'|'.join(genre.topics)})", text):
            kind = "opinion for" if is_for else "opinion against"
            return Reading(kind, time, (read_person(found[1], genre),), "not" in found[2], found[3])
    return read_event(text, time, genre)


def read_event(text: str, time: str | None, genre: Genre) -> Reading:
    determiner = r"the|not every|every|no|some|(?:exactly|at least|at most) \w+"
    verb = "|".join((genre.negated, genre.singular, genre.plural))
    place = "|".join(terms(genre.places))
    found = re.fullmatch(rf"({determiner}) (.+?) ({verb}) (\w+ing an? .+?)(?: ({place}))?", text)
    assert found, text
    person = read_person(found[2], genre)
    return Reading(found[1], time, (person,), found[3] == genre.negated, found[4], found[5])


def terms(taxa: tuple[Taxon, ...]) -> list[str]:
    return [term for taxon in taxa for term in (taxon.broad, *taxon.narrow)]


def is_a(narrow: str, term: str | None, taxa: tuple[Taxon, ...]) -> bool:
    return term is None or narrow == term or any(narrow in t.narrow and t.broad == term for t in taxa)


def fits(person: Person, described: tuple[str, str | None], genre: Genre) -> bool:
    noun, modifier = described
    return is_a(person.noun, noun, genre.people) and modifier in (None, person.modifier)


def takes_part(person: Person, reading: Reading, genre: Genre) -> bool:
    activity, place = person.doing[reading.time]
    return is_a(activity, reading.activity, genre.activities) and is_a(place, reading.place, genre.places)


def is_true(reading: Reading, crowd: list[Person], genre: Genre) -> bool | None:
    """None where nobody is spoken of."""
    if reading.kind == "the":
        (person,) = crowd
        took_part = takes_part(person, reading, genre)
        return fits(person, reading.people[0], genre) and took_part != reading.negated
    facts = [takes_part(person, reading, genre) for person in crowd if fits(person, reading.people[0], genre)]
    quantified = {"every": all(facts), "not every": not all(facts), "some": any(facts), "no": not any(facts)}
    if reading.kind in quantified:
        return quantified[reading.kind] if facts else None
    bound, number = reading.kind.rsplit(" ", 1)
    difference = sum(facts) - ("zero", "one", "two", "three", "four", "five").index(number)
    return {"exactly": difference == 0, "at least": difference >= 0, "at most": difference <= 0}[bound]


def candidates(said: list[str | None], taxa: tuple[Taxon, ...]) -> list[str]:
    """Two kinds of whatever was said and something else: enough to tell the terms of two sentences apart."""
    named = {narrow for term in said for narrow in terms(taxa) if narrow == term}
    kinds = {narrow for t in taxa if t.broad in said for narrow in t.narrow}
    stranger = next(n for t in taxa for n in t.narrow if not {t.broad, *t.narrow} & set(said))
    return sorted(((named | kinds) - {t.broad for t in taxa}) | {stranger})


def crowds(pair: tuple[Reading, Reading], genre: Genre, rng: random.Random) -> Iterator[list[Person]]:
    """Made-up worlds: people of the kinds spoken of, doing at each time one of the things spoken of."""
    nouns = candidates([r.people[0][0] for r in pair], genre.people)
    modifiers = sorted({None, *(r.people[0][1] for r in pair)}, key=str)
    activities = candidates([r.activity for r in pair], genre.activities)
    places = candidates([r.place for r in pair], (*genre.places, Taxon("elsewhere", ("on a ship",))))
    times = sorted({r.time for r in pair}, key=str)

    def doing() -> dict[str | None, tuple[str, str]]:
        return {time: (rng.choice(activities), rng.choice(places)) for time in times}

    for _ in range(CROWDS_TRIED):
        one = Person(rng.choice(nouns), rng.choice(modifiers), doing())
        if pair[0].kind == "the":
            yield [one]
            continue
        noun, modifier, _ = one
        if rng.random() < 0.5:
            noun, modifier = rng.choice(nouns), rng.choice(modifiers)
        other = Person(noun, modifier, doing())
        # Two groups of people who are alike: numbers want several.
        yield [one] * rng.randint(1, LARGEST_GROUP) + [other] * rng.randint(0, LARGEST_GROUP)


def label_of_opinions(premise: Reading, hypothesis: Reading, genre: Genre) -> int:
    """By argument: whoever is for something is not against it, whoever is not for it may be indifferent."""
    if premise.activity != hypothesis.activity:
        return NEUTRAL
    if premise.kind == hypothesis.kind and premise.negated != hypothesis.negated:
        return CONTRADICTION
    if premise.kind != hypothesis.kind and premise.negated:
        return NEUTRAL
    if premise.kind != hypothesis.kind and not hypothesis.negated:
        return CONTRADICTION
    return label_of_descriptions(premise, hypothesis, genre)


def label_of_descriptions(premise: Reading, hypothesis: Reading, genre: Genre) -> int:
    taxon_of = {term: taxon.broad for taxon in genre.people for term in (taxon.broad, *taxon.narrow)}
    same_or_broader = all(
        said[0] in (told[0], taxon_of[told[0]]) and said[1] in (None, told[1])
        for told, said in zip(premise.people, hypothesis.people, strict=True)
    )
    return ENTAILMENT if same_or_broader else NEUTRAL


def label_of_encounters(premise: Reading, hypothesis: Reading, genre: Genre) -> int:
    """By argument: these verbs say nothing of the other direction, nor of another time."""
    taxon_of = {term: taxon.broad for taxon in genre.people for term in (taxon.broad, *taxon.narrow)}
    direction, other = ([taxon_of[noun] for noun, _ in r.people] for r in (premise, hypothesis))
    if direction != other or premise.time != hypothesis.time:
        return NEUTRAL
    if premise.negated != hypothesis.negated:
        return CONTRADICTION
    return label_of_descriptions(premise, hypothesis, genre)


def oracle(premise: str, hypothesis: str, genre: Genre) -> int:
    pair = read(premise, genre), read(hypothesis, genre)
    if pair[0].kind == "encounter":
        return label_of_encounters(*pair, genre)
    if pair[0].kind.startswith("opinion"):
        return label_of_opinions(*pair, genre)
    rng = random.Random(premise + hypothesis)
    seen = {True: 0, False: 0}  # the hypothesis where the premise is true
    for crowd in crowds(pair, genre, rng):
        if is_true(pair[0], crowd, genre) and (truth := is_true(pair[1], crowd, genre)) is not None:
            seen[truth] += 1
        if all(seen.values()):
            return NEUTRAL
        if sum(seen.values()) == TRUE_PREMISES_WANTED:
            break
    assert any(seen.values()), f"the premise is never true: {premise}"
    return ENTAILMENT if seen[True] else CONTRADICTION


BY_HAND = [
    ("The harpist was riding a camel.", "The musician was riding an animal.", ENTAILMENT),
    ("The musician was riding a camel.", "The harpist was riding a camel.", NEUTRAL),
    ("The duke was not riding an animal.", "The duke was not riding a camel.", ENTAILMENT),
    ("The duke was not riding a camel.", "The duke was not riding an animal.", NEUTRAL),
    ("The duke was not riding a camel indoors.", "The duke was riding a camel outdoors.", NEUTRAL),
    ("The duke was riding a camel.", "The duke was not riding a donkey.", ENTAILMENT),
    ("The duke was riding a camel in the cellar.", "The duke was riding a camel outdoors.", CONTRADICTION),
    ("At dawn, the duke was riding a camel.", "The duke was not riding a camel at noon.", NEUTRAL),
    ("Every musician was riding a camel indoors.", "Every blind harpist was riding a camel.", ENTAILMENT),
    ("Every harpist was riding a camel.", "Every musician was riding a camel.", NEUTRAL),
    ("No musician was riding an animal.", "Some harpists were riding a camel.", CONTRADICTION),
    ("No harpist was riding a camel.", "Not every musician was riding a camel.", ENTAILMENT),
    ("Exactly three thieves were riding a camel.", "At least two thieves were riding a camel.", ENTAILMENT),
    ("At least three thieves were riding a camel.", "Exactly five thieves were riding a camel.", NEUTRAL),
    ("At most two earls were riding a camel.", "Exactly five earls were riding a camel.", CONTRADICTION),
    ("The duke thanked the vicar.", "The clergyman was thanked by the nobleman.", ENTAILMENT),
    ("The harpist loved opera.", "The musician did not hate opera.", ENTAILMENT),
    ("The harpist did not hate opera.", "The harpist loved opera.", NEUTRAL),
    ("The harpist loved opera.", "The harpist hated chess.", NEUTRAL),
    ("The harpist loved opera.", "The blind harpist hated opera.", CONTRADICTION),
    ("The duke thanked the vicar.", "The vicar thanked the duke.", NEUTRAL),
    ("The duke did not thank the vicar.", "The vicar was thanked by the duke with a scar.", CONTRADICTION),
]


@pytest.mark.parametrize(("premise", "hypothesis", "label"), BY_HAND)
def test_oracle_agrees_with_labels_by_hand(premise: str, hypothesis: str, label: int) -> None:
    assert oracle(premise, hypothesis, GENRES["fiction"]) == label


@pytest.mark.parametrize("genre", GENRES)
def test_labels_agree_with_the_oracle(genre: str) -> None:
    rows = generate(300, genre, seed=11)
    assert [row for row in rows if oracle(row.premise, row.hypothesis, GENRES[genre]) != row.label] == []


# The rows


@pytest.fixture(scope="module")
def rows() -> list[SentencePair]:
    return generate(1800, GENRE, seed=5)


@pytest.mark.parametrize("num_rows", [1, 100, 101])
def test_labels_are_balanced_within_one(num_rows: int) -> None:
    counts = np.bincount([row.label for row in generate(num_rows, OTHER_GENRE, seed=0)], minlength=3)
    assert counts.sum() == num_rows
    assert np.ptp(counts) <= 1


def test_no_pair_comes_twice_and_none_is_a_copy(rows: list[SentencePair]) -> None:
    assert len({(row.premise, row.hypothesis) for row in rows}) == len(rows)
    assert all(row.premise != row.hypothesis for row in rows)


def test_rows_depend_on_the_seed_alone() -> None:
    random.seed(0)
    state = random.getstate()
    first = generate(60, GENRE, seed=3)
    assert random.getstate() == state
    assert generate(60, GENRE, seed=3) == first
    assert generate(30, GENRE, seed=3) == first[:30]
    assert not set(generate(60, GENRE, seed=4)) & set(first)


@pytest.mark.parametrize("genre", GENRES)
def test_sentences_are_correct_english_on_the_surface(genre: str) -> None:
    plural_subject = re.compile(r"^(some|exactly|at (least|most))\b")
    for row in generate(600, genre, seed=2):
        for sentence in (row.premise, row.hypothesis):
            assert re.fullmatch(r"[A-Z][A-Za-z, -]+\.", sentence), sentence
            assert "  " not in sentence
            assert not re.search(r"\ba [aeiou]|\ban [^aeiou]", sentence, re.IGNORECASE), sentence
            clause = sentence.split(", ")[-1].lower()
            if genre == "fiction" and (auxiliary := re.search(r"\b(was|were)\b", clause)):
                assert (auxiliary[1] == "were") == bool(plural_subject.match(clause)), sentence
            assert len(sentence.split()) <= 20


def test_genres_share_neither_people_nor_activities_nor_verbs() -> None:
    words = [
        {word for term in [*terms(g.people), *terms(g.activities), *g.topics] for word in term.split()}
        | {verb.base for verb in g.verbs}
        for g in GENRES.values()
    ]
    assert words[0] & words[1] <= {"a", "an", "of", "piece"}


@pytest.mark.parametrize("genre", GENRES)
def test_no_term_has_two_places_in_a_taxonomy(genre: str) -> None:
    for taxa in (GENRES[genre].people, GENRES[genre].activities, GENRES[genre].places):
        assert len(set(terms(taxa))) == len(terms(taxa))


# Artefacts


def test_negation_comes_with_every_label_in_either_sentence(rows: list[SentencePair]) -> None:
    for part in ("premise", "hypothesis"):
        for label in LABEL_NAMES:
            texts = [getattr(row, part) for row in rows if row.label == label]
            negated = [bool(re.search(r"\b(not|no)\b", text, re.IGNORECASE)) for text in texts]
            assert 0.2 < np.mean(negated) < 0.6


def test_hypothesis_alone_tells_nothing(rows: list[SentencePair]) -> None:
    from sklearn.feature_extraction.text import CountVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline

    model = make_pipeline(CountVectorizer(ngram_range=(1, 2)), LogisticRegression(C=0.3, max_iter=1000))
    train, held_out = rows[:1200], rows[1200:]
    model.fit([row.hypothesis for row in train], [row.label for row in train])
    assert model.score([row.hypothesis for row in held_out], [row.label for row in held_out]) < 0.42


def test_lengths_and_overlap_tell_little(rows: list[SentencePair]) -> None:
    from sklearn.linear_model import LogisticRegression

    def features(row: SentencePair) -> list[float]:
        premise, hypothesis = (set(text.lower().strip(".").split()) for text in (row.premise, row.hypothesis))
        shared = len(premise & hypothesis)
        return [len(premise), len(hypothesis), shared / len(premise), shared / len(hypothesis)]

    inputs, labels = np.array([features(row) for row in rows]), [row.label for row in rows]
    model = LogisticRegression(max_iter=1000).fit(inputs[:1200], labels[:1200])
    assert model.score(inputs[1200:], labels[1200:]) < 0.55


# Files and mistakes


def test_files_have_the_layout_of_a_data_folder(tmp_path: Path) -> None:
    for _ in range(2):  # the second run replaces the first one's files
        write_demo_data(tmp_path, train_rows=90, validation_rows=40, seed=1)
    splits = {path.stem: pq.read_table(path) for path in (tmp_path / "demo").iterdir()}
    assert {name: table.num_rows for name, table in splits.items()} == {
        "train": 90,
        "validation_fiction": 40,
        "validation_business": 40,
    }
    for table in splits.values():
        assert table.column_names == ["premise", "hypothesis", "label"]
        assert [str(kind) for kind in table.schema.types] == ["string", "string", "int64"]
        assert np.ptp(np.bincount(table["label"].to_numpy())) <= 1
    pairs = [
        set(zip(splits[name]["premise"].to_pylist(), splits[name]["hypothesis"].to_pylist(), strict=True))
        for name in ("train", "validation_fiction")
    ]
    assert not pairs[0] & pairs[1]


def test_a_failed_write_leaves_no_part_of_a_file(tmp_path: Path) -> None:
    in_the_way = tmp_path / "demo" / "train.parquet"
    in_the_way.mkdir(parents=True)
    with pytest.raises(OSError, match="train"):
        write_demo_data(tmp_path, train_rows=3, validation_rows=3, seed=0)
    assert list((tmp_path / "demo").iterdir()) == [in_the_way]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda folder: generate(0, "fiction", 0), "0: give at least 1"),
        (lambda folder: generate(3, "poetry", 0), "'poetry'.*fiction, business"),
        (lambda folder: write_demo_data(folder, train_rows=5, validation_rows=0, seed=0), "0 validation"),
    ],
)
def test_mistakes_are_told_in_one_line(call, message: str, tmp_path: Path) -> None:
    with pytest.raises(AlignAttnError, match=message) as caught:
        call(tmp_path)
    assert "\n" not in str(caught.value)
