"""Attacks on fine-tuned classifiers with TextAttack's recipes TextFooler, TextBugger and BAE.

A run's model is wrapped (`wrapper`), a recipe is built around it (`recipes`) with the given linguistic resources
(`resources`), and each row is attacked (`loop`). Importing this package does not import TextAttack, which is optional.
"""
