"""Last-layer Laplace: the posterior of a classifier's linear head determines its confidence in new rows.

Daxberger et al. 2021, "Laplace Redux – Effortless Bayesian Deep Learning", sections 2 and 3, with their defaults: the
Gauss-Newton matrix of the head in Kronecker factors (Ritter et al. 2018), a prior precision from the marginal
likelihood, and the probit approximation of the predictive distribution (MacKay 1992).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from alignattn.tasks import Task
from alignattn.tasks.task_types import processor_for
from alignattn.training.methods.base import EVALUATION_ROWS, OptionsOfMethod, TrainingMethod
from alignattn.utils.errors import AlignAttnError
from alignattn.utils.option import option

if TYPE_CHECKING:
    from torch import Tensor, nn

PRIOR_PRECISIONS = (1e-4, 1e4)
"""Range of the search for the precision."""


@dataclass(frozen=True, kw_only=True)
class LaplaceOptions(OptionsOfMethod):
    """The options of `Laplace`."""

    laplace: bool = option(
        False,
        "Last-layer Laplace: predict with the head's posterior.",
        requires=EVALUATION_ROWS,
        excludes={"mc_dropout_passes": "each defines how confident predictions are"},
    )


class Laplace(TrainingMethod):
    """Predicts with `LastLayerLaplace`, the posterior given the training rows; the saved model does not contain it."""

    label = "Laplace"
    summary = (
        "predictions with the last layer's posterior, which the saved model does not contain (Daxberger et al. 2021)"
    )
    switch = "laplace"
    options = LaplaceOptions
    predicts = True
    runs_in_data_parallel = False

    def __init__(self, args: Any, model: nn.Module) -> None:
        if args.world_size > 1:
            raise AlignAttnError(
                "--laplace: the posterior needs all rows, but each process has only a part: start one process"
            )
        self.posterior: LastLayerLaplace | None = None

    @classmethod
    def reason_unsupported(cls, task: Task | None, *, has_crf: bool) -> str:
        """Return why a task does not have one class per row, as in `TrainingMethod`."""
        if task is None or (processor_for(task).can_average and processor_for(task).can_smooth_labels):
            return ""
        return f": task {task.name!r} does not have one class per row"

    def before_training(self) -> None:
        """Forget the posterior of an earlier training."""
        self.posterior = None

    def before_prediction(self, trainer: Any, rows: Any) -> str:
        """Raise `AlignAttnError` if the model has no linear head."""
        self._head(trainer, rows)
        return ""

    def predict(self, trainer: Any, rows: Any) -> Any:
        """Return the predictions, with the logits of the predictive distribution."""
        import torch

        head = self._head(trainer, rows)
        if self.posterior is None:
            self.posterior = LastLayerLaplace.fit(head, _with_features(trainer, head, trainer.train_dataset)[1])
        outputs, features = _with_features(trainer, head, rows)
        logits = self.posterior.moderated(torch.as_tensor(outputs.predictions), features)
        return outputs._replace(predictions=logits.numpy())

    def _head(self, trainer: Any, rows: Any) -> nn.Linear:
        head = linear_head(trainer.model, trainer.first_batch(rows))
        if head is None:
            raise AlignAttnError(
                f"--laplace: the logits of {type(trainer.model).__name__} for task {trainer.task.name!r} do not "
                "come from a linear layer, once per row: leave it out"
            )
        return head


def _with_features(trainer: Any, head: nn.Linear, rows: Any) -> tuple[Any, Tensor]:
    """Return the predictions of rows and `[N, D]`, the input of the head for each row."""
    import torch

    kept: list[Tensor] = []
    hook = head.register_forward_pre_hook(lambda module, args: kept.append(args[0].detach().float().cpu()))
    try:
        return trainer.predict(rows), torch.cat(kept)
    finally:
        hook.remove()


@dataclass(frozen=True)
class LastLayerLaplace:
    """The Gaussian posterior of a head's weights and bias around their trained values; in float64, on the CPU.

    The Gauss-Newton matrix of N rows is (Σ φ φᵀ) ⊗ (Σ Λ) / N, with inputs φ, extended by a 1 for the bias, and
    Λ = diag(p) - p pᵀ for predicted probabilities p. laplace-torch uses separate Kronecker factors for weights and
    bias, without their common block, so its numbers for a head with a bias differ.

    Attributes:
        inputs: eigenvalues `[D]` and eigenvectors `[D, D]` of Σ φ φᵀ.
        outputs: eigenvalues `[C]` and eigenvectors `[C, C]` of Σ Λ / N.
        prior_precision: δ of the prior, a Gaussian of covariance I / δ.
        has_bias: whether φ has a 1 for the bias.
    """

    inputs: tuple[Tensor, Tensor]
    outputs: tuple[Tensor, Tensor]
    prior_precision: float
    has_bias: bool

    @classmethod
    def fit(cls, head: nn.Linear, features: Tensor) -> LastLayerLaplace:
        """Return the posterior of a trained head.

        Args:
            head: maps D features to C logits.
            features: `[N, D]`, the inputs of the head for the training rows.
        """
        import torch

        weight, bias = (None if one is None else one.detach().cpu().double() for one in (head.weight, head.bias))
        assert weight is not None
        rows = features.detach().cpu().double()
        probabilities = (rows @ weight.T + (0 if bias is None else bias)).softmax(dim=1)
        spread = torch.diag(probabilities.sum(dim=0)) - probabilities.T @ probabilities
        points = rows if bias is None else torch.cat([rows, torch.ones_like(rows[:, :1])], dim=1)
        inputs, outputs = _eigen(points.T @ points), _eigen(spread / len(rows))
        square = float(weight.square().sum() + (0 if bias is None else bias.square().sum()))
        precision = _best_precision(inputs[0][:, None] * outputs[0], square)
        return cls(inputs, outputs, precision, bias is not None)

    def variances(self, features: Tensor) -> Tensor:
        """Return the posterior variance of each logit of rows `[N, D]`, `[N, C]`."""
        import torch

        points = features.detach().cpu().double()
        points = torch.cat([points, torch.ones_like(points[:, :1])], dim=1) if self.has_bias else points
        (input_values, input_vectors), (output_values, output_vectors) = self.inputs, self.outputs
        inverse = 1 / (input_values[:, None] * output_values + self.prior_precision)
        return (points @ input_vectors).square() @ inverse @ output_vectors.square().T

    def moderated(self, logits: Tensor, features: Tensor) -> Tensor:
        """Return logits of the predictive distribution, f / sqrt(1 + π σ² / 8), `[N, C]`.

        Args:
            logits: f, `[N, C]`.
            features: `[N, D]`.
        """
        return logits.detach().cpu().double() / (1 + math.pi / 8 * self.variances(features)).sqrt()


def linear_head(model: nn.Module, batch: Mapping[str, Any]) -> nn.Linear | None:
    """Return the linear layer whose output is a model's logits `[B, C]`; None if there is none.

    Args:
        model: a model that returns `logits`.
        batch: its keyword arguments.
    """
    import torch
    from torch import nn

    given: list[tuple[Tensor, nn.Linear]] = []

    def note(module: nn.Module, args: Any, output: Any) -> None:
        assert isinstance(module, nn.Linear)
        given.append((output, module))

    hooks = [module.register_forward_hook(note) for module in model.modules() if isinstance(module, nn.Linear)]
    was_training = model.training
    try:
        with torch.no_grad():
            # The instance's `forward` may be accelerate's, which returns a copy in another precision.
            logits = type(model).forward(model.eval(), **batch)["logits"]
        return next((module for output, module in given if output is logits), None) if logits.dim() == 2 else None
    finally:
        model.train(was_training)
        for hook in hooks:
            hook.remove()


def _eigen(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Decompose a positive matrix; rounding may leave an eigenvalue of a singular one just below 0."""
    import torch

    values, vectors = torch.linalg.eigh(matrix)
    return values.clamp_min(0), vectors


def _best_precision(curvatures: Tensor, square: float) -> float:
    """Return the prior precision with the largest marginal likelihood (Daxberger et al. 2021, eq. 6).

    Args:
        curvatures: eigenvalues of the Gauss-Newton matrix.
        square: sum of the squares of the parameters.
    """
    from scipy.optimize import minimize_scalar

    def loss(log_precision: float) -> float:
        precision = math.exp(log_precision)
        volume = float((curvatures + precision).log().sum()) - curvatures.numel() * log_precision
        return (precision * square + volume) / 2

    low, high = map(math.log, PRIOR_PRECISIONS)
    return math.exp(minimize_scalar(loss, bounds=(low, high), method="bounded").x)
