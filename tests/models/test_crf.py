"""Tags by a conditional random field: its sums against those over all sequences, and the models that have one."""

import copy
import itertools

import datasets
import pytest
import torch
import transformers
from autocast import assert_near_under_autocast
from conftest import tiny_batch, tiny_model
from slots_taken import FILLINGS, assert_takes, fill, with_fillings
from transformers import AutoModelForTokenClassification

from alignattn.models import MODELS, capabilities_of
from alignattn.models.build import BuildContext
from alignattn.models.taggers.crf import CRF_FIELD, LinearChainCrf, tagger_with_crf
from alignattn.models.word_model import WordModel
from alignattn.tasks import TokenClassification
from alignattn.tasks.tags.entities import ANY, BIO, is_bio, may_follow, scheme_of
from alignattn.tasks.tags.tagging import IGNORED, TagCollator
from alignattn.tasks.task import TaskOptions

TAGGERS = [name for name in MODELS if capabilities_of(name).has_crf]
LABELS = ("O", "B-X", "I-X", "B-Y", "I-Y")
TASK = TokenClassification(name="own", labels=LABELS)
ROWS = [
    (["Ann", "sees", "New", "York", "."], ["B-X", "O", "B-Y", "I-Y", "O"]),
    (["York"], ["B-Y"]),
    (["ann", "\u3000", "sleeps"], ["O", "O", "O"]),  # the tokenizer returns no token for a blank
]
SMALL = {"embedding_dim": 6, "hidden_dim": 8, "num_attention_heads": 2, "dropout": 0.0}


def crf_of(scheme, labels=LABELS):
    torch.manual_seed(0)
    config = transformers.PreTrainedConfig(id2label=dict(enumerate(labels)), **{CRF_FIELD: scheme})
    crf = LinearChainCrf(config).double().eval()
    for scores in crf.parameters():
        scores.data.normal_()
    return crf


def rows_of(pairs=ROWS):
    return datasets.Dataset.from_dict({"tokens": [row for row, _ in pairs], "ner_tags": [tags for _, tags in pairs]})


def built_of(name, pairs=ROWS, **fields):
    return MODELS.load(name).build(BuildContext(TASK, rows_of(pairs), seed=0, config_fields=SMALL | fields))


def batch_of(tokenizer, pairs=ROWS):
    encoded = TASK.encode(rows_of(pairs), tokenizer, TaskOptions(max_length=64))
    return dict(TagCollator(tokenizer)(list(encoded.remove_columns("words_read"))))


@pytest.mark.parametrize("scheme", [BIO, ANY])
def test_likelihood_path_and_probabilities_equal_those_of_enumeration(scheme):
    crf = crf_of(scheme)
    chain, lengths = crf.chain, [4, 1, 0, 3]
    # A further piece, which begins no word, is before each word.
    words = torch.zeros(4, 9, dtype=torch.bool)
    for row, length in enumerate(lengths):
        words[row, 1 : 1 + 2 * length : 2] = True
    emissions = torch.randn(4, 9, len(LABELS), dtype=torch.float64) * 2
    labels = torch.randint(len(LABELS), (4, 9)).masked_fill(~words, IGNORED)
    output, likelihood = crf(emissions, words, labels), 0.0
    assert (output.tags[~words] == IGNORED).all()
    assert (output.logits[~words] == 0).all()
    for row, length in enumerate(lengths):
        if length == 0:
            continue
        scores = emissions[row][words[row]]
        paths = list(itertools.product(range(len(LABELS)), repeat=length))
        weights = torch.stack(
            [
                chain.start_transitions[path[0]]
                + sum(scores[i, tag] for i, tag in enumerate(path))
                + sum(chain.transitions[pair] for pair in itertools.pairwise(path))
                + chain.end_transitions[path[-1]]
                for path in paths
            ]
        )
        gold = tuple(labels[row][words[row]].tolist())
        likelihood = likelihood + weights.log_softmax(0)[paths.index(gold)]
        legal = torch.tensor([scheme == ANY or is_legal(path) for path in paths])
        among = weights.masked_fill(~legal, -torch.inf)
        assert tuple(output.tags[row][words[row]].tolist()) == paths[int(among.argmax())]
        shares = among.softmax(0)
        expected = torch.stack(
            [
                torch.stack([shares[[path[i] == tag for path in paths]].sum() for tag in range(len(LABELS))])
                for i in range(length)
            ]
        )
        torch.testing.assert_close(output.logits[row][words[row]].softmax(-1), expected)
    torch.testing.assert_close(output.loss, -likelihood / sum(lengths))


def is_legal(path):
    return all(
        may_follow(None if before is None else LABELS[before], LABELS[tag])
        for before, tag in itertools.pairwise([None, *path])
    )


def test_predicted_tags_follow_bio_and_half_precision_is_summed_in_float32():
    crf = crf_of(BIO)
    emissions = torch.randn(64, 7, len(LABELS), dtype=torch.bfloat16)
    emissions[..., [2, 4]] += 1e4
    output = crf.float()(emissions, torch.ones(64, 7, dtype=torch.bool))
    assert all(is_legal(path) for path in output.tags.tolist())
    assert output.logits.dtype == torch.float32
    assert output.logits.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_scores_in_half_precision_are_summed_in_float32_too(dtype):
    """The sum of the tags' own scores was rounded at each of a hundred words."""
    crf, words = crf_of(BIO).to(dtype), torch.ones(4, 100, dtype=torch.bool)
    labels = torch.full((4, 100), LABELS.index("O"))
    emissions = torch.randn(4, 100, len(LABELS), dtype=torch.float32).to(dtype)
    emissions[..., LABELS.index("O")] += 9.3
    expected = copy.deepcopy(crf).float()(emissions.float(), words, labels)
    found = crf(emissions, words, labels)
    torch.testing.assert_close(found.loss, expected.loss)
    torch.testing.assert_close(found.logits, expected.logits)
    assert torch.equal(found.tags, expected.tags)
    found.loss.backward()
    assert all(scores.grad is not None and scores.grad.dtype == dtype for scores in crf.parameters())


@pytest.mark.parametrize(
    ("names", "rows", "scheme", "told"),
    [
        (("O", "B-X", "I-X"), [["B-X", "I-X", "O"], ["O"]], BIO, None),
        (("O", "B-X", "I-X"), [["B-X", "I-X", "O"], ["O", "I-X"]], BIO, "in 1 training row"),
        (("O", "B-X", "I-X"), [["I-X", "B-X", "O"], ["O", "I-X"], ["I-X"]], ANY, "IOB1"),
        (("O", "B", "I"), [["B", "I"]], BIO, None),
        (("O", "I-X"), [["I-X"]], ANY, None),
        (("O", "B-X", "I-X", "E-X", "S-X"), [["I-X"]], ANY, None),
        (("NN", "VB"), [["NN"]], ANY, None),
    ],
)
def test_the_scheme_is_inferred_from_the_tags_and_violations_are_reported(names, rows, scheme, told):
    found = scheme_of(names, rows)
    assert found.name == scheme
    assert (found.remark is None) == (told is None)
    assert (told or "") in (found.remark or "")
    assert is_bio(names) or scheme == ANY


@pytest.mark.parametrize(("name", "filling"), with_fillings(TAGGERS))
def test_autocast_trains_near_full_precision(name, filling):
    built = built_of(name)
    assert_near_under_autocast(fill(built.model, filling), batch_of(built.tokenizer))


@pytest.mark.parametrize(("name", "filling"), with_fillings(TAGGERS))
def test_padding_on_either_side_changes_nothing(name, filling):
    built = built_of(name)
    model, tokenizer = fill(built.model.double(), filling), built.tokenizer
    whole = model(**batch_of(tokenizer))
    tokenizer.padding_side = "left"
    left = model(**batch_of(tokenizer))
    torch.testing.assert_close(left.loss, whole.loss)
    for row, pair in enumerate(ROWS):
        alone = model(**batch_of(tokenizer, [pair]))
        length = alone.tags.shape[1]
        for output, place in ((whole, slice(length)), (left, slice(-length, None))):
            torch.testing.assert_close(output.logits[row, place], alone.logits[0])
            assert torch.equal(output.tags[row, place], alone.tags[0])
    # Without word_starts every real token is a word, as in this batch; an empty text has finite logits.
    batch = batch_of(tokenizer)
    assert torch.equal(model(batch["input_ids"], batch["attention_mask"]).tags, left.tags)
    assert model(torch.zeros(1, 3, dtype=torch.long)).logits.isfinite().all()


@pytest.mark.parametrize("name", TAGGERS)
def test_learns_by_heart_with_a_gradient_for_every_parameter(name):
    generator = torch.Generator().manual_seed(0)
    words = [f"w{number}" for number in range(20)]
    pairs = []
    for _ in range(32):
        tokens = [words[number] for number in torch.randint(20, (6,), generator=generator)]
        tags = ["B-X" if token < "w15" else "O" for token in tokens]
        pairs.append(
            (tokens, ["I-X" if i and tags[i - 1 : i + 1] == ["B-X"] * 2 else tag for i, tag in enumerate(tags)])
        )
    built = built_of(name, pairs, hidden_dim=16, embedding_dim=16)
    model, batch = built.model.train(), batch_of(built.tokenizer, pairs)
    model(**batch).loss.backward()
    for path, parameter in model.named_parameters():
        # A bias of the keys shifts all scores of a query equally, which softmax ignores.
        assert parameter.grad.abs().max() > 0 or path.endswith("key_projection.bias"), path
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(40):
        optimizer.zero_grad()
        model(**batch).loss.backward()
        optimizer.step()
    assert (model.eval()(**batch).tags == batch["labels"]).float().mean() > 0.95


@pytest.mark.parametrize("filling", FILLINGS, ids=str)
@pytest.mark.parametrize("name", TAGGERS)
def test_supports_every_slot_saves_and_loads(name, filling, tmp_path):
    assert filling.slot in capabilities_of(name).slots
    built = built_of(name)
    batch = batch_of(built.tokenizer)
    model, loaded = assert_takes(filling, built.model, batch, AutoModelForTokenClassification, tmp_path)
    assert torch.equal(loaded(**batch).tags, model(**batch).tags)


def test_words_keep_their_case_and_the_config_has_the_scheme():
    built = built_of(TAGGERS[0])
    assert {"Ann", "ann", "New", "."} <= built.tokenizer.get_vocab().keys()
    assert built.model.config.crf_tags == BIO
    assert isinstance(built.model, WordModel)


def test_a_pretrained_tagger_scores_the_first_piece_of_each_word():
    plain = tiny_model("bert", id2label=dict(enumerate(LABELS)), label2id={})
    config = plain.config
    tagger = transformers.BertForTokenClassification(config).eval()
    setattr(config, CRF_FIELD, BIO)
    model = tagger_with_crf(config)(config).eval()
    model.load_state_dict(tagger.state_dict(), strict=False)
    batch = {name: values for name, values in tiny_batch().items() if name != "labels"}
    starts = torch.zeros_like(batch["input_ids"])
    starts[:, 1:5:2] = 1
    labels = torch.ones_like(starts).masked_fill(starts == 0, IGNORED)
    output = model(**batch, word_starts=starts, labels=labels)
    expected = model.crf(tagger(**batch).logits, starts.bool(), labels)
    torch.testing.assert_close(output.loss, expected.loss)
    assert torch.equal(output.tags, expected.tags)
    # Labels alone also mark the first pieces.
    assert torch.equal(model(**batch, labels=labels).tags, output.tags)


@pytest.mark.parametrize("family", ["bert", "deberta-v3"])
def test_a_pretrained_tagger_binds_its_inputs_as_without_a_crf(family):
    config = tiny_model(family, id2label=dict(enumerate(LABELS)), label2id={}).config
    setattr(config, CRF_FIELD, BIO)
    model = tagger_with_crf(config)(config).eval()
    ids, mask = (tiny_batch()[name] for name in ("input_ids", "attention_mask"))
    labels = torch.ones_like(ids).masked_fill(mask == 0, IGNORED)
    expected = model(input_ids=ids, attention_mask=mask, labels=labels)
    assert torch.equal(model(ids, mask, labels=labels).logits, expected.logits)
    embedded = model.get_input_embeddings()(ids)
    torch.testing.assert_close(model(inputs_embeds=embedded, attention_mask=mask).logits, expected.logits)
    assert model(inputs_embeds=embedded).logits.shape == expected.logits.shape
    as_tuple = model(ids, mask, labels=labels, return_dict=False)
    for found, named in zip(as_tuple, expected.to_tuple(), strict=True):
        assert torch.equal(found, named)
    assert torch.equal(model(ids, mask, None, None, None, labels).loss, expected.loss)
    with pytest.raises(TypeError, match="attention_mask"):
        model(ids, mask, attention_mask=mask)
