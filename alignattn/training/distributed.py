"""Training with several processes: a patch's parameters under FSDP2 and DistributedDataParallel, and repeated rows.

accelerate repeats rows at the end of an epoch, so that each process has as many batches. They get no weight: a process
keeps only its own rows of the last batch. A process without any computes the first rows again, which keeps it in step
with the others, and their loss has the weight 0.
"""

from collections.abc import Iterator, MutableMapping
from itertools import islice
from typing import Any, TypeVar

import accelerate.data_loader
import torch
from accelerate.data_loader import BatchSamplerShard, DataLoaderDispatcher, IterableDatasetShard
from accelerate.state import GradientState
from accelerate.utils import find_batch_size, slice_tensors
from torch import Tensor, nn
from torch.utils.data import DataLoader
from torch.utils.hooks import RemovableHandle

from alignattn.attention.alignment.base import Alignment
from alignattn.patching import alignment_parameters, function_parameters
from alignattn.patching.slots import LayerSlots
from alignattn.utils.attributes import replaced
from alignattn.utils.errors import AlignAttnError

M = TypeVar("M", bound=nn.Module)


def shard_slots(model: M, **options: Any) -> M:
    """Shard the parameters of a patch with FSDP2, in place, before the layers and the model are sharded.

        alignattn.shard_slots(model, mesh=mesh)
        for layer in model.bert.encoder.layer:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)

    FSDP2 refuses a group with parameters of several types. A patch's parameters are in float32, so they need separate
    groups in a model that was loaded in half precision. In a float32 model the call is optional.

    Args:
        model: a patched model, or a module that contains one; no module that holds slots is sharded yet.
        **options: keyword arguments of `fully_shard`, such as `mesh`.

    Returns:
        `model` itself.

    Raises:
        AlignAttnError: if the slots are already sharded with their layers.
    """
    # Imported here: they take a second, and some builds of torch lack them.
    from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method
    from torch.distributed.tensor import DTensor

    if any(isinstance(own, DTensor) for own in [*alignment_parameters(model), *function_parameters(model)]):
        raise AlignAttnError(
            f"the slots of this {type(model).__name__} are already sharded: call alignattn.shard_slots before "
            "fully_shard"
        )
    for module in list(model.modules()):
        if isinstance(module, LayerSlots | Alignment) and any(True for _ in module.parameters()):
            fully_shard(module, **options)
        if isinstance(module, Alignment):
            register_fsdp_forward_method(module, "of_calls")
    return model


class _Reach(torch.autograd.Function):
    """The identity, which also connects parameters to the graph without a gradient."""

    @staticmethod
    def forward(ctx: Any, output: Tensor, *parameters: Tensor) -> Tensor:
        ctx.number = len(parameters)
        return output.view_as(output)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        return gradient, *[None] * ctx.number


def reach_alignment_from_output(model: nn.Module) -> RemovableHandle:
    """Connect the alignment's own networks to a model's output, so that DistributedDataParallel finds them.

    With `find_unused_parameters=True` it marks parameters that the output does not reach as ready, and raises "marked
    ready only once" when the alignment loss, which is not part of the output, gives them a gradient.

    Returns:
        The handle by which the hook is removed after training.
    """
    parameters = alignment_parameters(model)

    def reach(module: nn.Module, _inputs: Any, output: Any) -> Any:
        if not module.training or not torch.is_grad_enabled():
            return output

        def reaching(value: Tensor) -> Tensor:
            return _Reach.apply(value, *parameters)  # type: ignore[no-untyped-call]

        # The first tensor with a gradient is enough.
        if isinstance(output, Tensor):
            return reaching(output)
        if not isinstance(output, MutableMapping | tuple):
            return output
        items: Any = enumerate(output) if isinstance(output, tuple) else output.items()
        places = (place for place, value in items if isinstance(value, Tensor) and value.requires_grad)
        if (first := next(places, None)) is None:
            return output
        if isinstance(output, tuple):
            return *output[:first], reaching(output[first]), *output[first + 1 :]
        output[first] = reaching(output[first])
        return output

    return model.register_forward_hook(reach)


class OwnBatches(BatchSamplerShard):  # type: ignore[misc]  # accelerate has no types
    """The batches of one process, of which the last may be shorter.

    Attributes:
        has_only_repeats: whether the last batch that was yielded repeats rows of another process.
    """

    has_only_repeats = False

    def __len__(self) -> int:
        batches: int = len(self.batch_sampler)
        if self.split_batches:
            return batches
        return batches // self.num_processes if self.drop_last else -(-batches // self.num_processes)

    def __iter__(self) -> Iterator[list[Any]]:
        first = None
        for batches in self._of_all_processes():
            first = first or batches[0]
            own = batches[self.process_index] if self.process_index < len(batches) else []
            self.has_only_repeats = not own
            yield own or first

    def _of_all_processes(self) -> Iterator[list[list[Any]]]:
        """Yield the batches that the processes take at the same time; the last may be too few, or too short."""
        if self.split_batches:
            size = self.batch_size // self.num_processes
            for batch in self.batch_sampler:
                yield [batch[start : start + size] for start in range(0, self.batch_size, size)]
            return
        rest = iter(self.batch_sampler)
        while batches := list(islice(rest, self.num_processes)):
            if len(batches) == self.num_processes or not self.drop_last:
                yield batches


class OwnElements(IterableDatasetShard):  # type: ignore[misc]
    """The elements of one process, of which the last batch may be shorter.

    Attributes:
        has_only_repeats: whether the last batch that was yielded repeats elements of another process.
    """

    has_only_repeats = False

    def __iter__(self) -> Iterator[Any]:
        size = self.batch_size // self.num_processes if self.split_batches else self.batch_size
        own = slice(self.process_index * size, (self.process_index + 1) * size)
        elements, first = iter(self.dataset), None
        self.has_only_repeats = False
        while batch := list(islice(elements, size * self.num_processes)):
            if self.drop_last and len(batch) < size * self.num_processes:
                return
            first = first or batch[:size]
            self.has_only_repeats = not batch[own]
            yield from batch[own] or first


def without_repeats(create: Any) -> DataLoader[Any]:
    """Return the data loader that a function creates, with the own rows of each process alone."""
    with replaced(accelerate.data_loader, BatchSamplerShard=OwnBatches, IterableDatasetShard=OwnElements):
        loader: DataLoader[Any] = create()
    return loader


def own_rows(batch: Any, loader: DataLoader[Any] | None) -> tuple[Any, bool]:
    """Return a batch without repeated rows, and whether it has no others: it is then left as it is.

    Args:
        batch: the batch that the data loader of the running epoch has just yielded.
        loader: the data loader that `without_repeats` returned.
    """
    state = GradientState()
    if not state.end_of_dataloader:
        return batch, False
    running = state.active_dataloader
    if isinstance(running, DataLoaderDispatcher):
        size = find_batch_size(batch)
        own = min(max(running.remainder - running.state.process_index * size, 0), size)
        return (slice_tensors(batch, slice(own)), False) if own > 0 else (batch, True)
    shards = (getattr(loader, "batch_sampler", None), getattr(loader, "dataset", None))
    return batch, any(getattr(shard, "has_only_repeats", False) for shard in shards)
