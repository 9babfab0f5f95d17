"""Speed of attacks with this package's model wrapper, compared with TextAttack's wrapper in the same run.

Each example is attacked with both wrappers, one right after the other, in alternating order. The model, its weights and
device, the recipe and its resources, the seed and the maximum number of tokens are the same, and so are all other
parts, including this package's sentence encoder and masked-language model. Only the wrapper differs.
`textattack.models.wrappers.HuggingFaceModelWrapper` pads every text to the limit, and TextAttack's goal passes it 32
texts at a time, the default. `TaskModelWrapper` receives all texts of a step, sorts them by length, pads a batch to its
longest text, and computes each text once.

The results of one attack (scores, sentence vectors, tags) are cleared before the next, on both sides. Within an attack,
TextAttack's goal has its own cache, also on both sides. Remaining repetitions are answered from this package's cache:
they count as scored, and the share of distinct inputs is reported, to separate the effect of the cache from that of the
padding.

    python benchmarks/attack_throughput.py --run FOLDER --recipes textbugger

accepts the options of `alignattn robustness`; `--help` lists them.
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
from alignattn.commands.robustness import RobustnessOptions, Target, target_loaders
from alignattn.robustness.library import check_textattack, load_textattack
from alignattn.robustness.loop import AttackRow, attack_row
from alignattn.robustness.models import ModelInputs, TaskModelWrapper
from alignattn.robustness.recipes import build_attack
from alignattn.robustness.records import AttackSettings
from alignattn.robustness.resources import Resources
from alignattn.utils.errors import AlignAttnError
from alignattn.utils.files import write_csv
from alignattn.utils.options import Count, OutputDir, build_parser, option, read_words, resolve
from alignattn.utils.paths import check_free

PROG = "attack_throughput"


@dataclass(frozen=True, kw_only=True)
class ThroughputOptions(RobustnessOptions):
    """The options of the comparison."""

    num_examples: Count = option(
        20, "Examples that each recipe attacks twice; rows that the model gets wrong are skipped."
    )
    min_words: int = option(0, "Minimum number of words of an attacked row.", low=0)
    output_dir: OutputDir = option("throughput", f"Folder for {THROUGHPUT_FILE}.")


class MeteredWrapper:
    """A model wrapper of TextAttack that records its texts and its time.

    Args:
        wrapper: the measured wrapper.

    Attributes:
        seconds: time in the wrapper since `reset`, including the transfer of scores to the CPU.
        texts: texts to score since `reset`, in order.
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
        """Restart the measurement."""
        self.seconds = 0.0
        self.texts: list[Any] = []

    def clear_cache(self) -> None:
        """Clear the wrapper's cache of scores, if it has one."""
        if isinstance(self._wrapper, TaskModelWrapper):
            self._wrapper.clear_cache()


@dataclass(frozen=True)
class MeteredAttack:
    """A recipe around a metered wrapper.

    Attributes:
        attack: a `textattack.Attack`.
        meter: its model wrapper.
        tokenizer: tokenizer of the model.
        max_length: maximum number of tokens of a row.
    """

    attack: Any
    meter: MeteredWrapper
    tokenizer: PreTrainedTokenizerBase
    max_length: int

    def run(self, row: AttackRow, settings: AttackSettings) -> TimedAttack:
        """Attack a row, and return the timed attack.

        Raises:
            AlignAttnError: as `attack_row` does, and if the attack fails with an error.
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
    """Run the comparison and return its exit code: 0, or 2 and one line for an error of the user."""
    try:
        throughput(read_options(argv))
    except AlignAttnError as error:
        print(f"{PROG}: {error}", file=sys.stderr)
        return USER_ERROR_EXIT_CODE
    return 0


def read_options(argv: Sequence[str]) -> ThroughputOptions:
    """Return the options of a command line."""
    return resolve(ThroughputOptions, read_words(ThroughputOptions, argv, build_parser(ThroughputOptions, PROG)))


def throughput(arguments: ThroughputOptions) -> list[PairedAttack]:
    """Attack the same examples with both wrappers; write a line after each pair, and print a table.

    Raises:
        AlignAttnError: for every error of the user.
    """
    check_textattack()
    folder, resources = Path(arguments.output_dir), arguments.resources()
    check_free(folder, [THROUGHPUT_FILE])
    loaders = target_loaders(arguments)
    if len(loaders) > 1:
        raise AlignAttnError(f"--run names {len(loaders)} folders: give one, because only wrappers are compared")
    target = loaders[0]()
    ours = target.wrapper(arguments)
    rows = rows_to_attack(ours, target, arguments)
    pairs: list[PairedAttack] = []
    with tqdm(total=len(arguments.recipes) * len(rows), desc="pairs of attacks") as bar:
        for recipe in arguments.recipes:
            settings = target.settings(recipe, arguments, resources.describe(recipe))
            with_ours = _metered(recipe, ours, target, resources, arguments)
            # As `attack_rows` does.
            with_ours.attack.goal_function.batch_size = sys.maxsize
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
    """Return the first `num_examples` rows that are long enough and that the model gets right.

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
    """Attack a row with both wrappers, and return both timed attacks."""
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
    """TextAttack's wrapper of the same model; it truncates and pads texts to the tokenizer's `model_max_length`."""
    library = load_textattack()
    tokenizer = copy.deepcopy(target.tokenizer)
    tokenizer.model_max_length = target.max_length(arguments)
    return library.models.wrappers.HuggingFaceModelWrapper(target.model, tokenizer)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
