"""The L2 penalty against an optimizer with a built-in one, with and without scaled gradients."""

import torch
import transformers
from conftest import tiny_model
from test_trainer import TinyRows, arguments, train
from torch import nn

from alignattn.training.parameter_groups import add_l2

PENALTY, RATE = 0.3, 1e-2


def test_training_with_the_penalty_equals_adam_with_weight_decay(tmp_path):
    options = {"max_steps": 3, "learning_rate": RATE, "max_grad_norm": 0.0}
    plain = train(tiny_model("bert"), tmp_path, **options).model
    penalised = train(tiny_model("bert"), tmp_path, l2_penalty=PENALTY, **options).model
    by_torch = transformers.Trainer(
        model=tiny_model("bert"),
        args=arguments(tmp_path, weight_decay=PENALTY, **options),
        train_dataset=TinyRows(),
        optimizer_cls_and_kwargs=(torch.optim.Adam, {"lr": RATE}),
    )
    by_torch.train()
    for name, expected in by_torch.model.named_parameters():
        torch.testing.assert_close(penalised.get_parameter(name), expected, rtol=1e-4, atol=1e-6)
    pairs = zip(plain.parameters(), penalised.parameters(), strict=True)
    moved = [not torch.equal(*pair) for pair in pairs]
    assert sum(moved) > 10


def test_a_fused_optimizer_with_scaled_gradients_applies_the_same_penalty():
    trained = []
    for scale in (None, 1024.0):
        torch.manual_seed(0)
        model, inputs = nn.Linear(4, 3), torch.randn(5, 4)
        # Plain gradient descent, whose step is proportional to the gradient; Adam's hardly depends on its scale.
        optimizer = torch.optim.SGD(model.parameters(), lr=RATE, fused=True)
        add_l2(optimizer, PENALTY, ["weight"], model)
        scaler = torch.amp.GradScaler("cpu", init_scale=scale or 1.0, enabled=scale is not None)
        for _ in range(3):
            optimizer.zero_grad()
            scaler.scale(model(inputs).square().mean()).backward()
            scaler.step(optimizer)
            scaler.update()
        trained.append(model.weight.detach())
    torch.testing.assert_close(*trained)
