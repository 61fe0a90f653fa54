"""What the explorer says of a `Setup`: cache, what fits, roofline, crossover, and which claims say nothing for it."""
from __future__ import annotations

from .. import footprint as fp
from ..report import number
from ..serving.capacity import Deployment
from . import numbers as nb
from . import svg
from .section import Section, each, marks, table
from .setup import Setup
from .speed import crossover, roofline

# the scales of the two pictures, the same whatever is chosen: nothing but a value can move its mark
BYTES = [(10.0**power, f"1{unit}") for power, unit in zip(range(6, 16, 3), (" MB", " GB", " TB", " PB"), strict=True)]
USERS = [(10.0**power, f"{10**power:,}") for power in range(7)]


def sections(setup: Setup) -> dict[str, Section]:
    """All of them; what is impossible in one does not stop the others."""
    return {made.__name__: made(setup) for made in (cache, fit, roofline, crossover, limits)}


def cache(setup: Setup) -> Section:
    """Bytes of a token and of all requests."""
    def row(found: nb.Attention):
        token = setup.layers * nb.row_bytes(setup, found)
        return found, nb.row_bytes(setup, found), token, nb.total_bytes(setup, found)

    made = each(setup, row)
    mha = made[0][1]

    def cells(a, layer, token, total):
        share = fp.percent(total / mha[3]) if mha else "no MHA"
        return a.name, a.formula, number(layer), share, number(token), size(total), fp.gib(total, 2)

    def size(total):
        return fp.gb(total, 2) if total >= 10**7 else f"{total:,} B"  # not 0 GB

    says = [f"Bytes in {setup.dtype} ({fp.CACHE_DTYPES[setup.dtype].layout}); {setup.layers} layers; "
            f"{setup.batch:,} requests of {setup.context:,} tokens. GB is 10^9 B, GiB is 2^30 B. Share: of MHA."]
    mla, gqa = made[3][1], made[1][1]
    if mla and gqa and mla[1] >= gqa[1]:
        says.append(f"MLA saves nothing here: its row of {number(mla[1])} B is not smaller than {gqa[0].name}'s "
                    f"{number(gqa[1])} B.")
    if mla and setup.index_layers:
        says.append(f"Not in the table: index keys of sparse attention in {setup.index_layers} layers, "
                    f"{fp.index_bytes(mla[0].model):,} B a token in fp8. The users that fit count them.")
    if not setup.qk_rope_head_dim:
        says.append("No rope key: no position reaches this attention unless something else brings it.")
    title, memory = "Cache", setup.tp * setup.memory_gb * 10**9
    drawn = svg.scale(title, marks(setup, made, lambda _a, _layer, _token, total: (float(total), size(total))),
                      (BYTES[0][0], BYTES[-1][0]), BYTES,
                      (memory, f"all memory of {setup.tp:,} x {setup.gpu}, {fp.gb(memory, 2)}"))
    return Section(title, ("", "values", "B/token/layer", "share", "B/token", "cache", "cache"),
                   table(setup, made, cells), tuple(says), drawn)


def fit(setup: Setup) -> Section:
    """Users and tokens for which there is memory."""
    def row(found: nb.Attention):
        d = nb.deployment(setup, found)
        return d, d.users(), d.tokens()

    def cells(d, users, tokens):
        return d.model.name, f"{users:,}", f"{float(d.token_bytes_per_gpu()):,.7g}", f"{tokens:,}", d.binding()

    made, share, page = each(setup, row), Deployment.utilization, Deployment.page
    memory, weights = f"{setup.memory_gb:,.7g} GB", f"{setup.weights_gb:,.7g} GB"
    says = [f"{setup.tp} x {setup.gpu} of {memory}, of which {100 * share:g} % for weights and cache; weights of "
            f"{weights} (a model's own: in fp8) dealt out evenly; users of {setup.context:,} tokens in pages of "
            f"{page}. Keys and values are dealt out by head, then copied; a latent has no heads: each GPU keeps all of "
            "it."]
    deployed = made[3][1]
    if deployed:
        room = float(deployed[0].cache_room_per_gpu())
        says.append(f"For the cache of each GPU: {memory} x {share:g} - {weights} / {setup.tp} = {fp.gb(room, 2)}.")
        if deployed[1] < setup.batch:
            says.append(f"{setup.batch:,} requests are more than fit with MLA.")
    drawn = svg.scale("Users that fit",
                      marks(setup, made, lambda _d, users, _tokens: (float(users), f"{users:,} users")),
                      (USERS[0][0], USERS[-1][0]), USERS, (setup.batch, f"requests: {setup.batch:,}"))
    return Section("Users and tokens that fit", ("", "users", "B/token/GPU", "tokens", "what binds"),
                   table(setup, made, cells), tuple(says), drawn)


def limits(setup: Setup) -> Section:
    """Which of the suite's claims say nothing for these dimensions."""
    config, why = nb.reason(setup.config)
    if config is None:
        return Section("Claims that say nothing here", (), (), (f"No claim about MLA applies: {why}",))
    h, n, r, v = (config.num_attention_heads, config.qk_nope_head_dim, config.kv_lora_rank, config.v_head_dim)
    says = []
    if r >= h * n:
        says.append(f"Rank: the keys of all heads are h n = {h * n:,} wide and so have no larger rank, latent or not; "
                    f"a latent of r = {r:,} does not bound it.")
    if r >= h * v:
        says.append(f"Rank: the values of all heads are h v = {h * v:,} wide; a latent of r = {r:,} does not bound "
                    "their rank.")
    if setup.context <= r:
        says.append(f"Rank: {setup.context:,} tokens have no rank above {setup.context:,}; only a context beyond r = "
                    f"{r:,} shows what the latent does.")
    if h == 1:
        says.append("Sharing: with one head MHA is MQA, and there is nothing to share.")
    if config.cached_width >= 2 * h * v:
        says.append(f"Saving: MLA caches r + p = {config.cached_width:,} values, MHA 2 h v = {2 * h * v:,}.")
    return Section("Claims that say nothing here", (), (), tuple(says or ["None: every claim has something to say."]))
