"""Images end to end: rows from folders, tables and data sets, a small ViT with random weights, and its predictions."""

import json
import shutil
from pathlib import Path

import datasets
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import transformers
from PIL import Image, ImageDraw, ImageOps, ImageSequence
from sklearn.datasets import load_digits
from transformers.image_utils import load_image

import alignattn
from alignattn.cli import main
from alignattn.finetuning.hub import stage
from alignattn.patching.checkpoints import load_image_processor
from alignattn.tasks import ImageClassification, Sources
from alignattn.tasks.definitions import get_task
from alignattn.tasks.pictures import open_picture, picture_problem
from alignattn.tasks.rows import load_rows, load_task_files, load_user_rows
from alignattn.tasks.task import EncodedSplit, TaskOptions
from alignattn.utils.errors import AlignAttnError

SIDE = 8
VIT = {"image_size": SIDE, "patch_size": 2, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
VIT["intermediate_size"] = 64
TRAINING = "--use_cpu true --disable_tqdm true --save_strategy no --learning_rate 3e-3 --per_device_train_batch_size 32"
TRAIN_ROWS, VALIDATION_ROWS = 640, 160
WELL_ABOVE_CHANCE = 0.3
"""Accuracy on ten classes. Chance reaches it on 160 rows with a probability below 1e-10; the lowest seen is 0.4875."""


def save_model(config, folder):
    """Save a model with random weights and its image processor."""
    torch.manual_seed(0)
    transformers.AutoModelForImageClassification.from_config(config).save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(
        json.dumps({"image_processor_type": "ViTImageProcessor", "size": {"height": SIDE, "width": SIDE}})
    )
    return folder


def digits(count, first=0):
    pixels, labels = load_digits(return_X_y=True)
    chosen = slice(first, first + count)
    return (pixels[chosen].reshape(-1, SIDE, SIDE) * 15.9).astype(np.uint8), labels[chosen]


def write_digits(folder, count, first=0):
    for number, (pixels, label) in enumerate(zip(*digits(count, first), strict=True)):
        place = folder / str(label)
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(place / f"{number:03}.png")
    return folder


@pytest.fixture(scope="module")
def vit(tmp_path_factory):
    return save_model(transformers.ViTConfig(**VIT), tmp_path_factory.mktemp("models") / "vit")


@pytest.fixture(scope="module")
def run(vit, tmp_path_factory):
    """A run on folders of digits, and the folder of its rows."""
    rows = tmp_path_factory.mktemp("rows")
    write_digits(rows / "train", TRAIN_ROWS)
    write_digits(rows / "validation", VALIDATION_ROWS, TRAIN_ROWS)
    files = f"--train_file {rows / 'train'} --validation_file {rows / 'validation'}"
    words = f"finetune --model {vit} {files} --attention aa-ct --num_train_epochs 8 --eval_strategy no {TRAINING}"
    assert main([*words.split(), "--output_dir", str(rows / "run")]) == 0
    return rows / "run", rows


@pytest.fixture
def task():
    return ImageClassification(name="pets", labels=("cat", "dog"), metrics=("accuracy",))


def result_of(folder):
    return json.loads((folder / "results.json").read_text())


def test_a_vit_learns_digits_of_class_folders(run):
    folder, _ = run
    result = result_of(folder)
    assert result["labels"] == [str(number) for number in range(10)]
    assert (result["train_rows"], result["evaluation_rows"]) == (TRAIN_ROWS, {"validation": VALIDATION_ROWS})
    assert result["metrics"]["validation"]["accuracy"] > WELL_ABOVE_CHANCE
    assert result["training"]["align_loss"] > 0
    card = (folder / "README.md").read_text()
    assert "pipeline_tag: image-classification" in card
    assert "AutoImageProcessor" in card
    assert "AutoTokenizer" not in card


def test_the_pushed_files_predict_as_the_run_does(run, tmp_path):
    folder, rows = run
    picture = str(next((rows / "validation").rglob("*.png")))
    pushed, kept = (
        transformers.pipeline("image-classification", model=str(place))(picture)
        for place in (stage(folder, tmp_path / "staged"), folder)
    )
    assert pushed == kept


def test_a_finished_run_keeps_no_checkpoint(vit, tmp_path):
    saving = TRAINING.replace("--save_strategy no", "--save_strategy steps --save_steps 1")
    words = f"finetune --model {vit} --task digits --attention aa-ct --max_steps 1 --max_train_samples 32 {saving}"
    assert main([*words.split(), "--output_dir", str(tmp_path / "run")]) == 0
    assert not list((tmp_path / "run").glob("checkpoint-*"))


def test_the_model_of_one_data_set_is_evaluated_on_another(run, vit, tmp_path):
    _, rows = run
    for name in ("one", "two"):
        task = {"kind": "image-classification", "labels": [str(number) for number in range(10)]}
        files = {"train": str(rows / "validation"), "validation": str(rows / "validation")}
        task |= {"metrics": ["accuracy"], "sources": {"files": files}}
        (tmp_path / f"{name}.yaml").write_text(json.dumps(task))
    words = f"domain-shift --pair {tmp_path}/one.yaml-{tmp_path}/two.yaml --model {vit} --max_steps 1 {TRAINING}"
    assert main([*words.split(), "--output_dir", str(tmp_path / "out")]) == 0
    assert {side["held_out_rows"] for side in result_of(tmp_path / "out")["sides"].values()} == {VALIDATION_ROWS // 2}


def test_predictions_are_those_of_the_evaluation_and_of_a_pipeline_of_transformers(run):
    folder, rows = run
    files = sorted((rows / "validation").glob("*/*.png"))
    evaluated = pq.read_table(folder / "predictions.parquet").to_pylist()
    predicted = alignattn.load_run(folder).predict([str(file) for file in files])
    assert [row["prediction"] for row in predicted] == [str(row["prediction"]) for row in evaluated]
    first = Image.open(files[0])
    assert alignattn.load_run(folder).predict([{"image": first}])[0]["prediction"] == predicted[0]["prediction"]
    pipeline = transformers.pipeline("image-classification", str(folder))
    for file, row in zip(files[:5], predicted, strict=False):
        (best,) = pipeline(str(file), top_k=1)
        assert best["label"] == row["prediction"]
        assert best["score"] == pytest.approx(row["probability"], abs=1e-5)


def probabilities(predictor, *images):
    rows = predictor.predict([{"image": image} for image in images])
    return np.array([[one["probability"] for one in sorted(row["probabilities"], key=str)] for row in rows])


def as_files(folder, *pictures):
    """Save pictures without EXIF data; return their paths."""
    paths = [folder / f"saved-{number}.png" for number in range(len(pictures))]
    for picture, path in zip(pictures, paths, strict=True):
        Image.fromarray(np.asarray(picture)).save(path)
    return paths


@pytest.fixture
def colours():
    return Image.fromarray(np.random.default_rng(0).integers(0, 256, (8, 9, 3), dtype=np.uint8))


def check_predicted_as(predictor, folder, images, saved):
    """Compare predictions of images in memory with those of files, which are written from other pictures."""
    files = probabilities(predictor, *as_files(folder, *saved))
    assert np.array_equal(probabilities(predictor, *images), files)
    assert len(np.unique(files, axis=0)) == len(files)


def test_a_picture_is_predicted_by_its_pixels_in_memory(run, tmp_path, colours):
    predictor = alignattn.load_run(run[0])
    colours.save(tmp_path / "first.png")
    drawn, pasted, gone = (Image.open(tmp_path / "first.png") for _ in range(3))
    gone.load()
    (tmp_path / "first.png").rename(tmp_path / "second.png")
    expected = np.asarray(colours).copy()
    expected[:4, :5] = 255, 0, 0
    ImageDraw.Draw(drawn).rectangle((0, 0, 4, 3), fill="red")
    pasted.paste(Image.new("RGB", (9, 4), "blue"), (0, 0))
    blue = np.asarray(colours).copy()
    blue[:4] = 0, 0, 255
    check_predicted_as(predictor, tmp_path, [drawn, pasted, gone], [expected, blue, colours])
    mixed = [colours, tmp_path / "second.png", str(tmp_path / "second.png"), (tmp_path / "second.png").read_bytes()]
    assert len(np.unique(probabilities(predictor, *mixed), axis=0)) == 1


def test_every_frame_of_an_animation_is_predicted(run, tmp_path):
    pixels, _ = digits(3)
    frames = [Image.fromarray(one) for one in pixels]
    frames[0].save(tmp_path / "all.gif", save_all=True, append_images=frames[1:])
    with Image.open(tmp_path / "all.gif") as animation:
        predicted = [probabilities(alignattn.load_run(run[0]), one)[0] for one in ImageSequence.Iterator(animation)]
    expected = probabilities(alignattn.load_run(run[0]), *as_files(tmp_path, *frames))
    np.testing.assert_allclose(predicted, expected, rtol=1e-5)


def test_a_picture_in_memory_is_turned_by_its_exif_data(run, tmp_path, colours):
    predictor, exif = alignattn.load_run(run[0]), Image.Exif()
    exif[0x0112] = 6
    colours.save(tmp_path / "photo.png", exif=exif)
    photo = Image.open(tmp_path / "photo.png")
    turned = [photo, photo.convert("RGB"), photo.copy(), ImageOps.exif_transpose(photo)]
    expected = probabilities(predictor, *as_files(tmp_path, colours.transpose(Image.Transpose.ROTATE_270)))
    np.testing.assert_allclose(probabilities(predictor, *turned), np.repeat(expected, 4, axis=0), rtol=1e-5)


def test_pictures_of_all_modes_of_pillow_are_predicted(run, tmp_path, colours):
    predictor = alignattn.load_run(run[0])
    pictures = {mode: colours.convert(mode) for mode in Image.MODES if mode != "La"}
    converted = {mode: picture.convert("RGB") for mode, picture in pictures.items()}
    pictures["La"], converted["La"] = colours.convert("LA").convert("La"), colours.convert("L")
    expected = probabilities(predictor, *as_files(tmp_path, *converted.values()))
    assert np.array_equal(probabilities(predictor, *pictures.values()), expected)


def test_an_image_that_cannot_be_used_is_refused_with_its_row(run, tmp_path, colours):
    predictor = alignattn.load_run(run[0])
    colours.save(tmp_path / "closed.png")
    with Image.open(tmp_path / "closed.png") as closed:
        pass
    for image, reason in ((closed, "closed"), (5, "no image is named"), (Image.new("F", (8, 8), 0.5), "fractions")):
        with pytest.raises(AlignAttnError, match=rf"row 2: .*{reason}"):
            predictor.predict([{"image": colours}, {"image": image}])


@pytest.mark.parametrize("fields", [{}, {"image_mean": [0.5], "image_std": [0.5]}, {"do_convert_rgb": True}])
def test_a_model_of_grey_images_reads_grey_images(fields, tmp_path, colours):
    folder = save_model(transformers.ViTConfig(**VIT, num_channels=1), tmp_path / "grey")
    settings = json.loads((folder / "preprocessor_config.json").read_text())
    (folder / "preprocessor_config.json").write_text(json.dumps(settings | fields))
    words = f"finetune --model {folder} --task digits --max_steps 1 --max_train_samples 32 --max_eval_samples 20"
    assert main(f"{words} {TRAINING} --output_dir {tmp_path / 'run'}".split()) == 0
    pixels = np.asarray(colours.convert("L").resize((SIDE, SIDE), Image.Resampling.BILINEAR)).astype(np.float32)
    model = transformers.AutoModelForImageClassification.from_pretrained(tmp_path / "run")
    with torch.no_grad():
        logits = model(torch.from_numpy(pixels / 127.5 - 1)[None, None]).logits
    (predicted,) = probabilities(alignattn.load_run(tmp_path / "run"), colours)
    assert predicted == pytest.approx(logits.softmax(-1)[0].numpy(), abs=1e-6)


def test_a_model_of_other_channels_is_refused_with_the_reason(tmp_path, capsys):
    folder = save_model(transformers.ViTConfig(**VIT, num_channels=4), tmp_path / "four")
    words = f"finetune --model {folder} --task digits {TRAINING} --output_dir {tmp_path / 'run'}"
    assert "images of 4 channels" in refused(words.split(), capsys)


def test_predict_and_calibrate_accept_tables_folders_and_single_images(run, tmp_path, monkeypatch, capsys):
    folder, rows = run
    flat = tmp_path / "new"
    flat.mkdir()
    (flat / "b.png").write_bytes(next((rows / "validation" / "3").iterdir()).read_bytes())
    (flat / "a.png").write_bytes(b"no picture")
    pd.DataFrame({"n": [7, 8], "image": ["new/b.png", "new/nowhere.png"]}).to_csv(tmp_path / "table.csv", index=False)
    predict = ["predict", "--run", str(folder), "--skip_bad_rows"]
    assert main([*predict, "--file", str(flat)]) == 0
    of_folder = pd.read_csv(tmp_path / "new-predicted.csv")
    assert of_folder["image"].tolist() == ["new/a.png", "new/b.png"]
    assert of_folder["prediction"].isna().tolist() == [True, False]
    assert main([*predict, "--file", str(tmp_path / "table.csv")]) == 0
    of_table = pd.read_csv(tmp_path / "table-predicted.csv")
    assert of_table[["n", "image"]].to_numpy().tolist() == [[7, "new/b.png"], [8, "new/nowhere.png"]]
    assert of_table["prediction"][0] == of_folder["prediction"][1]
    monkeypatch.chdir(flat)
    capsys.readouterr()
    assert main([*predict, "--text", "b.png"]) == 0
    assert json.loads(capsys.readouterr().out)["prediction"] == str(int(of_folder["prediction"][1]))
    table = [str(folder / "predictions.parquet"), "--output_dir", str(tmp_path / "calibration")]
    assert main(["calibrate", *table, "--fit_on", "validation", "--resamples", "10"]) == 0


def test_calibrate_refuses_the_training_pictures_from_another_place(run, tmp_path, capsys):
    folder, rows = run
    copied = shutil.copytree(rows / "train", tmp_path / "copied")
    words = ["calibrate", "--run", str(shutil.copytree(folder, tmp_path / "run")), "--rows", str(copied)]
    assert main(words) == 2
    assert f"{TRAIN_ROWS} bad of {TRAIN_ROWS} rows" in capsys.readouterr().err


def test_decisions_on_images_do_not_share_a_name_with_a_column_of_the_table(run, tmp_path, capsys):
    folder, rows = run
    calibrated = shutil.copytree(folder, tmp_path / "run")
    assert main(["calibrate", "--run", str(calibrated), "--resamples", "10"]) == 0
    picture = str(next((rows / "validation").rglob("*.png")))
    pd.DataFrame({"image": [picture], "set": ["validation"]}).to_csv(tmp_path / "table.csv", index=False)
    capsys.readouterr()
    predict = ["predict", "--run", str(calibrated), "--file", str(tmp_path / "table.csv")]
    assert main([*predict, "--coverage", "0.8"]) == 2
    assert "a column 'set', which the predictions need" in capsys.readouterr().err
    assert main(predict) == 0


def test_a_table_of_relative_paths_and_parquet_of_images_are_read(run, tmp_path, monkeypatch):
    folder, rows = run
    pixels, labels = digits(12)
    files = [str(path.relative_to(rows)) for path in sorted((rows / "train").glob("*/*.png"))][::50]
    table = pd.DataFrame({"file": files, "digit": ["odd" if "1" in path else "even" for path in files]})
    table.to_csv(rows / "table.csv", index=False)
    monkeypatch.chdir(rows / "train")
    read = load_user_rows("../table.csv", None, ["file"], "digit", are_images=True)
    assert read.task.labels == ("even", "odd")
    assert all(Path(path).is_file() for path in read.train["file"])
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=list("0123456789"))})
    columns = {"image": [Image.fromarray(one) for one in pixels], "label": labels}
    held = datasets.Dataset.from_dict(columns, features=features)
    hub = tmp_path / "hub"
    for split in ("train", "validation"):
        held.to_parquet(hub / f"{split}-00000-of-00001.parquet")
    task = ImageClassification(name="hub", labels=tuple("0123456789"), metrics=("accuracy",))
    of_hub = load_rows(ImageClassification(**vars(task) | {"sources": Sources(hub=str(hub))}))
    of_file = load_task_files(task, hub / "train-00000-of-00001.parquet", None)
    for rows_read in (of_hub, of_file):
        assert rows_read.train["label"][:] == labels.tolist()
        pictures = [np.asarray(open_picture(image))[..., 0] for image in rows_read.train["image"]]
        assert np.array_equal(pictures, pixels)
    held.remove_columns("label").to_parquet(tmp_path / "new.parquet")
    target = tmp_path / "predicted.parquet"
    words = ["--run", str(folder), "--file", str(tmp_path / "new.parquet"), "--output_file", str(target)]
    assert main(["predict", *words]) == 0
    assert pq.read_table(target).num_rows == len(labels)


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.string_view()])
def test_paths_of_every_arrow_type_are_relative_to_their_table(kind, tmp_path):
    Image.new("L", (8, 8)).save(tmp_path / "x.png")
    table = pa.table({"file": pa.array(["x.png", "x.png"], kind), "digit": ["odd", "even"]})
    pq.write_table(table, tmp_path / "table.parquet")
    read = load_user_rows(tmp_path / "table.parquet", None, ["file"], "digit", are_images=True)
    assert read.train["file"][:] == [str(tmp_path / "x.png")] * 2


def test_the_digits_of_scikit_learn_are_a_task():
    rows = load_rows(get_task("digits"))
    assert (len(rows.train), len(rows.evaluation["validation"])) == (1347, 450)
    assert sorted(rows.train.unique("label")) == list(range(10))
    assert open_picture(rows.train[0]["image"]).size == (SIDE, SIDE)


def test_a_batch_is_the_output_of_the_image_processor(vit, tmp_path, task):
    write_digits(tmp_path, 6)
    rows = datasets.Dataset.from_dict(
        {"image": [str(path) for path in sorted(tmp_path.glob("*/*.png"))], "label": [0, 1] * 3}
    )
    image_processor = load_image_processor(str(vit))
    options = TaskOptions(max_length=1)
    split = EncodedSplit(rows, task.encode(rows, image_processor, options), options)
    assert split.encoded["pixel_values"][:] == rows["image"][:], "an image is not read before its batch"
    batch = task.collator(image_processor, split)(list(split.encoded))
    expected = image_processor([load_image(path) for path in rows["image"]], return_tensors="pt")["pixel_values"]
    torch.testing.assert_close(batch["pixel_values"], expected)
    assert batch["labels"].tolist() == [0, 1] * 3


def write_odd_pictures(folder):
    colours = np.random.default_rng(0).integers(0, 256, (5, 7, 4), dtype=np.uint8)
    rgba = Image.fromarray(colours)
    exif = Image.Exif()
    exif[0x0112] = 6  # rotated by 90 degrees
    rgba.convert("L").save(folder / "grey.png")
    rgba.save(folder / "rgba.png")
    rgba.convert("P").save(folder / "palette.gif", save_all=True, append_images=[Image.new("P", (7, 5))])
    rgba.convert("RGB").save(folder / "turned.jpg", exif=exif)
    rgba.convert("CMYK").save(folder / "cmyk.tif")
    return sorted(folder.iterdir())


def test_pictures_are_opened_as_transformers_opens_them(tmp_path):
    for path in write_odd_pictures(tmp_path):
        assert picture_problem(str(path)) is None
        opened, expected = open_picture(str(path)), load_image(str(path))
        assert opened.mode == "RGB"
        assert np.array_equal(np.asarray(opened), np.asarray(expected)), path.name
    assert open_picture(str(tmp_path / "turned.jpg")).size == (5, 7)


def test_pixels_of_16_bits_keep_their_brightness(tmp_path):
    pixels, _ = digits(1)
    Image.fromarray(pixels[0].astype(np.uint16) * 257).save(tmp_path / "deep.png")
    assert np.array_equal(np.asarray(open_picture(str(tmp_path / "deep.png")))[..., 0], pixels[0])
    real = pixels[0].astype(np.float32)
    Image.fromarray(real).save(tmp_path / "real.tif")
    assert np.array_equal(np.asarray(open_picture(str(tmp_path / "real.tif")))[..., 0], pixels[0])
    for factor, reason in ((1 / 255, "fractions"), (257 * 257, "32 bits"), (-1, "32 bits"), (np.nan, "32 bits")):
        Image.fromarray(real * np.float32(factor)).save(tmp_path / "real.tif")
        assert reason in str(picture_problem(str(tmp_path / "real.tif")))


def broken(folder):
    """Write a PNG and a JPEG that end within their pixels; return their names."""
    large = Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8))
    for name in ("half.png", "half.jpg"):
        large.save(folder / name)
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(content[: len(content) // 2])
    return ["half.png", "half.jpg"]


def test_bad_rows_are_named_or_skipped(tmp_path, task, monkeypatch):
    write_digits(tmp_path, 2)
    good = str(next(tmp_path.glob("*/*.png")).relative_to(tmp_path))
    bad = [*broken(tmp_path), "nowhere.png", "", "table.csv"]
    rows = pd.DataFrame({"image": [good, *bad, good], "label": ["cat", *["dog"] * (len(bad) + 1)]})
    rows.to_csv(tmp_path / "table.csv", index=False)
    with pytest.raises(AlignAttnError, match=r"row 2: .*half.png.*5 bad of 7 rows"):
        load_task_files(task, tmp_path / "table.csv", None, skip_bad_rows=False)
    read = load_task_files(task, tmp_path / "table.csv", None, skip_bad_rows=True)
    assert [bad_row.row for bad_row in read.bad_rows["train"]] == [2, 3, 4, 5, 6]
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 8)
    assert "cannot be read" in str(picture_problem(str(tmp_path / good)))


def refused(words, capsys):
    """Run a command that must refuse its arguments; return its one-line message."""
    capsys.readouterr()
    assert main(words) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    return line


def test_mistakes_are_refused_in_one_line(vit, tiny_checkpoint, tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    write_digits(tmp_path / "train", 20)
    write_digits(tmp_path / "other", 20)
    (tmp_path / "other" / "9").rename(tmp_path / "other" / "nine")
    pd.DataFrame({"text": ["a", "b"], "label": [0, 1]}).to_csv(tmp_path / "texts.csv", index=False)

    def told(model, *words):
        output = ["--output_dir", str(tmp_path / "run"), *TRAINING.split()]
        return refused(["finetune", "--model", str(model), *words, *output], capsys)

    def of(name):
        return "--train_file", str(tmp_path / name)

    assert "folder without pictures" in told(vit, *of("empty"), "--image_column", "image")
    assert "'nine'" in told(vit, *of("train"), "--validation_file", str(tmp_path / "other"))
    assert "AutoModelForImageClassification" in told(tiny_checkpoint, *of("train"))
    assert "AutoModelForSequenceClassification" in told(vit, *of("texts.csv"), "--text_columns", "text")
    assert "no column 'image'" in told(vit, *of("texts.csv"), "--image_column", "image")
    assert "--text_columns" in told(vit, *of("texts.csv"), "--image_column", "image", "--text_columns", "text")
    assert "no length" in told(vit, "--task", "digits", "--train_sampling_strategy", "group_by_length")
    (vit_of_16 := tmp_path / "vit16").mkdir()
    save_model(transformers.ViTConfig(**VIT | {"image_size": 16}), vit_of_16)
    assert "preprocessor_config.json" in told(vit_of_16, *of("train"))
    (vit_of_16 / "preprocessor_config.json").unlink()
    assert "image processor" in told(vit_of_16, *of("train"))


SMALL = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 32}
SIZES = {"image_size": SIDE, "patch_size": 2}
FAMILIES = {
    "beit": lambda: transformers.BeitConfig(**SMALL, **SIZES, use_relative_position_bias=True),
    "clip": lambda: transformers.CLIPConfig(
        text_config={**SMALL, "vocab_size": 50}, vision_config={**SMALL, **SIZES}, projection_dim=24
    ),
    "dinov2": lambda: transformers.Dinov2Config(**SMALL, **SIZES),
    "siglip": lambda: transformers.SiglipConfig(
        text_config={**SMALL, "vocab_size": 50}, vision_config={**SMALL, **SIZES}
    ),
    "swin": lambda: transformers.SwinConfig(
        **SIZES, embed_dim=12, depths=[1, 1], num_heads=[2, 4], window_size=2, num_channels=3
    ),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_families_of_image_models_are_tuned(family, tmp_path):
    model = save_model(FAMILIES[family](), tmp_path / family)
    words = f"finetune --model {model} --task digits --attention aa-ct --max_steps 1 --max_train_samples 32 {TRAINING}"
    words += f" --max_eval_samples 20 --per_device_eval_batch_size 20 --output_dir {tmp_path / 'run'}"
    assert main(words.split()) == 0
    assert result_of(tmp_path / "run")["training"]["align_loss"] > 0


def test_plain_attention_trains_a_model_whose_masks_no_slot_reads(tmp_path):
    shifted = transformers.SwinConfig(**SIZES, embed_dim=12, depths=[2], num_heads=[2], window_size=2, num_channels=3)
    words = f"finetune --model {save_model(shifted, tmp_path / 'swin')} --task digits --max_steps 1 {TRAINING}"
    words += f" --max_train_samples 32 --max_eval_samples 20 --output_dir {tmp_path / 'run'}"
    assert main(words.split()) == 0
    assert result_of(tmp_path / "run")["attention"] == "soft"


def test_scores_of_images_are_learned(vit, tmp_path):
    write_digits(tmp_path / "images", 24)
    files = sorted((tmp_path / "images").glob("*/*.png"))
    rows = pd.DataFrame({"image": [str(path) for path in files], "ink": [0.1 + 0.2 * n for n in range(len(files))]})
    rows.to_json(tmp_path / "rows.jsonl", orient="records", lines=True)
    words = f"finetune --model {vit} --train_file {tmp_path / 'rows.jsonl'} --validation_share 0.25 --max_steps 1"
    words += f" --image_column image --label_column ink {TRAINING} --output_dir {tmp_path / 'run'}"
    assert main(words.split()) == 0
    assert "mse" in result_of(tmp_path / "run")["metrics"]["validation"]
    assert isinstance(alignattn.load_run(tmp_path / "run").predict([str(files[0])])[0]["prediction"], float)
