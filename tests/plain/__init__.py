"""Multi-Head Latent Attention as an engineer would port it, and every known fault made by hand in it.

Nothing here imports mla_lab: these files are what a diagnosis is tried on. Shape alphabet: b batch, t query tokens,
s cached tokens, h heads, d hidden, q query latent, r latent, n nope, p rope, v value.
"""
