"""Captions of pictures, from files to generated texts."""

import json

import pytest
import torch
from autocast import assert_near_under_autocast
from PIL import Image
from slots_taken import STEP_BY_STEP
from transformers import AutoModelForImageTextToText

import alignattn
from alignattn.cli import main
from alignattn.commands.figure import FigureOptions, make_figure
from alignattn.finetuning.options import ModelOptions
from alignattn.models import MODELS
from alignattn.models.build import build_model
from alignattn.tasks.definitions import TASKS

COLOURS = {"red": (255, 0, 0), "blue": (0, 0, 255), "green": (0, 255, 0)}
TASK = """kind: image-to-text
image_size: 16
sources: {files: {train: rows.jsonl, validation: rows.jsonl}}
"""
SMALL = {"vocab_size": 8, "target_vocab_size": 8, "embedding_dim": 8, "hidden_dim": 8, "conv_channels": [8]}


SLOTS_TAKEN = (
    *(filling.arguments for filling in STEP_BY_STEP),
    {"score": "additive", "normalizer": "csoftmax", "value": "qvi", "normalizer_options": {"fertility": 0.5}},
)


@pytest.fixture
def task_file(tmp_path):
    rows = []
    for name, colour in COLOURS.items():
        path = tmp_path / f"{name}.png"
        # On white, because the normalisation of groups of channels removes a uniform colour.
        picture = Image.new("RGB", (16, 16), "white")
        picture.paste(colour, (4, 4, 12, 12))
        picture.save(path)
        # A table's paths are relative to its folder, which is not the current one.
        rows.append({"image": path.name, "caption": f"all of it is {name}"})
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows * 4))
    path = tmp_path / "own.yaml"
    path.write_text(TASK)
    return path


def make_model(**fields):
    return build_model(MODELS.load("captioner"), SMALL | {"dropout": 0.0} | fields, seed=0)


def finetune(task_file, folder):
    return main(
        f"finetune --task {task_file} --model captioner --output_dir {folder} --use_cpu true --disable_tqdm true "
        f"--num_train_epochs 50 --per_device_train_batch_size 12 --learning_rate 0.02 --lr_scheduler_type constant "
        "--eval_strategy no --save_strategy no "
        "--model_config embedding_dim=16 hidden_dim=16 conv_channels=[16] dropout=0".split()
    )


def test_a_run_learns_predicts_and_draws_captions(task_file, tmp_path):
    run = tmp_path / "run"
    assert finetune(task_file, run) == 0
    assert json.loads((run / "results.json").read_text())["metrics"]["validation"]["exact"] == 1
    (found,) = alignattn.load_run(run).predict([str(tmp_path / "blue.png")])
    assert found["prediction"] == "all of it is blue"
    image = str(tmp_path / "red.png")
    drawn = make_figure(
        FigureOptions(kind="attention", run=(str(run),), output_file=str(tmp_path / "drawn.png"), text=(image,))
    )
    words = [label.get_text() for label in drawn.axes[0].get_yticklabels()]
    assert words[:-1] == ["all", "of", "it", "is", "red"]
    cells = drawn.axes[0].images[0].get_array()
    assert cells.shape == (len(words), 8 * 8)
    assert cells.sum(axis=1).tolist() == pytest.approx([1] * len(words), rel=1e-5)


def test_cells_are_counted_row_by_row_from_the_upper_left():
    model, image = make_model(conv_channels=[8, 8]), torch.zeros(1, 3, 16, 16)
    plain = model.read_image(image).tokens
    for row, column in ((0, 1), (1, 0)):
        changed = image.clone()
        changed[..., 8 * row : 8 * row + 8, 8 * column : 8 * column + 8] = torch.rand(3, 8, 8)
        # A norm over groups of channels changes all cells a little.
        differences = (model.read_image(changed).tokens - plain)[0].norm(dim=-1).view(2, 2, 2, 2).sum(dim=(1, 3))
        assert differences.argmax() == 2 * row + column, differences


@pytest.mark.parametrize("fields", [{}, {"hard_attention": True}, {"attends_first": True}], ids=str)
def test_every_parameter_gets_a_gradient_and_a_saved_model_generates_the_same(fields, tmp_path):
    model = make_model(**fields).train()
    batch = {"image": torch.rand(3, 3, 16, 16), "labels": torch.tensor([[4, 5, 3], [6, 3, -100], [7, 7, 3]])}
    model(**batch).loss.backward()
    for path, parameter in model.named_parameters():
        # A bias of keys shifts all scores of a query alike, which does not change their softmax.
        assert parameter.grad.abs().max() > 0 or path.endswith("key_projection.bias"), path
    model.eval().save_pretrained(tmp_path)
    loaded = AutoModelForImageTextToText.from_pretrained(tmp_path)
    for one, other in zip(loaded.generate(batch["image"]), model.generate(batch["image"]), strict=True):
        torch.testing.assert_close(one, other)
    alone = model.generate(batch["image"][1:2])
    assert alone[1].item() == pytest.approx(model.generate(batch["image"])[1][1].item(), rel=1e-5)


@pytest.mark.parametrize("hard_attention", [False, True])
def test_the_loss_of_captions_of_unequal_length_is_the_mean_of_their_losses(hard_attention):
    model = make_model(hard_attention=hard_attention).double().eval()
    images = torch.rand(3, 3, 16, 16, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    captions = [[4, 5, 6, 3], [6, 3], [7, 7, 3]]
    labels = torch.tensor([caption + [-100] * (4 - len(caption)) for caption in captions])
    alone = [
        model(image[None], labels=torch.tensor([caption])).loss for image, caption in zip(images, captions, strict=True)
    ]
    torch.testing.assert_close(model(images, labels=labels).loss, torch.stack(alone).mean())


@pytest.mark.parametrize("choices", [{}, *SLOTS_TAKEN], ids=str)
def test_autocast_trains_near_full_precision(choices):
    model = make_model()
    batch = {"image": torch.rand(3, 3, 16, 16), "labels": torch.tensor([[4, 5, 3], [6, 3, -100], [7, 7, 3]])}
    assert_near_under_autocast(alignattn.patch(model, "soft", **choices) if choices else model, batch)


@pytest.mark.parametrize("choices", SLOTS_TAKEN, ids=str)
def test_the_captioner_accepts_the_slots_it_declares(choices, tmp_path):
    model, image = make_model(), torch.rand(3, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    labels = torch.tensor([[4, 5, 3], [6, 3, -100], [7, 7, 3]])
    plain = model(image, labels=labels).logits
    alignattn.patch(model, "soft", **choices)
    model.train()(image, labels=labels).loss.backward()
    own = [parameter for path, parameter in model.named_parameters() if "alignattn" in path]
    assert all(parameter.grad is not None for parameter in own)
    assert bool(own) == ("score" in choices or "value" in choices)
    expected = model.eval()(image, labels=labels).logits
    assert not torch.allclose(expected, plain)
    model.save_pretrained(tmp_path)
    loaded = alignattn.from_pretrained(tmp_path, AutoModelForImageTextToText)
    torch.testing.assert_close(loaded(image, labels=labels).logits, expected)
    assert torch.equal(loaded.generate(image)[0], model.generate(image)[0])


def test_the_captioner_refuses_an_alignment():
    with pytest.raises(alignattn.AlignAttnError, match="one query at a time"):
        ModelOptions(model="captioner", alignment="gan").check(TASKS["easyvqacaptions"])


def test_bad_rows_and_wrong_models_are_refused(task_file, tmp_path, capsys):
    rows = (tmp_path / "rows.jsonl").read_text()
    for line, said in (
        ({"image": "none.png", "caption": "a"}, f"there is no image {tmp_path / 'none.png'}"),
        ({"image": str(task_file), "caption": "a"}, "cannot be read"),
        ({"image": str(tmp_path / "red.png"), "caption": " "}, "'caption' is empty"),
    ):
        (tmp_path / "rows.jsonl").write_text(rows + json.dumps(line) + "\n")
        assert finetune(task_file, tmp_path / "run") == 2
        (told,) = capsys.readouterr().err.strip().splitlines()
        assert said in told
    for model in ("seq2seq-lstm", "mcan"):
        with pytest.raises(alignattn.AlignAttnError, match="is image-to-text"):
            ModelOptions(model=model).check(TASKS["easyvqacaptions"])


def test_easy_vqa_has_a_caption_of_each_picture_that_its_questions_fully_describe():
    task = TASKS["easyvqacaptions"]
    counts = {}
    for split in ("train", "test"):
        rows, _ = task.read_split(split, None, None)
        counts[split] = len(rows)
        shapes = {tuple(text.split())[2] for text in rows["caption"][:]}
        assert len({tuple(text.split())[1] for text in rows["caption"][:]}) == 8
        assert shapes == {"circle", "rectangle", "triangle"}
    assert counts == {"train": 3181, "test": 791}
