import json
import re
from pathlib import Path

import pytest
import torch
import transformers
from conftest import ALIGNED, FAMILIES, chosen, crossed, tiny_batch, tiny_model
from safetensors import safe_open
from transformers import AutoModel, AutoModelForSequenceClassification

import alignattn
from alignattn.patching import alignment_parameters
from alignattn.utils.errors import AlignAttnError

TRASTUZUMAB = (
    "EVQLVESGGGLVQPGGSLRLSCAASGFNIKDTYIHWVRQAPGKGLEWVARIYPTNGYTRY"
    "ADSVKGRFTISADTSKNTAYLQMNSLRAEDTAVYYCSRWGGDGFYAMDYWGQGTLVTVSS"
)
ADALIMUMAB = (
    "EVQLVESGGGLVQPGRSLRLSCAASGFTFDDYAMHWVRQAPGKGLEWVSAITWNSGHIDY"
    "ADSVEGRFTISRDNAKNSLYLQMNSLRAEDTAVYYCAKVSYLSTASSLDYWGQGTLVTVSS"
)
REACTIONS = (
    "CC(=O)Cl.NCc1ccccc1>>CC(=O)NCc1ccccc1",
    "CC(C)S.CN(C)C=O.Fc1cccnc1F.O=C([O-])[O-].[K+].[K+]>>CC(C)Sc1ncccc1F",
    "OB(O)c1ccccc1.Brc1ccncc1>>c1ccc(-c2ccncc2)cc1",
    "CCO.CC(=O)O>>CCOC(C)=O",
)
AMINO_ACIDS = "ACDEFGHIKLMNPQRSTVWY"
SMILES_PATTERN = r"\[[^\]]+\]|Br|Cl|>>|%\d\d|[A-Za-z0-9@?>*$=#+\-().:~/\\]"


def logits_of(model, batch):
    with torch.no_grad():
        return model(**batch).logits


def assert_same_function(loaded, model):
    """Assert bitwise equal weights; their place in memory, and so the last bits of a product, may differ."""
    weights = loaded.state_dict()
    for name, tensor in model.state_dict().items():
        assert torch.equal(weights[name], tensor), name
    torch.testing.assert_close(logits_of(loaded, tiny_batch()), logits_of(model, tiny_batch()))


def moved_slots(model):
    """Move the slots' parameters away from the initial values of a patch, and return copies of them."""
    with torch.no_grad():
        for index, parameter in enumerate(alignment_parameters(model)):
            parameter.add_(index + 1)
    return [parameter.clone() for parameter in alignment_parameters(model)]


@pytest.mark.parametrize(("family", "variant"), crossed(FAMILIES, ALIGNED))
def test_save_and_load_gives_equal_logits_losses_and_slots(family, variant, tmp_path):
    model = alignattn.patch(tiny_model(family), variant, alignment_weight=0.3)
    slots = moved_slots(model)
    with torch.no_grad(), alignattn.collect(model) as seen:
        model(**tiny_batch())
    model.save_pretrained(tmp_path)

    loaded = alignattn.from_pretrained(tmp_path, AutoModelForSequenceClassification)
    assert loaded.alignattn.config == model.alignattn.config
    assert_same_function(loaded, model)
    for before, after in zip(slots, alignment_parameters(loaded), strict=True):
        assert torch.equal(before, after)
    with torch.no_grad(), alignattn.collect(loaded) as seen_again:
        loaded(**tiny_batch())
    torch.testing.assert_close(seen_again.losses(), seen.losses())


def test_sharded_checkpoints(tmp_path):
    model = alignattn.patch(tiny_model("bert"), "aa-ct")
    slots = moved_slots(model)
    model.save_pretrained(tmp_path, max_shard_size="20KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    loaded = alignattn.from_pretrained(tmp_path, AutoModelForSequenceClassification)
    assert all(map(torch.equal, slots, alignment_parameters(loaded)))


def test_an_encoder_loads_from_the_checkpoint_of_a_classifier(tmp_path):
    model = alignattn.patch(tiny_model("bert"), "aa-ct")
    slots = moved_slots(model)
    model.save_pretrained(tmp_path)
    encoder = alignattn.from_pretrained(tmp_path, AutoModel)
    assert all(map(torch.equal, slots, alignment_parameters(encoder)))


@pytest.mark.parametrize("loader", [transformers.ViTForImageClassification, AutoModel])
def test_a_model_is_loaded_that_transformers_saves_under_the_names_of_its_first_checkpoints(loader, tmp_path):
    config = transformers.ViTConfig(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, image_size=16, patch_size=4
    )
    model = alignattn.patch(transformers.ViTForImageClassification(config), "qvi")
    moved_slots(model)
    model.save_pretrained(tmp_path)
    with safe_open(tmp_path / "model.safetensors", "pt") as weights:
        assert model.state_dict().keys() != set(weights.keys())
    loaded = alignattn.from_pretrained(tmp_path, loader)
    expected = model if loader is not AutoModel else model.vit
    for name, tensor in expected.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], tensor), name


def test_a_plain_checkpoint_loads_plain(tmp_path):
    model = tiny_model("bert")
    model.save_pretrained(tmp_path)
    loaded = alignattn.from_pretrained(tmp_path, AutoModelForSequenceClassification)
    assert not alignattn.is_patched(loaded)
    assert_same_function(loaded, model)


def test_an_unpatched_model_saves_as_a_plain_one(tmp_path):
    alignattn.unpatch(alignattn.patch(tiny_model("bert"), "aa-ct")).save_pretrained(tmp_path)
    assert "alignattn" not in (tmp_path / "config.json").read_text()
    assert not alignattn.is_patched(alignattn.from_pretrained(tmp_path, AutoModelForSequenceClassification))


def test_one_line_reports_that_a_folder_has_no_patch(tmp_path, caplog):
    model = tiny_model("bert")
    model.save_pretrained(tmp_path / "plain")
    alignattn.patch(model, "aa-ct").save_pretrained(tmp_path / "patched")
    for name, said in (("plain", 1), ("patched", 0)):
        caplog.clear()
        alignattn.from_pretrained(tmp_path / name, AutoModelForSequenceClassification)
        lines = [record.getMessage() for record in caplog.records if "names no patch" in record.getMessage()]
        assert len(lines) == said
        assert all("this is the plain model" in line and "\n" not in line for line in lines)


def test_the_first_example_loads_a_packaged_model_without_that_line(caplog):
    alignattn.from_pretrained("minilm", AutoModelForSequenceClassification)
    assert "names no patch" not in caplog.text


@pytest.fixture
def transformers_warns(caplog):
    """Let the warnings of transformers reach `caplog`."""
    verbosity = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_warning()
    transformers.logging.enable_propagation()
    yield caplog
    transformers.logging.disable_propagation()
    transformers.logging.set_verbosity(verbosity)


def test_loading_reports_nothing_about_the_slots(tmp_path, transformers_warns):
    alignattn.patch(tiny_model("bert"), "aa-ct").save_pretrained(tmp_path)
    AutoModelForSequenceClassification.from_pretrained(tmp_path)
    assert "alignattn" in transformers_warns.text
    transformers_warns.clear()
    alignattn.from_pretrained(tmp_path, AutoModelForSequenceClassification)
    assert "alignattn" not in transformers_warns.text


def test_a_checkpoint_without_its_slots_is_refused(tmp_path):
    model = alignattn.patch(tiny_model("bert"), "aa-ct")
    model.save_pretrained(tmp_path)
    AutoModelForSequenceClassification.from_pretrained(tmp_path).save_pretrained(tmp_path)
    assert "alignattn" in json.loads((tmp_path / "config.json").read_text())
    with pytest.raises(AlignAttnError, match="does not hold the parameters"):
        alignattn.from_pretrained(tmp_path, AutoModelForSequenceClassification)


@pytest.mark.parametrize("path", ["no/such/model", "nowhere-model"])
def test_an_unknown_path_is_refused_in_one_line(path):
    with pytest.raises(AlignAttnError, match="cannot load the model") as caught:
        alignattn.from_pretrained(path, AutoModelForSequenceClassification)
    assert "\n" not in str(caught.value)


def count_right(model, sequences, mask_id):
    """Mask each inner token in turn and count correct predictions; the closest logits are 0.1 apart."""
    right = total = 0
    for ids in sequences:
        rows = torch.tensor(ids).repeat(len(ids) - 2, 1)
        positions = torch.arange(1, len(ids) - 1)
        rows[positions - 1, positions] = mask_id
        with torch.no_grad():
            named = model(input_ids=rows).logits[positions - 1, positions].argmax(dim=-1)
        right += int((named == torch.tensor(ids[1:-1])).sum())
        total += len(ids) - 2
    return right, total


def antibody_ids():
    letters = {letter: index + 4 for index, letter in enumerate(AMINO_ACIDS)}
    return [[0, *(letters[letter] for letter in chain), 2] for chain in (TRASTUZUMAB, ADALIMUMAB)]


def reaction_ids(vocabulary: Path):
    ids = {token: index for index, token in enumerate(vocabulary.read_text().splitlines())}
    return [
        [ids["[CLS]"], *(ids.get(token, ids["[UNK]"]) for token in re.findall(SMILES_PATTERN, reaction)), ids["[SEP]"]]
        for reaction in REACTIONS
    ], ids["[MASK]"]


@pytest.mark.parametrize("variant", chosen([*ALIGNED, "qvi"], "qvi"))
def test_real_roberta_predicts_as_many_residues_as_before(shared_checkpoints, variant, tmp_path):
    model = transformers.RobertaForMaskedLM.from_pretrained(shared_checkpoints / "roberta-sapiens-vh").eval()
    assert count_right(model, antibody_ids(), mask_id=24) == (197, 241)
    alignattn.patch(model, variant)
    assert count_right(model, antibody_ids(), mask_id=24) == (197, 241)
    model.save_pretrained(tmp_path)
    loaded = alignattn.from_pretrained(tmp_path, transformers.RobertaForMaskedLM)
    assert count_right(loaded, antibody_ids(), mask_id=24) == (197, 241)


@pytest.mark.parametrize("variant", chosen([*ALIGNED, "qvi"], "aa-ct"))
def test_real_albert_predicts_as_many_tokens_as_before(shared_checkpoints, variant):
    folder = shared_checkpoints / "albert-rxnmapper"
    model = transformers.AlbertForMaskedLM.from_pretrained(folder).eval()
    sequences, mask_id = reaction_ids(folder / "vocab.txt")
    assert count_right(model, sequences, mask_id) == (146, 153)
    alignattn.patch(model, variant)
    assert count_right(model, sequences, mask_id) == (146, 153)


@pytest.mark.parametrize("variant", ALIGNED)
def test_minilm_embeds_sentences_as_before(minilm, variant):
    tokenizer = transformers.AutoTokenizer.from_pretrained(minilm)
    model = AutoModel.from_pretrained(minilm).eval()
    batch = tokenizer(
        ["A man plays a guitar.", "Someone makes music on an instrument in the park."],
        padding=True,
        return_tensors="pt",
    )
    with torch.no_grad():
        expected = model(**batch).last_hidden_state
        alignattn.patch(model, variant)
        assert torch.equal(model(**batch).last_hidden_state, expected)
