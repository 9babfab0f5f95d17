"""The record of a task of nodes."""

from dataclasses import dataclass

from alignattn.tasks.task import TEST, VALIDATION, LabelledTask

GRAPH, NODE = "graph", "node"
"""Columns of a row: the file of its graph, and its number there."""


@dataclass(frozen=True, kw_only=True)
class NodeClassification(LabelledTask):
    """Classification of the nodes of a graph: a row is a node, and what a model reads of it is the graph around it.

    Attributes:
        planetoid: Its name in torch-geometric's loader of that collection, which reads it where no file is given.
    """

    kind = "node-classification"
    implementation = "alignattn.tasks.nodes.processor:NodeProcessor"

    evaluation_splits: tuple[str, ...] = (VALIDATION, TEST)
    planetoid: str = ""

    @property
    def input_columns(self) -> tuple[str, ...]:
        """The graph and the node."""
        return GRAPH, NODE

    def problem(self) -> str | None:
        """Return that nodes have classes, or what is wrong as for every labelled task."""
        if self.is_regression:
            return "labels must be two or more: nodes have classes here, and no scores"
        return super().problem()
