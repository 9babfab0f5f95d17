"""Attacks on fine-tuned classifiers with TextAttack's own recipes: TextFooler, TextBugger and BAE.

TextAttack is optional: importing this package imports none of it. The way through: a run's model is wrapped
(`wrapper`), a recipe is built around it (`recipes`) from the linguistic resources that are given (`resources`), and
each row is attacked.
"""
