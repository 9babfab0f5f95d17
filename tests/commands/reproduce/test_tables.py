"""Table definitions: their files, their cells, the digests of their runs, and the options that they accept."""

import hashlib
import math
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from conftest import ROOT
from needs import SHARED, skip_without

from alignattn.attention.config import PLAIN_ATTENTION
from alignattn.cli import main
from alignattn.commands.finetune import COMMAND
from alignattn.commands.reproduce.command import run_missing
from alignattn.commands.reproduce.experiment import digest_value, is_table_option, owners_of, read_given
from alignattn.commands.reproduce.folder import RunFolder, folders_of, record_failure
from alignattn.commands.reproduce.launchers.local import LocalLauncher
from alignattn.commands.reproduce.results import read_table
from alignattn.commands.reproduce.table import load_table, parse_table
from alignattn.finetuning.options import RunOptions
from alignattn.finetuning.results import CONFIG_FILE
from alignattn.finetuning.tables import TABLES
from alignattn.utils.errors import AlignAttnError
from alignattn.utils.files import write_json, write_text
from alignattn.utils.options import resolve

PAPER = SHARED / "paper_tables.yaml"
SMALL_STUDY = str(ROOT / "docs" / "study" / "study-small.yaml")
SEEDS = (1, 2)


def published_numbers(name, rows=slice(None)):
    """Return the published numbers of a table, flat, row by row."""
    numbers = [number for row in load_table(name).rows[rows] for column in row.published for number in column]
    return [number for number in numbers if number is not None]


@pytest.fixture(scope="module")
def paper():
    skip_without(PAPER)
    return yaml.safe_load(PAPER.read_text())


def flat(value):
    """Return the numbers of a value of the paper's file: `80.86/88.70` holds two."""
    if isinstance(value, list):
        return [number for entry in value for number in flat(entry)]
    return [float(part) for part in str(value).split("/")]


def test_table_1_holds_the_published_numbers(paper):
    expected = [flat(paper["aa_table1"][row]) for row in ("soft", "aa-gan", "aa-ot", "aa-ct")]
    assert [float(number) for number in published_numbers("table1")] == [n for row in expected for n in row]


def test_table_2_holds_the_published_numbers(paper):
    pairs = [paper["aa_table2"][pair] for pair in ("snli_mnli", "qqp_twitter_ppdb", "swag_hellaswag")]
    expected = [number for row in pairs[0] for pair in pairs for number in flat(pair[row])]
    assert [float(number) for number in published_numbers("table2")] == expected
    table = load_table("table2")
    names = [
        "/".join(str(row.options[name]) for name in ("model", "attention") if name in row.options) for row in table.rows
    ]
    assert names == list(pairs[0])


@pytest.mark.parametrize("model", ["da", "esim"])
def test_runs_that_a_model_does_not_support_are_not_applicable_instead_of_missing(model, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = ["reproduce", "table2", "--models", model, "--tasks", "swag-hellaswag", "--num_seeds", "1"]
    assert main([*words, "--dry_run"]) == 0
    assert f"1 not supported: --model {model} compares two texts" in capsys.readouterr().out
    assert main(words) == 0
    out = capsys.readouterr().out
    assert "n/a" in out
    assert f"n/a: --model {model} compares two texts, and task 'swag' has one." in out
    assert not list((tmp_path / "results").rglob("experiment.json"))
    assert "not applicable" in next((tmp_path / "results").rglob("*.html")).read_text()


def test_table_3_holds_the_published_numbers(paper):
    expected = [
        number
        for recipe in ("textfooler", "textbugger", "bae")
        for row in ("soft", "aa-gan", "aa-ct")
        for number in flat(paper["aa_table3"][recipe][row])[:-1]  # the last is the average
    ]
    assert [float(number) for number in published_numbers("table3")] == expected


@pytest.mark.parametrize("name", TABLES)
def test_every_cell_has_runs_whose_options_their_commands_know(name):
    table = load_table(name)
    cells = list(table.cells(SEEDS))
    assert len(cells) == len(table.rows) * sum(len(column.measures) for column in table.columns)
    for cell in cells:
        for experiment in cell.experiments:
            for run in filter(None, (experiment, experiment.needs)):
                assert all(is_table_option(run.command, name) for name in run.options)
    of_rows = {name for row in table.rows for name in row.options} - {"attention"}
    for column in table.columns:
        assert all(owners_of([table.command_of(column)], name) for name in of_rows | column.options.keys())


@pytest.mark.parametrize("name", [name for name in TABLES if load_table(name).command == "finetune"])
def test_cells_run_with_every_seed_and_their_commands_accept_the_options(name, tmp_path):
    for cell in load_table(name).cells(SEEDS):
        if cell.column.command:
            continue
        assert [experiment.options["seed"] for experiment in cell.experiments] == list(SEEDS)
        options = resolve(COMMAND.options, RunFolder(tmp_path, cell.experiments[0]).values)
        assert options.data.task == cell.column.name
        assert options.attention.name == cell.row.options.get("attention", PLAIN_ATTENTION)
        assert options.training.seed == 1


def test_an_attack_needs_the_run_of_finetune_with_the_same_options(tmp_path):
    table = load_table("table3").narrowed(tasks=["rte"], attentions=["soft", "aa-ct"])
    by_row = {}
    for cell in table.cells([7]):
        (experiment,) = cell.experiments
        assert "seed" not in experiment.options
        assert experiment.needs.options["seed"] == 7
        assert experiment.needs.options["attention"] == cell.row.options["attention"]
        by_row[cell.row.options["recipes"][0], cell.row.options["attention"]] = experiment
        needed = RunFolder(tmp_path, experiment.needs).output
        assert RunFolder(tmp_path, experiment).command_line.startswith(f"alignattn robustness --run {needed} ")
    assert len({experiment.digest for experiment in by_row.values()}) == 6
    assert by_row["bae", "soft"].needs == by_row["textfooler", "soft"].needs
    assert by_row["bae", "soft"].needs != by_row["bae", "aa-ct"].needs


def test_equal_options_have_equal_digests_however_they_are_written():
    def digest(*words):
        table = (
            load_table("table1")
            .with_options(read_given(["finetune"], words))
            .narrowed(tasks=["rte"], attentions=["soft"])
        )
        return next(table.cells([1])).experiments[0].digest

    assert digest("--learning_rate", "1e-4") == digest("--learning_rate=0.0001")
    assert digest("--bf16") == digest("--bf16", "True") == digest("--bf16", "yes") == digest("--bf16=1")
    assert digest("--num_train_epochs", "1") == digest("--num-train-epochs", "1.0")
    assert digest("--layers", "0", "1") == digest("--layers", "00", "01")
    assert digest("--learning_rate", "1e-4") != digest("--learning_rate", "2e-4")
    assert digest() != digest("--max_length", "64")


def test_runs_of_the_time_when_all_rows_were_the_default_are_not_those_that_draw():
    def run(attention, **rows):
        row = {"label": "x", "options": {"attention": attention, **rows}}
        content = {"title": "t", "command": "finetune", "options": {"model": "minilm"}, "rows": [row]}
        column = {"label": "MRPC", "options": {"task": "mrpc"}, "measures": [{"label": "a", "path": "metrics"}]}
        (cell,) = parse_table("own", yaml.safe_dump(content | {"columns": [column]})).cells([1])
        return cell.experiments[0]

    drawn, all_rows = run("aa-ct"), run("aa-ct", alignment_rows=0)
    earlier = replace(all_rows, options={k: v for k, v in all_rows.options.items() if k != "alignment_rows"})
    assert drawn.options["alignment_rows"] == 8
    assert drawn.digest == run("aa-ct", alignment_rows=8).digest
    assert all_rows.digest == earlier.digest != drawn.digest
    assert "alignment_rows" not in run("aa-moments").options


def test_a_run_that_others_start_from_is_identified_by_its_content(tmp_path):
    def digest(folder):
        table = load_table("table1").with_options({"model": str(folder)}).narrowed(tasks=["rte"], attentions=["soft"])
        return next(table.cells([1])).experiments[0].digest

    first, moved, other, plain = (tmp_path / name for name in ("first", "moved", "other", "plain"))
    for folder, content in ((first, b"1"), (moved, b"1"), (other, b"2"), (plain, b"1")):
        folder.mkdir()
        (folder / "model.safetensors").write_bytes(content)
        if folder != plain:
            (folder / "config.yaml").write_text(f"output_dir: {folder}\n")
    assert digest(first) == digest(moved)
    assert len({digest(folder) for folder in (first, other, plain)}) == 3


def test_options_that_do_not_change_a_run_do_not_change_its_digest():
    def digest(given):
        return next(load_table("table3").with_options(given).cells([1])).experiments[0].digest

    assert digest({"report_to": "none", "disable_tqdm": True, "batch_size": 7}) == digest({})
    assert digest({"num_train_epochs": 2}) != digest({})


def test_word_vectors_are_for_the_baselines_alone():
    cells = load_table("table2").with_options({"embeddings": "glove.npz"}).cells([1])
    given = {cell.row.options["model"]: "embeddings" in cell.experiments[0].options for cell in cells}
    assert given == {"da": True, "esim": True, "bert-base-uncased": False, "roberta-base": False}


@pytest.mark.parametrize("of_row", [{}, {"model": "minilm"}], ids=["model of the table", "model of the row"])
@pytest.mark.parametrize(("model", "reads"), [("cnn", True), ("albert-base-v2", False)])
def test_word_vectors_reach_a_given_model_that_reads_them(of_row, model, reads):
    table = own_table([{"options": {"attention": "soft"} | of_row}], options={"task": "mrpc", "model": "minilm"})
    (cell,) = table.with_options({"model": model, "embeddings": "glove.npz"}).cells([1])
    (run,) = cell.experiments
    assert run.options["model"] == model
    assert (run.options.get("embeddings") == "glove.npz") is reads


def test_word_vectors_that_no_row_reads_are_refused():
    table = load_table("table2").with_options({"embeddings": "glove.npz"})
    assert table.narrowed(models=["da"]).given
    with pytest.raises(AlignAttnError, match="no model of these rows of table2 reads word vectors"):
        table.narrowed(models=["bert-base-uncased"])


def test_a_digest_survives_its_file(tmp_path):
    (experiment,) = next(load_table("table3").cells([3])).experiments
    folder = RunFolder(tmp_path, experiment)
    folder.prepare()
    assert RunFolder.read(folder.path).experiment.digest == experiment.digest
    assert replace(experiment, options={**experiment.options, "num_examples": 7}).digest != experiment.digest


def test_a_given_model_replaces_every_pretrained_one():
    table = load_table("table2").with_options({"model": "mini"})
    models = [table.model_of(row) for row in table.rows]
    assert models == ["da", "esim", "mini", "mini", "mini"]
    assert table.rows[2].published == load_table("table2").rows[2].published
    used = {cell.experiments[0].options["model"] for cell in table.cells([1])}
    assert used == {"da", "esim", "mini"}


def test_fields_of_the_tables_model_are_not_given_to_another():
    def options(given):
        return next(load_table("table1").with_options(given).cells([1])).experiments[0].options

    assert "model_config" in options({})
    assert "max_steps" in options({})
    assert "model_config" not in options({"model": "mini"})
    assert not {"max_steps", "warmup_steps"} & options({"num_train_epochs": 2}).keys()
    assert "warmup_steps" not in options({"max_steps": 50})
    assert options({"num_train_epochs": 2, "warmup_steps": 0.1})["warmup_steps"] == 0.1
    assert options({"model": "mini", "model_config": "a=1"})["model_config"] == "a=1"


@pytest.mark.parametrize("name", ["table1", "table2"])
def test_naming_the_tables_own_model_changes_no_run(name):
    table = load_table(name)
    for model in {table.model_of(row) for row in table.rows} - {"da", "esim"}:
        own = [[run.digest for run in cell.experiments] for cell in table.narrowed(models=[model]).cells(SEEDS)]
        given = table.with_options({"model": model}).narrowed(models=[model])
        assert [[run.digest for run in cell.experiments] for cell in given.cells(SEEDS)][: len(own)] == own


def test_a_warm_up_that_is_a_share_of_the_steps_fits_every_length():
    def warmup(name, **given):
        table = load_table(name, kept=name == SMALL_STUDY)
        return next(table.with_options(given).cells([1])).experiments[0].options.get("warmup_steps")

    for given in ({"num_train_epochs": 1}, {"max_steps": 50}):
        assert warmup(SMALL_STUDY, **given) == 0.1
        assert warmup("table1", **given) is None
    (cell, *_) = load_table("table5").with_options({"num_train_epochs": 1}).cells([1])
    assert cell.experiments[0].needs.options["warmup_steps"] == 0.03


def own_table(rows, **fields):
    """Return a custom table with one measure of one task."""
    measure = {"label": "accuracy", "path": "metrics.validation.accuracy", "primary": True}
    columns = [{"label": "c", "measures": [measure]}]
    content = {"title": "t", "command": "finetune", "options": {"task": "mrpc"}, "rows": rows, "columns": columns}
    return parse_table("own", yaml.safe_dump(content | fields, sort_keys=False))


def test_a_row_that_keeps_its_model_keeps_its_fields():
    def fields(table, model):
        cells = table.with_options({"model": model}).cells([1])
        return [
            (cell.experiments[0].options["model"], cell.experiments[0].options.get("model_config")) for cell in cells
        ]

    small, deep = ["hidden_dim=64"], ["num_hidden_layers=2"]
    cnn = {"options": {"model": "cnn", "model_config": small}}
    bert = {"options": {"model": "bert-base-uncased", "attention": "soft", "model_config": deep}}
    for model in ("minilm", "han"):
        assert fields(own_table([cnn, bert]), model) == [("cnn", small), (model, None)]
    of_table = own_table(
        [{"options": {"attention": "soft"}}], options={"task": "mrpc", "model": "cnn"} | {"model_config": small}
    )
    assert fields(of_table, "minilm") == [("cnn", small)]
    graphs = load_table("table4").with_options({"model": "minilm"})
    pubmed = [cell for cell in graphs.cells([1]) if cell.column.name == "pubmed"]
    assert [cell.experiments[0].options["model_config"] for cell in pubmed] == [["num_output_heads=8"]] * 3
    assert {graphs.model_of(row) for row in graphs.rows} == {"gat"}


COMPARED_TWICE = [
    {"label": "soft", "options": {"attention": "soft"}},
    {"label": "ct", "options": {"attention": "aa-ct"}},
    {"label": "bal", "primary": True, "options": {"attention": "soft", "balance": "start"}},
    {"label": "bal to ct", "primary": True, "against": "ct", "options": {"attention": "soft", "balance": "start"}},
]


def baselines(table):
    return {cell.row.label: cell.baseline for cell in table.cells([1])}


@pytest.mark.parametrize("given", [{}, {"model": "minilm"}], ids=["nothing", "a model"])
def test_a_method_that_is_listed_twice_for_two_baselines_keeps_both_rows(given):
    expected = {"soft": None, "ct": "soft", "bal": "soft", "bal to ct": "ct"}
    rows = [row | {"options": row["options"] | {"model": "bert-base-uncased"}} for row in COMPARED_TWICE]
    table = own_table(rows).with_options(given)
    assert baselines(table) == expected
    assert table.named == 2


def test_rows_that_a_given_model_makes_equal_become_one_row_per_baseline():
    rows = [
        row | {"label": f"{row['label']}{suffix}", "options": row["options"] | {"model": model}}
        | ({"against": f"ct{suffix}"} if "against" in row else {})
        for model, suffix in (("bert-base-uncased", ""), ("roberta-base", " of roberta"))
        for row in COMPARED_TWICE
    ]  # fmt: skip
    table = own_table(rows)
    assert len(table.rows) == 8
    assert baselines(table.with_options({"model": "minilm"})) == {
        "soft": None, "ct": "soft", "bal": "soft", "bal to ct": "ct",
    }  # fmt: skip


def test_a_row_keeps_the_baseline_that_it_names_by_an_automatic_label():
    models = ("minilm", "albert-base-v2")
    rows = [{"options": {"model": model, "attention": "aa-ct"}, "against": f"{model}, soft"} for model in models]
    rows += [{"options": {"model": model, "attention": "soft"}} for model in models]
    rows.append(rows[0] | {"label": "x", "options": rows[0]["options"] | {"balance": "start"}})
    table = own_table(rows)
    assert baselines(table)["x"] == "minilm, soft"
    assert baselines(table.narrowed(models=["minilm"])) == {"aa-ct": "soft", "soft": None, "x": "soft"}
    given = table.with_options({"model": "bert-base-uncased"})
    assert baselines(given) == baselines(given.narrowed()) == {"aa-ct": "soft", "soft": None, "x": "soft"}
    assert set(baselines(table.narrowed(attentions=["aa-ct"])).values()) == {None}


@pytest.mark.parametrize(
    ("shared", "rows", "expected"),
    [
        pytest.param({}, [{}, {"attention": "aa-ct"}], [None, 0], id="the default is plain"),
        pytest.param({}, [{}, {"normalizer": "entmax15"}, {"alignment": "ct"}], [None, 0, 0], id="slots"),
        pytest.param({}, [{"attention": "soft"}, {"r_drop_weight": 0.3}], [None, 0], id="a method, named and not"),
        pytest.param({"attention": "soft"}, [{}, {"r_drop_weight": 0.3}], [None, 0], id="of the table"),
        pytest.param({"attention": "aa-ct"}, [{}, {"alignment_weight": 0.1}], [None, None], id="none is plain"),
        pytest.param({"attention": "aa-ct"}, [{}, {"attention": "soft"}], [1, None], id="a row is plain"),
    ],
)
def test_the_plain_row_is_that_without_an_alignment_or_slots(shared, rows, expected):
    labelled = [{"label": str(place), "options": options} for place, options in enumerate(rows)]
    table = own_table(labelled, options={"model": "minilm"} | shared)
    assert list(baselines(table).values()) == [None if place is None else str(place) for place in expected]


@pytest.mark.parametrize("name", ["study", SMALL_STUDY, str(ROOT / "docs/study/study-base.yaml")])
def test_every_row_of_a_study_is_compared_with_soft(name):
    table = load_table(name, kept=True)
    plain, *others = table.rows
    assert table.baseline(plain) is None
    baselines = {row.label: table.baseline(row).label for row in others}
    control = {"balance start, random A": "balance start"}
    assert baselines == dict.fromkeys(baselines, plain.label) | {
        label: of for label, of in control.items() if label in baselines
    }


@pytest.mark.parametrize(
    ("name", "model", "tasks", "said"),
    [
        ("table2", "minilm", ["qqp-twitterppdb"], ["QQP"]),
        ("table2", "sentence-transformers/all-mpnet-base-v2", ["snli-mnli"], ["SNLI, MultiNLI"]),
        ("table2", "minilm", ["swag-hellaswag"], []),
        ("table2", "bert-base-uncased", ["snli-mnli"], []),
        ("table1", "minilm", ["squad_v2", "squad"], ["SQuAD"]),
        ("table1", "minilm", ["qnli"], ["SQuAD, the source of QNLI's questions and paragraphs"]),
        ("table1", "minilm", ["rte", "mrpc"], []),
    ],
)
def test_a_note_names_the_rows_that_a_model_has_seen_before(name, model, tasks, said, tmp_path):
    table = load_table(name).with_options({"model": model})
    table = table.narrowed(tasks=tasks, attentions=["soft"])
    cells = list(table.cells([1]))
    told = [note for note in read_table(table, cells, folders_of(tmp_path, cells)).notes if "The model card of" in note]
    assert [f"lists {tasks} " in note for tasks, note in zip(said, told, strict=True)] == [True] * len(said)


def test_an_ensemble_uses_the_runs_of_its_members_and_is_compared_with_them():
    cells = {cell.row.label: cell for cell in load_table("study").narrowed(tasks=["rte"]).cells(SEEDS)}
    plain, ensemble = cells["soft"], cells["soft + ensemble"]
    assert ensemble.experiments == plain.experiments
    assert ensemble.baseline == "soft"
    assert cells["soft + EMA"].experiments != plain.experiments


STUDY_MADE = "a6cfa03bef29e61a68896c144969e41b13fc717ad372f861445e20faef0db698"
"""SHA-256 of the digests of the table study-small, which name the kept runs."""


def test_the_runs_of_the_small_study_keep_their_digests():
    table = load_table(SMALL_STUDY, kept=True)
    digests = {one.digest for cell in table.cells(range(1, table.seeds + 1)) for one in cell.experiments}
    assert len(digests) == 360
    assert hashlib.sha256(" ".join(sorted(digests)).encode()).hexdigest() == STUDY_MADE


def test_each_column_has_its_command_and_attacks_need_the_runs_of_another_column():
    cells = list(load_table("study").narrowed(attentions=["soft"]).cells([1]))
    assert {cell.experiments[0].command for cell in cells} == {"finetune", "domain-shift", "robustness"}
    made = {cell.column.label: cell.experiments[0] for cell in cells if cell.row.label == "soft"}
    assert made["MRPC, attacked"].needs == made["MRPC"]


def test_unsupported_cells_give_the_reason_and_need_no_run(tmp_path):
    table = load_table("study").narrowed(tasks=["stsb", "sst2", "qqp-mrpc"], attentions=["soft"])
    cells = list(table.cells([1]))
    result = read_table(table, cells, folders_of(tmp_path, cells))
    said = {
        (cell.row.removeprefix("soft + "), cell.column): cell.reason for cell in result.cells if cell.state == "unfit"
    }
    saved = "is not part of a saved model, and attacks need a saved model"
    assert said == {
        ("label smoothing", "STS-B"): "--label_smoothing_factor: task 'stsb' has no classes to smooth",
        ("MC dropout", "SST-2, attacked"): f"--mc_dropout_passes {saved}",
        ("ensemble", "SST-2, attacked"): "attacks need one saved model, and an ensemble is several",
        ("ensemble", "QQP → MRPC"): "an ensemble has no temperature of its own",
    }
    attacked = [cell for cell in cells if cell.column.command == "robustness" and "dropout" in cell.row.label]
    assert list(folders_of(tmp_path, attacked)) == [one.digest for cell in attacked for one in cell.experiments]


def test_an_interrupted_table_of_attacks_has_complete_seeds(tmp_path, monkeypatch):
    """Each training comes just before its first attack, and one that fails is not repeated for the next attack."""
    worker, begun = tmp_path / "worker.sh", tmp_path / "begun"
    worker.write_text(f'#!/bin/sh\nbasename "$3" >> {begun}\nexit 3\n')
    worker.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(worker))
    cells = list(load_table("table3").narrowed(tasks=["rte"], attentions=["soft"]).cells([1, 2]))
    folders = folders_of(tmp_path, cells)
    run_missing(LocalLauncher(1), folders.values())
    attacks = [[cell.experiments[seed] for cell in cells] for seed in (0, 1)]
    assert len(attacks[0]) == 3
    assert begun.read_text().split() == [one.digest for of_seed in attacks for one in (of_seed[0].needs, *of_seed)]
    assert {folder.status().reason.split(";")[0] for folder in folders.values()} == {"the run ended with exit code 3"}


def test_an_option_of_left_out_columns_alone_is_refused():
    table = load_table("study").with_options({"num_examples": 7})
    attacked = table.narrowed(tasks=["mrpc"]).cells([1])
    taken = {cell.column.label: cell.experiments[0].options.get("num_examples") for cell in attacked}
    assert taken == {"MRPC": None, "MRPC, attacked": 7}
    with pytest.raises(AlignAttnError, match="--num_examples is not an option of finetune"):
        table.narrowed(tasks=["rte"])


def test_a_row_is_compared_with_the_nearest_of_several_plain_rows():
    rows = [
        {"options": {"attention": "soft"}},
        {"options": {"attention": "soft", "weight_averaging": "ema"}},
        {"options": {"attention": "aa-ct", "weight_averaging": "ema"}},
        {"options": {"attention": "aa-ct", "weight_averaging": "swa"}},
    ]
    table = load_table("study")
    table = table.model_copy(update={"rows": [type(table.rows[0]).model_validate(row) for row in rows]})
    expected = [None, table.rows[0], table.rows[1], table.rows[0]]
    assert [table.baseline(row) for row in table.rows] == expected


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["tabel1"], "unknown table 'tabel1': did you mean 'table1'? Choose one of lambda"),
        (["table1", "--tasks", "mrcp"], "'mrcp' is not in table1: choose one of mrpc, cola"),
        (["table2", "--models", "da", "--attentions", "soft"], "no row"),
        (["table3", "--run", "runs/rte"], "--run is not an option of robustness"),
        (["table1", "--seeds", "5", "6", "--num_seeds", "3"], "leave one of them out"),
        (["lambda", "--alignment_weight", "0.05"], "--alignment_weight distinguishes the runs of lambda"),
        (["table1", "table2"], "'table2' is not an option"),
        (["table1", "--ray_address", "auto", "--tasks", "rte"], "--launcher ray"),
        (["table1", "--gpu_share", "0.5", "--tasks", "rte"], "--gpu_share needs --launcher ray"),
    ],
)
def test_a_mistake_is_one_line(words, said, tmp_path, capsys):
    assert main(["reproduce", *words, "--output_dir", str(tmp_path / "results")]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert said in error
    assert not (tmp_path / "results").exists()


def test_optional_columns_are_made_only_if_they_are_named():
    def tasks(**narrowing):
        return [column.name for column in load_table("lambda").narrowed(**narrowing).columns]

    assert tasks() == ["mrpc", "rte"]
    assert tasks(tasks=["cola"]) == ["cola"]


def test_a_dry_run_lists_the_runs_and_writes_nothing(tmp_path, capsys):
    folder = tmp_path / "results"
    words = ["--tasks", "rte", "--attentions", "soft", "aa-ct", "--num_seeds", "3", "--dry_run"]
    assert main(["reproduce", "table1", *words, "--output_dir", str(folder)]) == 0
    out = capsys.readouterr().out
    assert sum(line.startswith("finetune rte") for line in out.splitlines()) == 6
    assert "0 of 6 runs are done" in out
    assert not folder.exists()


@pytest.mark.parametrize(("words", "seeds"), [(["--seeds", "3", "7"], ["3", "7"]), (["--seeds", "4"], ["4"])])
def test_seeds_are_listed_as_in_other_commands(words, seeds, tmp_path, capsys):
    words = ["--tasks", "rte", "--attentions", "soft", *words, "--dry_run"]
    assert main(["reproduce", "table1", *words, "--output_dir", str(tmp_path)]) == 0
    assert re.findall(r"seed (\d+)", capsys.readouterr().out) == seeds


def test_a_dry_run_estimates_from_the_finished_runs(tmp_path, capsys):
    words = ["--tasks", "rte", "--attentions", "soft", "--num_seeds", "5", "--dry_run", "--output_dir", str(tmp_path)]
    table = load_table("table1").narrowed(tasks=["rte"], attentions=["soft"])
    (cell,) = table.cells([1, 2, 3, 4, 5])
    folders = [RunFolder(tmp_path, experiment) for experiment in cell.experiments]
    for folder, seconds in zip(folders, (60, 180, 6, 1), strict=False):
        folder.prepare()
        (folder.path / "seconds.txt").write_text(f"{seconds}\n")
    for folder in folders[:2]:
        write_text(folder.output / CONFIG_FILE, folder.options.to_yaml())
        write_json(folder.output / "results.json", {})
    record_failure(folders[2].path, "out of memory")
    assert main(["reproduce", "table1", *words]) == 0
    out = capsys.readouterr().out
    assert out.count("about 2.0 min") == 3
    assert "the others take about 6 min one after another" in out
    assert math.isnan(folders[4].seconds)


def given(*words):
    """Return what a digest covers of words for a table of finetune."""
    values = read_given(["finetune"], words)
    return {name: digest_value(RunOptions, name, value) for name, value in values.items()}


def test_given_words_have_the_types_of_their_options():
    words = ["--layers", "0", "1", "--bf16", "--save-strategy", "no", "--model_config", "a=0.1", "--max_steps=5"]
    assert given(*words) == {
        "layers": [0, 1], "bf16": True, "save_strategy": "no", "model_config": "a=0.1", "max_steps": 5,
    }  # fmt: skip
    with pytest.raises(AlignAttnError, match="'stray' is not an option"):
        given("stray")


def test_an_existing_folder_is_given_by_its_absolute_path(tmp_path, monkeypatch):
    (tmp_path / "data" / "here").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert given("--data_dir", "data/here") == {"data_dir": str(Path("data/here").resolve())}
    assert given("--data_dir", "data") == {"data_dir": str(Path("data").resolve())}
    assert given("--model", "google/bert") == {"model": "google/bert"}
    assert given("--model", "data/here") == {"model": str(Path("data/here").resolve())}


def test_a_link_keeps_its_name(tmp_path):
    """Its target, a blob of a cache, has no suffix that tells the format."""
    (tmp_path / "blob").write_text("text,label\na,0\n")
    (tmp_path / "train.csv").symlink_to(tmp_path / "blob")
    assert given("--train_file", str(tmp_path / "train.csv")) == {"train_file": str(tmp_path / "train.csv")}


OWN_TABLE = {
    "title": "My own",
    "command": "finetune",
    "rows": [
        {"options": {"attention": "soft"}, "published": [78.80]},
        {"options": {"attention": "qvi"}, "label": "mine"},
    ],
    "columns": [
        {
            "label": "RTE",
            "config": "albert-rte",
            "options": {"task": "rte"},
            "measures": [{"label": "accuracy", "path": "metrics.validation.accuracy"}],
        }
    ],
}


@pytest.mark.parametrize("ending", ["yaml", "yml"])
def test_a_table_may_be_a_custom_file(ending, tmp_path):
    path = tmp_path / f"mine.{ending}"
    path.write_text(yaml.safe_dump(OWN_TABLE).replace("78.8", "78.80"))
    plain, mine = load_table(str(path)).cells([1])
    assert [(cell.row.label, cell.published, cell.baseline) for cell in (plain, mine)] == [
        ("soft", "78.80", None),
        ("mine", None, "soft"),
    ]
    assert mine.experiments[0].options["attention"] == "qvi"
    assert mine.experiments[0].options["learning_rate"] == 3e-5


@pytest.mark.parametrize("unknown", ["~", "null", "Null", ""])
def test_a_null_is_no_published_number(unknown, tmp_path):
    path = tmp_path / "mine.yaml"
    rows = OWN_TABLE["rows"]
    for published in (f"[{unknown}]", f"[[{unknown}]]") if unknown else ("\n  -",):
        text = yaml.safe_dump(OWN_TABLE | {"rows": [rows[0] | {"published": "NUMBERS"}, rows[1]]})
        path.write_text(text.replace("NUMBERS", published))
        assert [cell.published for cell in load_table(str(path)).cells([1])] == [None, None]


def test_a_row_may_name_the_printed_label_of_its_baseline(tmp_path):
    path = tmp_path / "mine.yaml"
    rows = [{"options": {"attention": "aa-ct"}}, {"options": {"attention": "soft"}, "against": "aa-ct"}]
    path.write_text(yaml.safe_dump(OWN_TABLE | {"rows": rows}))
    (cell,) = (
        cell
        for cell in load_table(str(path)).cells([1])
        if cell.row is not load_table(str(path)).rows[0] and cell.row.against
    )
    assert cell.baseline == "aa-ct"


@pytest.mark.parametrize("command", ["finetune", "robustness"])
def test_attacks_on_runs_that_draw_their_rows_say_nothing_about_other_seeds(command, tmp_path):
    path, measure = tmp_path / "mine.yaml", {"label": "failed", "path": "failed_share"}
    options = {"model": "minilm", "task": "mrpc", "take": "seed", "max_train_samples": 100}
    content = {"title": "t", "command": command, "options": options, "rows": [{"options": {"attention": "soft"}}]}
    path.write_text(yaml.safe_dump(content | {"columns": [{"label": "c", "measures": [measure]}]}))
    (cell,) = load_table(str(path)).cells([1])
    assert cell.samples_by_seed


def renamed(old, new):
    return lambda content: {new if name == old else name: value for name, value in content.items()}


def changed(part, **values):
    return lambda content: content | {part: [content[part][0] | values, *content[part][1:]]}


def compared_with_an_ensemble(content):
    plain, mine = content["rows"]
    everything = {"options": plain["options"], "label": "all", "ensemble": True}
    return content | {"rows": [plain, mine | {"against": "all"}, everything]}


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (renamed("title", "titel"), "title: Field required"),
        (lambda content: content | {"command": "inspect"}, "the results of alignattn inspect cannot fill a table"),
        (lambda content: [content], "not valid"),
        (
            changed("rows", options={"atention": "soft"}),
            "--atention is not an option of finetune: did you mean 'attention'?",
        ),
        (changed("rows", published=[1.0, 2.0]), "published numbers"),
        (changed("rows", against="softly"), "compared with 'softly', but no row has that label"),
        (changed("rows", label="mine"), "two rows have the label 'mine'"),
        (compared_with_an_ensemble, "compared with 'all', but an ensemble has no seeds to pair"),
        (changed("rows", options={"attention": "soft", "seed": 7}), "seed has no effect"),
        (
            lambda content: content | {"command": "robustness", "options": {"seed": 7}},
            "seed has no effect, because each run has a seed of its own: limit the runs by seeds, or give --seeds",
        ),
        (changed("columns", config="albert-rt"), "albert-rt"),
        (changed("columns", measures=[{"label": "x", "path": "{atention}.y"}]), "'{atention}.y'"),
        (changed("columns", measures=[{"label": "x", "path": "y", "unit": "miles"}]), "columns.0.measures.0.unit"),
    ],
)
def test_a_mistake_in_a_table_is_one_line(damage, said, tmp_path, capsys):
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump(damage(OWN_TABLE)))
    assert main(["reproduce", str(path), "--dry_run"]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "mine" in error
    assert said in error
