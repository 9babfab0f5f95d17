import ast
import math
import shutil
import signal
import warnings
from fnmatch import fnmatch
from pathlib import Path

import optuna
import pytest
import torch
import transformers
from checkpointing import checkpointing_arguments
from conftest import (
    ALIGNED,
    BY_SAMPLE,
    WITHOUT_NETWORKS,
    chosen,
    diagnostic_of,
    tiny_batch,
    tiny_model,
    without_dropout,
)
from processes import run_python
from torch import nn
from torch.utils.data import Dataset

import alignattn
from alignattn.attention.alignment import one_pass
from alignattn.patching import aligned_patches, alignment_parameters
from alignattn.training.arguments import AlignmentTrainingArguments
from alignattn.training.callbacks import AfterStep
from alignattn.training.checkpoints import MODEL_FILES, last_whole_checkpoint, remove_checkpoints
from alignattn.training.trainer import AlignmentTrainer
from alignattn.utils.errors import AlignAttnError

ROWS = 16
LENGTH = 9


class TinyRows(Dataset):
    """Rows of equal length: the mean of two half batches is then the mean of the batch."""

    def __init__(self, rows=ROWS):
        self.batch = tiny_batch(batch=rows, length=LENGTH)

    def __len__(self):
        return len(self.batch["labels"])

    def __getitem__(self, index):
        return {name: values[index] for name, values in self.batch.items()}


def arguments(folder, **changes):
    settings = {
        "output_dir": str(folder),
        "num_train_epochs": 2,
        "per_device_train_batch_size": 8,
        "learning_rate": 1e-3,
        "logging_steps": 1,
        "save_strategy": "no",
        "disable_tqdm": True,
        "use_cpu": True,
        "seed": 3,
    }
    return AlignmentTrainingArguments(**(settings | changes))


def train(model, folder, *, trainer_class=AlignmentTrainer, rows=ROWS, resume=None, **changes):
    trainer = trainer_class(model=model, args=arguments(folder, **changes), train_dataset=TinyRows(rows))
    trainer.train(resume_from_checkpoint=resume)
    return trainer


def logged(trainer, name):
    return [entry[name] for entry in trainer.state.log_history if name in entry]


def timeless(trainer):
    """The log without the values that depend on time."""
    return [
        {name: value for name, value in entry.items() if not name.endswith(("_runtime", "_per_second"))}
        for entry in trainer.state.log_history
    ]


@pytest.mark.parametrize(
    ("family", "is_patched"), [("albert", True), ("bert", True), ("roberta", True), ("bert", False)]
)
def test_soft_trains_step_for_step_as_the_plain_trainer(family, is_patched, tmp_path):
    plain = train(tiny_model(family), tmp_path, trainer_class=transformers.Trainer)
    model = tiny_model(family)
    soft = train(alignattn.patch(model, "soft") if is_patched else model, tmp_path)
    assert logged(soft, "loss") == logged(plain, "loss")
    for name, parameter in plain.model.named_parameters():
        assert torch.equal(parameter, soft.model.get_parameter(name))


@pytest.mark.parametrize("smoothing", [0.0, 0.3])
def test_labels_are_smoothed_and_the_alignment_is_not(smoothing, tmp_path):
    model = alignattn.patch(without_dropout(tiny_model("bert")), "aa-ct", alignment_weight=0.5)
    with torch.no_grad():
        model.classifier.weight.mul_(50)  # spread the logits, so that smoothing has an effect
    batch = TinyRows().batch
    with torch.no_grad():
        logits = model(**batch).logits
    expected = nn.functional.cross_entropy(logits, batch["labels"], label_smoothing=smoothing)
    sharp = nn.functional.cross_entropy(logits, batch["labels"])
    trainer = train(model, tmp_path, max_steps=1, per_device_train_batch_size=ROWS, label_smoothing_factor=smoothing)
    (loss,), (task_loss,), (aligned,) = (logged(trainer, name) for name in ("loss", "task_loss", "align_loss"))
    assert task_loss == pytest.approx(float(expected), rel=1e-5)
    assert (abs(task_loss - float(sharp)) > 0.01) == (smoothing > 0)
    assert loss == pytest.approx(task_loss + 0.5 * aligned, rel=1e-5)


@pytest.mark.parametrize(
    ("family", "variant"), [*(("albert", variant) for variant in ALIGNED), ("bert", "aa-ct"), ("roberta", "aa-gan")]
)
def test_it_logs_the_parts_of_the_loss_and_trains_the_alignments_networks(family, variant, tmp_path):
    model = alignattn.patch(tiny_model(family), variant, alignment_weight=0.5)
    before = [parameter.clone() for parameter in alignment_parameters(model)]
    trainer = train(model, tmp_path)
    for loss, task, aligned in zip(
        logged(trainer, "loss"), logged(trainer, "task_loss"), logged(trainer, "align_loss"), strict=True
    ):
        assert loss == pytest.approx(task + 0.5 * aligned, rel=1e-5)
    diagnostics = logged(trainer, diagnostic_of(variant))
    assert len(diagnostics) == len(logged(trainer, "loss")) > 0
    assert all(math.isfinite(value) for value in diagnostics)
    assert (len(before) > 0) == (variant not in WITHOUT_NETWORKS)
    for old, new in zip(before, alignment_parameters(model), strict=True):
        assert not torch.equal(old, new)

    model.save_pretrained(tmp_path / "saved")
    loaded = alignattn.from_pretrained(tmp_path / "saved", transformers.AutoModelForSequenceClassification)
    for trained, reloaded in zip(alignment_parameters(model), alignment_parameters(loaded), strict=True):
        assert torch.equal(trained, reloaded)


def test_gradient_is_that_of_task_plus_weighted_alignment(tmp_path):
    """Against a loop written without the trainer, by SGD from the same weights."""
    rate, weight = 0.1, 0.3
    model = alignattn.patch(without_dropout(tiny_model("bert")), "aa-ct", alignment_weight=weight, alignment_rows=0)
    twin = alignattn.patch(without_dropout(tiny_model("bert")), "aa-ct", alignment_weight=weight, alignment_rows=0)
    trainer = AlignmentTrainer(
        model=model,
        args=arguments(
            tmp_path,
            max_steps=1,
            per_device_train_batch_size=ROWS,
            optim="sgd",
            max_grad_norm=0.0,
            learning_rate=rate,
            alignment_learning_rate=rate,
        ),
        train_dataset=TinyRows(),
    )
    slots_before = [parameter.clone() for parameter in alignment_parameters(model)]
    twin.load_state_dict(model.state_dict())
    trainer.train()

    twin.train()
    with alignattn.collect(twin) as seen:
        task_loss = twin(**TinyRows().batch).loss
    (task_loss + weight * torch.stack(seen.losses()).mean()).backward()
    for name, parameter in twin.named_parameters():
        torch.testing.assert_close(model.get_parameter(name), parameter - rate * parameter.grad, msg=name)
    assert not torch.equal(slots_before[0], alignment_parameters(model)[0])


def steepened(trainer, factor):
    """Return the trainer, with the gradients of the alignment's networks multiplied by a factor."""
    for parameter in alignment_parameters(trainer.model):
        parameter.register_hook(lambda gradient: gradient * factor)
    return trainer


@pytest.mark.parametrize("max_grad_norm", [0.1, 0.0])
def test_a_huge_gradient_of_an_adversary_does_not_change_the_models_step(max_grad_norm, tmp_path):
    """The networks of the adversary are clipped separately."""

    def one_step(factor):
        model = alignattn.patch(without_dropout(tiny_model("bert")), "aa-gan", alignment_weight=0.3).double()
        args = arguments(
            tmp_path,
            max_steps=1,
            optim="sgd",
            learning_rate=1.0,
            alignment_learning_rate=1.0,
            max_grad_norm=max_grad_norm,
        )
        before = [parameter.detach().clone() for parameter in alignment_parameters(model)]
        trainer = steepened(AlignmentTrainer(model=model, args=args, train_dataset=TinyRows()), factor)
        trainer.train()
        moved = torch.stack([(a - b).norm() for a, b in zip(before, alignment_parameters(model), strict=True)]).norm()
        own = {id(parameter) for parameter in alignment_parameters(model)}
        weights = {name: parameter for name, parameter in model.named_parameters() if id(parameter) not in own}
        return weights, moved.item(), logged(trainer, "grad_norm")

    weights, moved, norms = one_step(1.0)
    steep_weights, steep_moved, steep_norms = one_step(1e4)
    for name, parameter in weights.items():
        assert torch.equal(steep_weights[name], parameter), name
    assert steep_norms == norms
    if max_grad_norm:
        assert steep_moved == pytest.approx(max_grad_norm, rel=1e-3)
    else:
        assert steep_moved == pytest.approx(1e4 * moved)


@pytest.mark.parametrize("variant", ["aa-ct", "aa-ct+qvi"])
def test_model_init_makes_and_patches_the_model(variant, tmp_path):
    def make():
        return alignattn.patch(without_dropout(tiny_model("bert")), variant, alignment_weight=0.3, alignment_rows=0)

    settings = {"per_device_train_batch_size": ROWS, "optim": "sgd", "learning_rate": 0.1}  # one batch, in any order
    expected = train(make(), tmp_path, **settings)
    trainer = AlignmentTrainer(model_init=make, args=arguments(tmp_path, **settings), train_dataset=TinyRows())
    for _ in range(2):  # the second starts over
        trainer.train()
        assert logged(trainer, "loss") == pytest.approx(logged(expected, "loss"), rel=1e-5)
        for name, tensor in expected.model.state_dict().items():
            torch.testing.assert_close(trainer.model.state_dict()[name], tensor, rtol=1e-4, atol=1e-6, msg=name)
    assert trainer.args.ddp_find_unused_parameters is False
    assert trainer.accelerator.ddp_handler.find_unused_parameters is False


def test_a_hyperparameter_search_patches_each_model_and_reaches_the_training_methods(tmp_path):
    optuna.logging.disable_default_handler()
    space = {"alignment_weight": [0.0, 0.7], "alignment_learning_rate": [0.02], "r_drop_weight": [1.0, 50.0]}

    def make(trial):
        weights = space["alignment_weight"]
        weight = 0.1 if trial is None else trial.suggest_categorical("alignment_weight", weights)
        return alignattn.patch(tiny_model("bert"), "aa-gan", alignment_weight=weight)

    args = arguments(tmp_path, max_steps=1, eval_strategy="steps", eval_steps=1)
    trainer = AlignmentTrainer(model_init=make, args=args, train_dataset=TinyRows(), eval_dataset=TinyRows())
    seen = set()

    def objective(metrics):
        (method,) = trainer.methods
        rate = trainer.args.alignment_learning_rate
        seen.add((logged(trainer, "alignment_weight")[-1], rate, trainer.args.r_drop_weight, method.extra_weight))
        return metrics["eval_loss"]

    best = trainer.hyperparameter_search(
        hp_space=lambda trial: {
            name: trial.suggest_categorical(name, space[name]) for name in ("alignment_learning_rate", "r_drop_weight")
        },
        compute_objective=objective,
        n_trials=4,
        direction="minimize",
        backend="optuna",
        sampler=optuna.samplers.GridSampler(space),
    )
    assert seen == {(weight, 0.02, alpha, alpha) for weight in (0.0, 0.7) for alpha in (1.0, 50.0)}
    assert best.hyperparameters["alignment_weight"] in space["alignment_weight"]
    (after_step,) = (callback for callback in trainer.callback_handler.callbacks if isinstance(callback, AfterStep))
    assert after_step.methods is trainer.methods


def test_plain_training_arguments_use_the_default_rate(tmp_path):
    model = alignattn.patch(tiny_model("bert"), "aa-ct")
    args = transformers.TrainingArguments(output_dir=str(tmp_path), use_cpu=True)
    trainer = AlignmentTrainer(model=model, args=args, train_dataset=TinyRows())
    assert trainer.create_optimizer().param_groups[-1]["lr"] == 1e-3


def test_the_weight_warms_up(tmp_path):
    model = alignattn.patch(tiny_model("bert"), "aa-ct", alignment_weight=0.4)
    trainer = train(model, tmp_path, num_train_epochs=4, alignment_warmup_ratio=0.5)
    assert logged(trainer, "alignment_weight") == pytest.approx([0.0, 0.1, 0.2, 0.3, 0.4, 0.4, 0.4, 0.4])
    for loss, task, aligned, weight in zip(
        *(logged(trainer, name) for name in ("loss", "task_loss", "align_loss", "alignment_weight")), strict=True
    ):
        assert loss == pytest.approx(task + weight * aligned, rel=1e-5)


@pytest.mark.parametrize("variant", ALIGNED)
def test_evaluation_reports_the_task_loss_alone(variant, tmp_path):
    model = alignattn.patch(tiny_model("bert"), variant, alignment_weight=10.0)
    args = arguments(tmp_path, per_device_eval_batch_size=ROWS)
    metrics = AlignmentTrainer(model=model, args=args, eval_dataset=TinyRows()).evaluate()
    with torch.no_grad():
        expected = model.eval()(**TinyRows().batch).loss.item()
    assert metrics["eval_loss"] == pytest.approx(expected)


@pytest.mark.parametrize("variant", chosen(ALIGNED, "aa-gan", "aa-ct"))
def test_gradient_checkpointing_counts_a_layer_once(variant, tmp_path):
    def run(**changes):
        model = alignattn.patch(without_dropout(tiny_model("bert")), variant, alignment_weight=0.3)
        # SGD, because Adam makes a full step of a gradient that is only rounding.
        return train(model, tmp_path, optim="sgd", learning_rate=0.1, max_grad_norm=0.0, **changes)

    plain = run()
    checkpointed = run(**checkpointing_arguments(use_reentrant=False))
    assert logged(checkpointed, "loss") == pytest.approx(logged(plain, "loss"), rel=1e-5)
    for name, parameter in plain.model.named_parameters():
        torch.testing.assert_close(checkpointed.model.get_parameter(name), parameter, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("variant", chosen(ALIGNED, "aa-gan", "aa-ct", "aa-moments"))
def test_bf16_autocast_trains_near_float32(variant, tmp_path):
    def losses(**changes):
        model = alignattn.patch(without_dropout(tiny_model("bert")), variant, alignment_weight=0.1)
        return logged(train(model, tmp_path, **changes), "loss")

    assert losses(bf16=True) == pytest.approx(losses(), rel=0.03)


@pytest.mark.parametrize("variant", BY_SAMPLE)
def test_the_path_of_a_gpu_trains_step_for_step_as_that_of_the_cpu(variant, tmp_path, monkeypatch):
    def losses():
        model = alignattn.patch(without_dropout(tiny_model("bert")), variant, alignment_weight=0.3)
        trainer = train(model, tmp_path)
        return logged(trainer, "loss"), logged(trainer, "align_loss")

    of_cpu = losses()
    monkeypatch.setattr(one_pass, "is_in_blocks", lambda _: False)
    for of_gpu, of_cpu_alone in zip(losses(), of_cpu, strict=True):
        assert of_gpu == pytest.approx(of_cpu_alone, abs=1e-5)


def test_torch_compile_trains_as_eager_does(tmp_path):
    def run(**changes):
        torch._dynamo.reset()
        # patching/test_compile tests that the alignment of several layers is one graph.
        model = alignattn.patch(without_dropout(tiny_model("bert", num_hidden_layers=1)), "aa-ct", alignment_weight=0.3)
        return train(model, tmp_path, **changes)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch._dynamo.utils.counters.clear()
        # patching/test_compile compiles the backward pass, too.
        compiled = run(torch_compile=True, torch_compile_backend="eager")
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] > 0
    assert not torch._dynamo.utils.counters["graph_break"]
    eager = run()
    for name in ("align_loss", "loss"):
        assert logged(compiled, name) == pytest.approx(logged(eager, name), rel=1e-3)


class TwoGpus(AlignmentTrainingArguments):
    """Without a GPU, DataParallel passes everything to the single model."""

    @property
    def n_gpu(self):
        return 2


def test_data_parallel_without_an_alignment_reports_the_loss_of_one_device(tmp_path):
    losses = []
    for kind in (TwoGpus, AlignmentTrainingArguments):
        settings = {"use_cpu": True, "max_steps": 4, "logging_steps": 1, "report_to": "none"}
        args = kind(str(tmp_path), gradient_accumulation_steps=2, **settings)
        trainer = AlignmentTrainer(model=without_dropout(tiny_model("bert")), args=args, train_dataset=TinyRows())
        result = trainer.train().training_loss
        assert result == pytest.approx(sum(logged(trainer, "loss")) / 4, rel=1e-3)
        losses.append(result)
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_data_parallel_is_refused(tmp_path):
    model = alignattn.patch(tiny_model("bert"), "aa-ct")
    args = TwoGpus(output_dir=str(tmp_path), use_cpu=True)
    with pytest.raises(AlignAttnError, match="torchrun"):
        AlignmentTrainer(model=model, args=args, train_dataset=TinyRows())


def test_two_patched_parts_log_each_diagnostic_as_the_mean_of_the_parts_that_have_it(tmp_path):
    model = nn.ModuleDict({"first": tiny_model("bert"), "second": tiny_model("bert")})
    alignattn.patch(model["first"], "aa-ct")
    alignattn.patch(model["second"], "aa-gan")
    trainer = AlignmentTrainer(model=model, args=arguments(tmp_path), train_dataset=TinyRows())
    parts = [
        (patch, torch.ones(()), {name: torch.tensor(value)})
        for patch, name, value in zip(
            aligned_patches(model), ("critic_gap", "discriminator_accuracy"), (0.4, 0.7), strict=True
        )
    ]
    assert trainer._alignment_loss(parts)[2] == {
        "critic_gap": torch.tensor(0.4),
        "discriminator_accuracy": torch.tensor(0.7),
    }


def test_a_loss_that_is_not_finite_stops_the_run_and_keeps_the_checkpoints(tmp_path):
    model = alignattn.patch(tiny_model("bert"), "aa-ct")
    args = arguments(tmp_path, num_train_epochs=4, save_strategy="epoch")

    class Poison(transformers.TrainerCallback):
        def on_step_begin(self, args, state, control, **kwargs):
            if state.global_step == 5:
                with torch.no_grad():
                    model.classifier.bias.fill_(float("nan"))

    trainer = AlignmentTrainer(model=model, args=args, train_dataset=TinyRows(), callbacks=[Poison()])
    with pytest.raises(AlignAttnError, match=r"not finite.*step 6"):
        trainer.train()
    assert last_whole_checkpoint(tmp_path).name == "checkpoint-4"
    assert all(math.isfinite(value) for value in logged(trainer, "loss"))


@pytest.mark.parametrize(
    ("field", "value"),
    [("alignment_warmup_ratio", 1.5), ("alignment_learning_rate", 0.0), ("slot_learning_rate", -1.0)],
)
def test_arguments_out_of_range_are_refused(field, value, tmp_path):
    with pytest.raises(AlignAttnError, match=field):
        arguments(tmp_path, **{field: value})


class TestResume:
    @pytest.mark.parametrize("variant", chosen(ALIGNED, "aa-gan", "aa-means"))
    def test_a_run_resumed_within_an_epoch_ends_as_an_uninterrupted_one(self, variant, tmp_path):
        def fresh():
            return alignattn.patch(tiny_model("bert"), variant, alignment_weight=0.3)

        settings = {"num_train_epochs": 3, "save_strategy": "steps", "save_steps": 3, "logging_steps": 2}
        whole = train(fresh(), tmp_path / "whole", **settings)
        # What a killed run leaves: the checkpoint of step 3, written between two logs.
        resumed = train(fresh(), tmp_path / "whole", resume=str(tmp_path / "whole" / "checkpoint-3"), **settings)
        for name, tensor in whole.model.state_dict().items():
            assert torch.equal(tensor, resumed.model.state_dict()[name]), name
        assert timeless(resumed) == timeless(whole)

    @pytest.mark.parametrize(
        ("variant", "changes"),
        [
            (None, {}),
            ("soft", {"gradient_accumulation_steps": 2, "per_device_train_batch_size": 4}),
            ("aa-ct", {"gradient_accumulation_steps": 2, "per_device_train_batch_size": 3}),
            ("aa-gan", {"r_drop_weight": 0.5, "alignment_warmup_ratio": 0.5}),
            ("aa-moments", {"max_grad_norm": 0.0, "logging_first_step": True}),
            ("aa-ct", {"bf16": True, "logging_strategy": "epoch"}),
        ],
        ids=str,
    )
    def test_the_log_of_a_run_that_is_resumed_twice_is_that_of_an_uninterrupted_one(self, variant, changes, tmp_path):
        def fresh():
            return tiny_model("bert") if variant is None else alignattn.patch(tiny_model("bert"), variant)

        folder = tmp_path / "whole"
        # Several checkpoints between two logs.
        settings = {"num_train_epochs": 3, "save_strategy": "steps", "save_steps": 1, "logging_steps": 3} | changes
        whole = train(fresh(), folder, **settings)
        assert len(logged(whole, "loss")) > 1
        for step in (1, 3, 4):
            # The steps since are saved anew, by the resumed run.
            for later in range(step + 1, whole.state.max_steps + 1):
                shutil.rmtree(folder / f"checkpoint-{later}")
            resumed = train(fresh(), folder, resume=str(folder / f"checkpoint-{step}"), **settings)
            assert timeless(resumed) == timeless(whole), step

    def test_a_killed_process_resumes_to_the_same_weights(self, tmp_path):
        import train_and_die

        killed = run_python(train_and_die.__file__, tmp_path / "killed", 4)
        assert killed.returncode == -signal.SIGKILL
        assert not (tmp_path / "killed" / "weights.pt").exists()
        for name in ("killed", "whole"):
            train_and_die.train_in(tmp_path / name)
        killed, whole = (torch.load(tmp_path / name / "weights.pt", weights_only=True) for name in ("killed", "whole"))
        assert all(torch.equal(killed[name], whole[name]) for name in whole)


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory):
    """A run's folder with two checkpoints."""
    folder = tmp_path_factory.mktemp("run")
    train(alignattn.patch(tiny_model("bert"), "aa-ct"), folder, save_strategy="steps", save_steps=2)
    return folder


class TestLastWholeCheckpoint:
    def test_the_newest_is_found(self, run_folder):
        assert last_whole_checkpoint(run_folder).name == "checkpoint-4"

    @pytest.mark.parametrize("name", ["model.safetensors", "optimizer.pt", "scheduler.pt", "trainer_state.json"])
    @pytest.mark.parametrize("is_cut", [True, False])
    def test_a_damaged_one_is_skipped(self, run_folder, name, is_cut):
        file = run_folder / "checkpoint-4" / name
        content = file.read_bytes()
        try:
            if is_cut:
                file.write_bytes(content[: len(content) // 2])
            else:
                file.unlink()
            assert last_whole_checkpoint(run_folder).name == "checkpoint-2"
        finally:
            file.write_bytes(content)

    @pytest.mark.parametrize("last", ["optimizer.bin", "latest"])
    def test_one_of_sharded_training_is_found(self, run_folder, tmp_path, last):
        """Files as accelerate's `save_fsdp_model` and `save_fsdp_optimizer` and DeepSpeed's engine write them."""
        folder = shutil.copytree(run_folder / "checkpoint-4", tmp_path / "checkpoint-4")
        if last == "optimizer.bin":
            torch.save({}, folder / "pytorch_model_fsdp.bin")
            (folder / "optimizer.pt").rename(folder / last)
        else:
            for name in ("optimizer.pt", "scheduler.pt"):
                (folder / name).unlink()
            (folder / "global_step4").mkdir()
            (folder / last).write_text("global_step4")
        assert last_whole_checkpoint(tmp_path) == folder
        (folder / last).rename(tmp_path / last)
        assert last_whole_checkpoint(tmp_path) is None
        if last == "optimizer.bin":
            (folder / last).write_bytes((tmp_path / last).read_bytes()[:-100])
            assert last_whole_checkpoint(tmp_path) is None

    def test_it_is_removed_only_if_the_run_has_its_weights(self, run_folder, tmp_path):
        folder = shutil.copytree(run_folder / "checkpoint-4", tmp_path / "checkpoint-4")
        torch.save({}, folder / "optimizer.bin")
        remove_checkpoints(tmp_path)
        assert last_whole_checkpoint(tmp_path) == folder
        shutil.copy(folder / "model.safetensors", tmp_path)
        remove_checkpoints(tmp_path)
        assert not folder.exists()

    def test_without_checkpoints_there_is_none(self, tmp_path):
        assert last_whole_checkpoint(tmp_path) is None
        assert last_whole_checkpoint(tmp_path / "missing") is None


def test_files_of_a_model_include_those_of_every_tokenizer():
    # Read from the sources, because some classes need packages that are not installed.
    sources = list((Path(transformers.__file__).parent / "models").glob("*/tokenization_*.py"))
    named = {}
    for source in sources:
        for node in ast.parse(source.read_text()).body:
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "VOCAB_FILES_NAMES":
                for names in ast.literal_eval(node.value).values():
                    named |= dict.fromkeys(names if isinstance(names, list) else [names], source.parent.name)
    assert {"vocab.txt", "bpe.codes", "source.spm"} <= named.keys()
    unlisted = {name: of for name, of in named.items() if not any(fnmatch(name, listed) for listed in MODEL_FILES)}
    assert not unlisted
