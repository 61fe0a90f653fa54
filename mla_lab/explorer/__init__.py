"""The explorer: move a dimension, and see what it does to cache, users, roofline and crossover.

`setup` is what a reader can choose, `numbers` what follows from it, `sections` says it in words and tables, `svg` draws
it, and `widgets` puts controls before it. Only `widgets` needs ipywidgets.
"""
