"""The three recipes with local resources: what they attack, and their constants."""

from collections import OrderedDict
from dataclasses import replace

import pytest
import torch
from needs import skip_without
from robustness_helpers import GLOVE, NEIGHBORS, SST2, constraints, watch_inputs

from alignattn.robustness.recipes import RECIPES, SPARED_COLUMNS, attacked_columns, build_attack
from alignattn.robustness.resources import read_neighbors
from alignattn.utils.errors import AlignAttnError

skip_without(NEIGHBORS, SST2)
pytest_plugins = ["robustness_fixtures"]

SENTENCES = [
    ("a gorgeous , witty , seductive movie .", 1),
    ("The acting is awful and the story is a boring , predictable mess that never ends well for anyone involved .", 0),
    ("it 's a charming and often affecting journey .", 1),
]


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_attacks_real_sentences(recipe, wrapper, resources):
    attack = build_attack(recipe, wrapper, resources)
    assert attack.transformation is not None
    for text, label in SENTENCES:
        result = attack.attack(text, label)
        kind = type(result).__name__
        predicted = int(wrapper([text])[0].argmax())
        assert (kind == "SkippedAttackResult") == (predicted != label)
        after = result.perturbed_result.attacked_text.text
        if kind == "SuccessfulAttackResult":
            assert after != text
            assert int(wrapper([after])[0].argmax()) != label
        assert result.num_queries >= 1


def test_textfooler_succeeds_with_listed_words_in_the_case_of_the_original(wrapper, resources):
    attack = build_attack("textfooler", wrapper, resources)
    result = attack.attack("Awful and boring movie", 0)
    assert type(result).__name__ == "SuccessfulAttackResult"
    lists = read_neighbors(NEIGHBORS)
    before, after = (side.attacked_text.words for side in (result.original_result, result.perturbed_result))
    changed = [(old, new) for old, new in zip(before, after, strict=True) if old != new]
    assert changed
    for old, new in changed:
        assert new.lower() in lists[old.lower()]
        assert new[0].isupper() == old[0].isupper()


@pytest.mark.parametrize(
    ("recipe", "threshold", "metric", "against_original", "window", "skips"),
    [
        ("textfooler", 0.840845057, "angular", False, 15, True),
        ("textbugger", 0.8, "angular", True, float("inf"), False),
        ("bae", 0.936338023, "cosine", True, 15, True),
    ],
)
def test_the_constants_of_the_recipes_are_those_of_textattack(
    recipe, threshold, metric, against_original, window, skips, resources, wrapper
):
    similarity = constraints(build_attack(recipe, wrapper, resources))["SentenceSimilarity"]
    assert (similarity.threshold, similarity.metric) == (threshold, metric)
    assert similarity.compare_against_original == against_original
    assert (similarity.window_size, similarity.skip_text_shorter_than_window) == (window, skips)


def test_the_word_distance_is_kept_with_vectors_and_left_out_without(wrapper, resources):
    with_vectors = replace(resources, neighbors=None, word_vectors=GLOVE)
    assert constraints(build_attack("textfooler", wrapper, with_vectors))["WordEmbeddingDistance"].min_cos_sim == 0.5
    for without in (resources, replace(resources, neighbors=None, synonyms="wordnet")):
        left = constraints(build_attack("textfooler", wrapper, without))
        assert "WordEmbeddingDistance" not in left
        assert "LeftOut" not in left
        assert "left out" in without.describe("textfooler")["word_distance"]
    assert "left out" not in with_vectors.describe("textfooler")["word_distance"]


def test_a_build_restores_the_recipe_module(wrapper, resources):
    import textattack
    from textattack.attack_recipes import textfooler_jin_2019

    build_attack("textfooler", wrapper, resources)
    assert textfooler_jin_2019.WordSwapEmbedding is textattack.transformations.WordSwapEmbedding


def test_the_vectors_of_one_attack_are_not_kept_for_the_next(wrapper, resources):
    attack = build_attack("textfooler", wrapper, resources)
    encoded = watch_inputs(constraints(attack)["SentenceSimilarity"].model.model, torch.Tensor.tolist)
    attack.attack(*SENTENCES[1])
    first = list(encoded)
    attack.attack(*SENTENCES[1])
    # The batches must be equal: the last bits of a vector may depend on the rest of its batch.
    assert first
    assert encoded == first * 2


def test_attacked_columns_follow_the_recipe_or_the_option(wrapper, resources):
    assert attacked_columns("textfooler", ("premise", "hypothesis")) == ("hypothesis",)
    assert attacked_columns("bae", ("premise", "hypothesis")) == ("premise", "hypothesis")
    for recipe in RECIPES:
        assert attacked_columns(recipe, ("sentence1", "sentence2")) == ("sentence1", "sentence2")
        assert attacked_columns(recipe, ("sentence1", "sentence2"), ["sentence2"]) == ("sentence2",)
    with pytest.raises(AlignAttnError, match="sentence1, sentence2"):
        attacked_columns("bae", ("sentence1", "sentence2"), ["premise"])
    for recipe in RECIPES:
        rule = constraints(build_attack(recipe, wrapper, resources)).get("InputColumnModification")
        found = (tuple(rule.matching_column_labels), frozenset(rule.columns_to_ignore)) if rule else None
        assert found == SPARED_COLUMNS.get(recipe)


@pytest.mark.parametrize("columns", [("premise", "hypothesis"), ("sentence1", "sentence2")])
@pytest.mark.parametrize("chosen", [None, 0, 1])
def test_only_the_named_columns_change(columns, chosen, wrapper, resources):
    from textattack.shared import AttackedText

    names = None if chosen is None else [columns[chosen]]
    attack = build_attack("textfooler", wrapper, resources, names)
    text = AttackedText(OrderedDict(zip(columns, ("awful boring movie", "terrible hopeless mess"), strict=True)))
    _, indices = attack.get_indices_to_order(text)
    allowed = attacked_columns("textfooler", columns, names)
    expected = {i for i in range(6) if columns[i // 3] in allowed}
    assert set(indices) == expected


def test_a_column_that_the_text_lacks_is_an_error(wrapper, resources):
    attack = build_attack("bae", wrapper, resources, ["question"])
    with pytest.raises(AlignAttnError, match=r"--attack_columns question: the text has text"):
        attack.attack("awful boring movie", 0)
