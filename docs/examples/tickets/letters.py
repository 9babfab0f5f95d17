"""Write generated letters to a shop: three topics, one of them rare, in texts longer than most models read.

    python docs/examples/tickets/letters.py tickets

writes `train.tsv`, `validation.tsv`, `calibration.tsv` and `new.tsv` to the folder, with the columns `text`, `channel`
and `topic` (`new.tsv` has its topics in `new-topics.txt`).
"""

import csv
import random
import sys
from pathlib import Path

SHARES = {"delivery": 0.62, "refund": 0.35, "fraud": 0.03}
DECISIVE = {
    "delivery": ["my parcel has not come", "the courier left the box in the rain", "the package is still at the depot"],
    "refund": ["i want my money back", "please take the shoes back and pay me", "i return the lamp for its price"],
    "fraud": ["somebody else ordered with my card", "i never made this purchase", "my account was used by a stranger"],
}
FILLER = [
    "i have been a customer for years",
    "the shop in our street has closed",
    "my sister told me about your offers",
    "the weather was bad all week",
    "we moved to another flat in spring",
    "your catalogue is on my table",
    "the colour was nicer in the picture",
    "i called twice and nobody answered",
    "thank you for the kind letter",
    "the new opening hours suit us well",
    "our dog likes the carton most",
    "i hope that you are all well",
]
REMEMBERED = "last year i wrote because"
"""Before the sentence of another topic, which does not decide."""
CHANNELS = {"mail": (4, 14), "letter": (10, 60), "form": (1, 6)}
"""Each channel's number of sentences."""
MISLEADING, MISFILED = 0.25, 0.05
"""Shares of the letters that also mention another topic, and that are filed under a wrong one."""
ROWS = {"train": 1200, "validation": 400, "calibration": 600, "new": 400}


def letter(drawn: random.Random) -> tuple[str, str, str]:
    """Return a text, its channel and its topic."""
    (topic,) = drawn.choices(list(SHARES), list(SHARES.values()))
    channel = drawn.choice(list(CHANNELS))
    sentences = drawn.choices(FILLER, k=drawn.randint(*CHANNELS[channel]))
    sentences.insert(drawn.randint(0, len(sentences)), drawn.choice(DECISIVE[topic]))
    if drawn.random() < MISLEADING:
        other = drawn.choice([name for name in SHARES if name != topic])
        sentences.insert(drawn.randint(0, len(sentences)), f"{REMEMBERED} {drawn.choice(DECISIVE[other])}")
    if drawn.random() < MISFILED:
        topic = drawn.choice(["delivery", "refund"])
    return ". ".join(sentences) + ".", channel, topic


def main(folder: Path) -> None:
    """Write the files."""
    folder.mkdir(parents=True, exist_ok=True)
    drawn = random.Random(0)  # noqa: S311
    for name, count in ROWS.items():
        letters = [letter(drawn) for _ in range(count)]
        with (folder / f"{name}.tsv").open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, delimiter="\t")
            if name == "new":
                writer.writerows([("text", "channel"), *(row[:2] for row in letters)])
                (folder / "new-topics.txt").write_text("".join(f"{row[2]}\n" for row in letters))
            else:
                writer.writerows([("text", "channel", "topic"), *letters])


if __name__ == "__main__":
    main(Path(sys.argv[1]))
