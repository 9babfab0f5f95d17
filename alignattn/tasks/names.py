"""The names that files, rows and batches of tasks use: columns, endings, splits, ways to read and to sample."""

from pathlib import Path

MAX_TEXTS = 2
"""Maximum number of texts that a tokenizer joins into one sequence."""

MAX_CLASSES = 10_000
"""Maximum number of distinct labels; columns with more hold free text or row numbers."""

CONLL = ".conll"
TABLES = (".csv", ".tsv", ".json", ".jsonl", ".parquet")
"""Endings of tables; all but the last may be compressed."""
TEXT_FILE = ".txt"
TEXT_FILES = (TEXT_FILE, *TABLES)
"""Endings of files of unlabelled texts: one text per line, or a table."""
PICTURES = (".bmp", ".gif", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp")
"""Endings of the pictures in a folder."""
NPZ = ".npz"
"""The ending of a graph's file."""

TEXT, LABEL = "text", "label"
"""The columns of a folder of texts."""
TOKENS, TAGS = "tokens", "ner_tags"
"""The columns of a CoNLL file."""
IMAGE, QUESTION = "image", "question"
"""Columns: the file of a picture or of the features of its regions, and the question about it."""
ANSWER_IDS, ANSWER_SCORES = "answer_ids", "answer_scores"
"""Columns: people's answers to a question as class numbers, and the accuracy of each."""
GRAPH, NODE = "graph", "node"
"""Columns: the file of a graph, and the number of a node in it."""
PROBABILITIES = "probabilities"
"""The column of the probabilities of all classes in predictions."""

TRUNCATE, WINDOWS = "truncate", "windows"
"""What to do with texts longer than the model: truncate them, or read all of them in overlapping windows."""

WINDOW_OF, IS_TRUNCATED = "window_of", "is_truncated"
"""Columns of windows: the number of the row, and whether its shorter text or its question is truncated."""
WINDOW_COUNTS = "window_counts"
"""Key of a training batch of windows: the number of windows of each row, `[B]`, in the order of the windows."""

DRAWN, FIRST, BY_SEED = "drawn", "first", "seed"
"""How to sample rows: a fixed sample, the first rows, or a sample per seed."""

TRAIN = "train"
VALIDATION = "validation"
TEST = "test"


def is_picture(path: Path) -> bool:
    """Return whether a file's name is that of a picture; hidden files are excluded."""
    return path.suffix.lower() in PICTURES and not path.name.startswith(".")
