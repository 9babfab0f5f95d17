"""The bibliography and the citations of the registries."""

from alignattn.attention.choices import SLOTS
from alignattn.models import MODELS
from alignattn.utils.registry import references


def test_the_bibliography_holds_what_is_cited():
    entries = [entry for registry in (*SLOTS.values(), MODELS) for entry in registry.values()]
    assert {entry.work for entry in entries} - {None} == set(references())


def test_a_citation_has_authors_title_venue_and_place():
    assert SLOTS["normalizer"]["sparsemax"].citation == (
        'Martins & Astudillo 2016, "From Softmax to Sparsemax: A Sparse Model of Attention and Multi-Label '
        'Classification", International Conference on Machine Learning, eq. 2'
    )
    assert str(references()["chen2017enhanced"]).startswith('Chen et al. 2017, "Enhanced LSTM for Natural')
