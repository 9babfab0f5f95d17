"""How fast attacks are with this package's model wrapper, beside TextAttack's own wrapper, in the same run.

Each example is attacked by both, one right after the other, in turns the one and the other first. The model, its
weights and device, the recipe and its resources, the seed and the number of tokens at which a text is cut are the same,
and so are all other parts, this package's sentence encoder and masked-language model among them. What differs is the
wrapper. `textattack.models.wrappers.HuggingFaceModelWrapper` pads every text to the limit, and TextAttack's goal hands
it 32 texts at a time, its default. `TaskModelWrapper` is handed all texts of a step, sorts them by length, pads a batch
to its longest text, and computes a text once.

What was computed for one attack (scores, sentence vectors, tags) is forgotten before the next, on both sides. Within an
attack TextAttack's goal has a cache of its own, on both sides, too. What still comes twice is answered from this
package's cache: it counts as scored, and the share of distinct inputs is reported, so that what the cache does can be
told from what the padding does.

    python benchmarks/attack_throughput.py --run FOLDER --recipes textbugger

takes the options of `alignattn robustness`; `--help` lists them.
"""

import copy
import sys
import time
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from throughput_report import (
    THROUGHPUT_FILE,
    PairedAttack,
    TimedAttack,
    summarise_throughput,
    throughput_table,
)
from torch import Tensor
from tqdm import tqdm  # type: ignore[import-untyped]
from transformers import PreTrainedTokenizerBase

from alignattn.cli import USER_ERROR_EXIT_CODE
from alignattn.commands.robustness.options import AttackOptions
from alignattn.commands.robustness.targets import Target, target_loaders
from alignattn.robustness.batches import ModelInputs
from alignattn.robustness.library import check_textattack, load_textattack
from alignattn.robustness.loop import AttackRow, attack_row, pass_whole_steps
from alignattn.robustness.recipes import build_attack
from alignattn.robustness.records import AttackSettings
from alignattn.robustness.resources import Resources
from alignattn.robustness.wrapper import TaskModelWrapper
from alignattn.utils.command_line import build_parser, read_words
from alignattn.utils.errors import AlignAttnError
from alignattn.utils.files import check_free, write_csv
from alignattn.utils.option import Count, OutputDir, option
from alignattn.utils.options import resolve

PROG = "attack_throughput"


@dataclass(frozen=True, kw_only=True)
class ThroughputOptions(AttackOptions):
    """The options of the comparison."""

    num_examples: Count = option(
        20, "Examples that each recipe attacks twice; rows the model gets wrong are passed by."
    )
    min_words: int = option(0, "Attack rows of at least so many words alone.", low=0)
    output_dir: OutputDir = option("throughput", f"Folder for {THROUGHPUT_FILE}.")


class MeteredWrapper:
    """A model wrapper of TextAttack that says what it was asked and how long it took.

    Args:
        wrapper: what is measured.

    Attributes:
        seconds: that it took since `reset`, the transfer of scores to the CPU included.
        texts: that it was asked to score since then, in order.
    """

    def __init__(self, wrapper: Any) -> None:
        self._wrapper = wrapper
        self.model = wrapper.model
        self.reset()

    def __call__(self, texts: Sequence[Any]) -> Tensor:
        """Return what the wrapper returns, on the CPU."""
        start = time.perf_counter()
        scores: Tensor = self._wrapper(texts).cpu()
        self.seconds += time.perf_counter() - start
        self.texts.extend(texts)
        return scores

    def reset(self) -> None:
        """Start to measure anew."""
        self.seconds = 0.0
        self.texts: list[Any] = []

    def clear_cache(self) -> None:
        """Have the wrapper forget its scores, if it keeps any."""
        if isinstance(self._wrapper, TaskModelWrapper):
            self._wrapper.clear_cache()


@dataclass(frozen=True)
class MeteredAttack:
    """A recipe around a metered wrapper.

    Attributes:
        attack: a `textattack.Attack`.
        meter: its model wrapper.
        tokenizer: the model's.
        max_length: the most tokens that the model reads of a row.
    """

    attack: Any
    meter: MeteredWrapper
    tokenizer: PreTrainedTokenizerBase
    max_length: int

    def run(self, row: AttackRow, settings: AttackSettings) -> TimedAttack:
        """Attack a row, and return how long it took.

        Raises:
            AlignAttnError: as `attack_row`; if the attack broke off.
        """
        self.meter.reset()
        start = time.perf_counter()
        record = attack_row(self.attack, row, settings)
        seconds = time.perf_counter() - start
        if record.error is not None:
            raise AlignAttnError(f"row {row.index} cannot be attacked, so there is nothing to compare: {record.error}")
        last = tuple((record.perturbed or record.original).values())
        *inputs, last_input = self._keys([*self.meter.texts, last])
        return TimedAttack(seconds, self.meter.seconds, tuple(inputs), record, last_input)

    def _keys(self, texts: Sequence[str | tuple[str, ...]]) -> list[Hashable]:
        columns = zip(*((text,) if isinstance(text, str) else text for text in texts), strict=True)
        return ModelInputs.of(self.tokenizer, list(columns), self.max_length).keys()


def main(argv: Sequence[str]) -> int:
    """Run the comparison and return its exit code: 0, or 2 with one line for a mistake a user can mend."""
    try:
        throughput(read_options(argv))
    except AlignAttnError as error:
        print(f"{PROG}: {error}", file=sys.stderr)
        return USER_ERROR_EXIT_CODE
    return 0


def read_options(argv: Sequence[str]) -> ThroughputOptions:
    """Return the options that a command line gives."""
    return resolve(ThroughputOptions, read_words(ThroughputOptions, argv, build_parser(ThroughputOptions, PROG)))


def throughput(arguments: ThroughputOptions) -> list[PairedAttack]:
    """Attack the same examples with both wrappers; write a line for each pair as it comes, and print what was found.

    Raises:
        AlignAttnError: for every mistake a user can mend.
    """
    check_textattack()
    folder, resources = Path(arguments.output_dir), arguments.resources()
    check_free(folder, [THROUGHPUT_FILE])
    loaders = target_loaders(arguments)
    if len(loaders) > 1:
        raise AlignAttnError(f"--run names {len(loaders)} folders: give one, the wrappers are what is compared")
    target = loaders[0]()
    ours = target.wrapper(arguments)
    rows = rows_to_attack(ours, target, arguments)
    pairs: list[PairedAttack] = []
    with tqdm(total=len(arguments.recipes) * len(rows), desc="pairs of attacks") as bar:
        for recipe in arguments.recipes:
            settings = target.settings(recipe, arguments, resources.describe(recipe))
            with_ours = _metered(recipe, ours, target, resources, arguments)
            pass_whole_steps(with_ours.attack)
            textattacks = _textattack_wrapper(target, resources, arguments)
            with_textattacks = _metered(recipe, textattacks, target, resources, arguments)
            for row in rows:
                is_second = len(pairs) % 2 == 1
                pairs.append(attack_twice(with_ours, with_textattacks, row, settings, textattack_first=is_second))
                write_csv(folder / THROUGHPUT_FILE, (pair.line() for pair in pairs))
                bar.update()
    print(throughput_table(summarise_throughput(pairs), str(target.model.device), target.max_length(arguments)))
    print(f"written to {folder / THROUGHPUT_FILE}")
    return pairs


def rows_to_attack(wrapper: TaskModelWrapper, target: Target, arguments: ThroughputOptions) -> list[AttackRow]:
    """Return the first rows that are long enough and that the model gets right, `num_examples` of them at most.

    Raises:
        AlignAttnError: if there is none.
    """
    found: list[AttackRow] = []
    for row in target.rows:
        if sum(len(text.split()) for text in row.texts.values()) < arguments.min_words:
            continue
        if int(wrapper([tuple(row.texts.values())]).argmax()) == row.label:
            found.append(row)
        if len(found) == arguments.num_examples:
            break
    if not found:
        raise AlignAttnError(
            f"the model gets no row of {target.task.name} {target.split} of --min_words {arguments.min_words} right: "
            "there is nothing to attack"
        )
    return found


def attack_twice(
    ours: MeteredAttack, textattack: MeteredAttack, row: AttackRow, settings: AttackSettings, *, textattack_first: bool
) -> PairedAttack:
    """Attack a row by both, and return what each took."""
    if textattack_first:
        second = textattack.run(row, settings)
        return PairedAttack(row.index, settings.recipe, textattack_first, ours.run(row, settings), second)
    return PairedAttack(
        row.index, settings.recipe, textattack_first, ours.run(row, settings), textattack.run(row, settings)
    )


def _metered(
    recipe: str, wrapper: Any, target: Target, resources: Resources, arguments: ThroughputOptions
) -> MeteredAttack:
    meter = MeteredWrapper(wrapper)
    attack = build_attack(recipe, meter, resources, arguments.attack_columns, half_precision=arguments.half_precision)
    return MeteredAttack(attack, meter, target.tokenizer, target.max_length(arguments))


def _textattack_wrapper(target: Target, resources: Resources, arguments: ThroughputOptions) -> Any:
    """TextAttack's own wrapper of the same model; it cuts and pads texts to the length that the tokenizer names."""
    library = load_textattack(resources.nltk_data)
    tokenizer = copy.deepcopy(target.tokenizer)
    tokenizer.model_max_length = target.max_length(arguments)
    return library.models.wrappers.HuggingFaceModelWrapper(target.model, tokenizer)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
