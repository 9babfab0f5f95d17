"""Balance a tiny model in one of several processes, each on its share of the batches. Run by test_balance."""

import sys

import torch
import torch.distributed as dist
from conftest import tiny_batch, tiny_model
from torch.nn.parallel import DistributedDataParallel

import alignattn

BATCHES, HELD_BACK = range(4), 9


def balanced(rank, world, *, wrap=lambda model: model):
    """A model and the report of its balancing."""
    model = tiny_model("bert").double()
    batches = [tiny_batch(batch=8, length=12, seed=seed) for seed in BATCHES][rank::world]
    report = alignattn.balance(wrap(model), batches, held_back=[tiny_batch(seed=HELD_BACK)])
    return model, report


if __name__ == "__main__":
    store, out, rank, world = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    dist.init_process_group("gloo", store=dist.FileStore(store, world), rank=rank, world_size=world)
    model, report = balanced(rank, world, wrap=DistributedDataParallel)
    try:
        # The last process has no batches.
        alignattn.balance(model, [tiny_batch(seed=seed) for seed in range(world - 1 - rank)])
        refusal = ""
    except alignattn.AlignAttnError as error:
        refusal = str(error)
    torch.save({"state": model.state_dict(), "tokens": report.tokens, "refusal": refusal}, f"{out}-{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()
