"""A trained dense model gets tables. Needs a text file, input.txt: Tiny Shakespeare (see README).

    python results/dense_to_stem.py rates_text    the best rate to go on with, of each kind of first rows
    python results/dense_to_stem.py rates_facts   the same for facts of the atlas
    python results/dense_to_stem.py tables        each kind at once, and after more training, beside dense
    python results/dense_to_stem.py knife         what else may be a table; how much of it the token explains
    python results/dense_to_stem.py rows          how much text the means need; tokens that it does not have
    python results/dense_to_stem.py editing       what makes a converted model editable

--runs is where the dense models are trained, or found if an earlier call has trained them.
"""

import random
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import common
import numpy as np
from common import best_rates, fit, least_mean_most, recorded, sig
from measures import edit_rates

from ministem import atlas
from ministem.backend import sum_rows
from ministem.config import Config, init_params, shapes
from ministem.data import Corpus, draw_batch, load_corpus, windows_in_order
from ministem.knowledge import means, measure, naming
from ministem.model import FFN, linear_forward, rmsnorm_forward, trunk_forward
from ministem.optim import AdamW
from ministem.run.checkpoint import Run, load_checkpoint, save_checkpoint, start_run, step_folders
from ministem.tables import Tables
from ministem.tokenizer import train_bpe

SHAPE = dict(dim=128, layers=4, heads=4, ffn_dim=384)
DENSE = {  # how the dense models are trained; all learn at 3e-3, and warm up for 50 steps
    "shakespeare": dict(steps=800, batch=16, context=64, vocab_size=2048, weight_decay=1.0),
    "facts": dict(steps=1000, batch=16, context=48, vocab_size=512, weight_decay=0.1),
}
COUNTRIES = 40  # of the atlas, the smaller world of edit.py
MORE = dict(steps=100, warmup=10)  # what comes after it: batches, weight decay and --table-lr stay
LIMIT = 16_384  # tokens of the validation text that are looked at
ALL, HALF = (0, 1, 2, 3), (1, 3)
RATES = (2.5e-4, 5e-4, 1e-3)  # and on, where the best is the first or the last

# --------------------------------------------------------------------------------------- dense models


def small_world(seed):
    """Forty countries, of which the seed chooses the split into training text and questions -> Corpus"""
    short = [c for c in atlas.load() if len(c.name) <= 9 and " " not in c.name]
    names = {c.name for c in random.Random(1).sample(short, COUNTRIES)}
    text, questions = atlas.corpus(seed, [f for f in atlas.facts() if f.country in names])
    names = tuple(" " + name for name in sorted(names))  # a token each
    return Corpus("facts", text, atlas.val_text(questions), names, tuple(questions))


def dense(args, what, seed):
    """The dense model of that text and seed, trained unless an earlier call has done so -> its run, text as
    ids, questions, and how many bytes a token of the validation text has."""
    folder, how = args.runs / f"{what}-{seed}", DENSE[what]
    text = small_world(seed) if what == "facts" else load_corpus(args.text, seed)
    if not step_folders(folder):
        tokenizer = train_bpe(text.train, how["vocab_size"], text.names)
        config = Config(tokenizer.n_vocab, SHAPE["dim"], SHAPE["layers"], SHAPE["heads"], None,
                        SHAPE["ffn_dim"], how["context"], ())  # fmt: skip
        ids = np.array(tokenizer.encode(text.train), "int32")

        def draw(step):
            return draw_batch(ids, how["batch"], how["context"], seed, step - 1)  # train.py counts from 0

        decay = how["weight_decay"]
        model, *_ = fit(config, draw, how["steps"], seed, 3e-3, decay=decay, threads=args.threads)
        optimizer = AdamW()
        optimizer.start(model.params, model.tables)
        run = Run(folder, config, {}, tokenizer, model.params, model.tables)
        start_run(run)
        save_checkpoint(run, optimizer)
    run = load_checkpoint(folder)
    ids, val = (np.array(run.tokenizer.encode(t), "int32") for t in (text.train, text.val))
    return SimpleNamespace(run=run, ids=ids, val=val, val_bytes=len(text.val.encode()) / len(val),
                           questions=text.questions, what=what, seed=seed)  # fmt: skip


def quality(base, model, limit=None):
    """Nats per byte of the validation text (of the first `limit` tokens of it); of facts, recall."""
    if base.what == "facts":
        run = SimpleNamespace(**vars(model) | dict(tokenizer=base.run.tokenizer))
        _, right = measure.recall(run, base.questions)
        return sig(sum(right) / len(right))
    return sig(measure.evaluate(model, base.val, 16, limit) / base.val_bytes)


# ------------------------------------------------------------------------------ dense models with tables


def model_with(base, config, rows=None):
    """A copy of the dense model with the tables of config. rows: [(V,F)] for the layers that have one."""
    run, names = base.run, [name for name in shapes(config)[1] if name != "embed"]
    given = dict(zip(names, rows or (), strict=False))
    new = {n: np.array(given.get(n, np.zeros(shapes(config)[1][n])), "float32") for n in names}
    params = {name: p.copy() for name, p in run.params.items()}
    return SimpleNamespace(params=params, tables=Tables({"embed": run.tables["embed"].copy()} | new),
                           config=config)  # fmt: skip


def converted(base, first, layers):
    """The dense model with tables in these layers, which start as `first` says."""
    run, config = base.run, replace(base.run.config, stem_layers=layers)
    model = model_with(base, config)
    if first == "means":
        means.make_tables(model, run.config, base.ids, layers)
        return model
    _, new = init_params(config, base.seed)
    for i in layers:
        w, embed = model.params.pop(f"layers.{i}.w_up"), run.tables["embed"]
        if first == "Wu embed, normed":
            embed, _ = rmsnorm_forward(embed, run.params[f"layers.{i}.norm2"])
        name = f"layers.{i}.table"
        model.tables[name][...] = new[name] if first == "new" else embed @ w
    return model


def go_on(args, base, model, lr, steps=MORE["steps"], every=25, **how):
    """Train model further, as the dense one was -> curve: [dict(step, quality)]"""
    options = DENSE[base.what]
    B, T, first = options["batch"], model.config.context, options["steps"]  # after what it has read

    def draw(step):
        return draw_batch(base.ids, B, T, base.seed, first + step)

    def evaluate(model):
        return dict(quality=quality(base, model, LIMIT))

    _, curve, *_ = fit(model.config, draw, steps, base.seed, lr, decay=options["weight_decay"],
                       warmup=MORE["warmup"], evaluate=evaluate, every=every, threads=args.threads,
                       model=model, **how)  # fmt: skip
    return curve


VARIANTS = {  # -> first rows, layers
    "dense": None,
    "means, all": ("means", ALL), "Wu embed, all": ("Wu embed", ALL), "new, all": ("new", ALL),
    "means, half": ("means", HALF),
}  # fmt: skip


def variant(base, name):
    return converted(base, *VARIANTS[name]) if VARIANTS[name] else model_with(base, base.run.config)


def rates(args, what):
    """On the model of seed 0. Tables in half of the layers go at the rate of those in all."""
    base, runs = dense(args, what, 0), []

    def loss(name, lr):
        [end] = go_on(args, base, variant(base, name), lr, every=10**6)
        runs.append(dict(model=name, lr=lr, quality=end["quality"]))
        print(runs[-1], flush=True)
        return -end["quality"] if what == "facts" else end["quality"]

    best = best_rates(["dense", "means, all", "Wu embed, all", "new, all"], RATES, loss)
    return dict(shape=SHAPE, dense=DENSE[what], more=MORE, best=best, runs=runs)


def rates_text(args):
    return rates(args, "shakespeare")


def rates_facts(args):
    return rates(args, "facts")


def best_rate(what, name):
    record = recorded(f"dense_to_stem_rates_{'facts' if what == 'facts' else 'text'}")
    return record["best"][name.replace("half", "all")]


def tables(args):
    runs = []
    for seed in range(args.seeds):
        for what in DENSE:
            base = dense(args, what, seed)
            for name in VARIANTS:
                model, lr = variant(base, name), best_rate(what, name)
                n, before = measure.count(model.config), measure.count(base.run.config)
                start, at_once = time.process_time(), quality(base, model, LIMIT)
                seconds = time.process_time() - start
                curve = go_on(args, base, model, lr)
                runs.append(dict(text=what, seed=seed, model=name, lr=lr, at_once=at_once, curve=curve,
                                 flops=sig(n.flops / before.flops), total=n.total, active=n.active,
                                 cpu_seconds_to_evaluate=sig(seconds, 3)))  # fmt: skip
                print({k: v for k, v in runs[-1].items() if k not in ("total", "active")}, flush=True)
    return dict(shape=SHAPE, dense=DENSE, more=MORE, seeds=list(range(args.seeds)),
                summary=summary(runs), runs=runs)  # fmt: skip


def summary(runs):
    """-> {text: {model: least, mean, most at once, after 25 steps, in the end}}"""
    found = {}
    for what in DENSE:
        for name in VARIANTS:
            mine = [run for run in runs if run["text"] == what and run["model"] == name]
            found.setdefault(what, {})[name] = dict(
                lr=mine[0]["lr"], at_once=least_mean_most([run["at_once"] for run in mine]),
                after_25=least_mean_most([run["curve"][0]["quality"] for run in mine]),
                after_100=least_mean_most([run["curve"][-1]["quality"] for run in mine]),
            )  # fmt: skip
    return found


# ------------------------------------------------------------------------------------------- the knife


def silu_ffn_forward(x, slot, block, w_up, w_down):
    """Only here: the table in the place of silu(x Wg)."""
    u, _ = linear_forward(x, w_up)
    return linear_forward(block[slot] * u, w_down)[0], None


def product_ffn_forward(x, slot, block, w_down):
    """Only here: the table in the place of silu(x Wg) * (x Wu), so of all that the layer computes."""
    return linear_forward(block[slot], w_down)[0], None


FFN["silu"] = (silu_ffn_forward, None, ("table", "w_up", "w_down"))
FFN["product"] = (product_ffn_forward, None, ("table", "w_down"))
CUT = {  # kind of FFN -> what its table replaces, of a, sigmoid(a), u as in glu_forward's cache
    "stem": lambda a, s, u: u,
    "gate": lambda a, s, u: a,
    "silu": lambda a, s, u: a * s,
    "product": lambda a, s, u: a * s * u,
}


def activations(base, ids, kinds=CUT):
    """The dense model reads ids -> for each batch: which tokens it has (flat), and {kind, layer: (N,F)}"""
    config = base.run.config
    for inputs, _ in windows_in_order(np.append(ids, 0), 16, config.context):
        _, (_, _, caches, _) = trunk_forward(base.run.params, config, base.run.tables.fetch(inputs))
        yield inputs.reshape(-1), {
            (kind, i): CUT[kind](*ffn[-2]).reshape(inputs.size, -1)
            for i, (*_, ffn) in enumerate(caches) for kind in kinds
        }  # fmt: skip


def sums(base, ids, kinds=CUT):
    """-> n (V,), and the sums of activations by token, {kind, layer: (V,F)}, in float64"""
    V, F, L = base.run.config.vocab_size, SHAPE["ffn_dim"], SHAPE["layers"]
    n, total = np.zeros(V, int), {(kind, i): np.zeros((V, F)) for kind in kinds for i in range(L)}
    for tokens, found in activations(base, ids, kinds):
        n += np.bincount(tokens, minlength=V)
        for key, x in found.items():
            total[key] += sum_rows(x, tokens, V)
    return n, total


def rows_of(n, total, fallback):
    """Means by token; tokens that were never met get `fallback`."""
    return np.where(n[:, None] > 0, total / np.maximum(n, 1)[:, None], fallback)


def knife(args):
    models = []
    for seed in range(args.seeds):
        for what in DENSE:
            base = dense(args, what, seed)
            n, total = sums(base, base.ids)
            one_mean = {key: x.sum(0) / n.sum() for key, x in total.items()}
            by_token = {key: rows_of(n, x, one_mean[key]) for key, x in total.items()}
            result = dict(text=what, seed=seed, dense=quality(base, base.run),
                          explained=explained(base, by_token, one_mean), replaced={})  # fmt: skip
            for kind in CUT:
                same = {key: mean + np.zeros((len(n), 1)) for key, mean in one_mean.items()}
                result["replaced"][kind] = dict(
                    all=cut(base, kind, ALL, by_token), one_mean=cut(base, kind, ALL, same)
                )
                if kind == "stem":
                    result["replaced"][kind]["layers"] = [cut(base, kind, (i,), by_token) for i in ALL]
            models.append(result)
            print(result, flush=True)
    return dict(shape=SHAPE, dense=DENSE, models=models)


def cut(base, kind, layers, rows):
    """The quality with tables of a kind, rows {kind, layer: (V,F)}, in these layers."""
    config = replace(base.run.config, ffn=kind, stem_layers=layers)
    return quality(base, model_with(base, config, [rows[kind, i] for i in layers]))


def explained(base, by_token, one_mean):
    """What share of the variance of each thing its mean by token explains on the validation text (R squared,
    over all features; a token that the training text lacks has the mean of all) -> {kind: [a layer each]}"""
    off, all_off = dict.fromkeys(by_token, 0.0), dict.fromkeys(by_token, 0.0)
    for tokens, found in activations(base, base.val):
        for key, x in found.items():
            off[key] += float(((x - by_token[key][tokens]) ** 2).sum())
            all_off[key] += float(((x - one_mean[key]) ** 2).sum())
    return {kind: [sig(1 - off[kind, i] / all_off[kind, i], 3) for i in ALL] for kind in CUT}


# -------------------------------------------------------------------------- how much text, rare tokens

SHARES = (0, 0.01, 1)


def rows(args):
    """First rows from parts of the training text; what tokens get that are not in it; rare ones shrunken
    towards that by k occurrences more."""
    runs = []
    for seed in range(args.seeds):
        for what in DENSE:
            base = dense(args, what, seed)
            run, config = base.run, replace(base.run.config, stem_layers=ALL)
            V = config.vocab_size
            ups = [run.params[f"layers.{i}.w_up"] for i in ALL]
            norms = [rmsnorm_forward(run.tables["embed"], run.params[f"layers.{i}.norm2"])[0] for i in ALL]
            batch = run.tables.fetch(np.arange(V)[:, None])  # each token is a text
            _, (_, _, caches, _) = trunk_forward(run.params, run.config, batch)
            alone = [ffn[-2][2][:, 0] for *_, ffn in caches]
            embed = [run.tables["embed"] @ w for w in ups]
            normed = [x @ w for x, w in zip(norms, ups, strict=True)]
            for share in SHARES:
                part = base.ids[: max(1, round(share * len(base.ids)))]
                n, total = sums(base, part, ["stem"])
                if not share:
                    n[:] = 0
                    total = {key: 0 * x for key, x in total.items()}
                mean = [total["stem", i].sum(0) / max(1, n.sum()) + np.zeros((V, 1)) for i in ALL]
                zeros = [np.zeros(SHAPE["ffn_dim"])] * len(ALL)
                others = {"Wu embed": embed, "Wu embed, normed": normed, "the token alone": alone}
                if share:
                    others = {"zeros": zeros, "mean of all": mean, **others}
                if share == 1:  # hardly a token of the validation text is new
                    del others["Wu embed, normed"], others["zeros"]
                result = dict(text=what, seed=seed, share=share, tokens=int(n.sum()),
                              dense=quality(base, run, LIMIT), never_seen=int((n == 0).sum()),
                              never_seen_in_val=sig((n[base.val] == 0).mean()),
                              unseen={}, shrunken={})  # fmt: skip
                for name, other in others.items():
                    made = [rows_of(n, total["stem", i], other[i]) for i in ALL]
                    result["unseen"][name] = quality(base, model_with(base, config, made), LIMIT)
                for k in (1, 4) if share else ():
                    made = [(total["stem", i] + k * alone[i]) / (n[:, None] + k) for i in ALL]
                    result["shrunken"][k] = quality(base, model_with(base, config, made), LIMIT)
                runs.append(result)
                print(result, flush=True)
    return dict(shape=SHAPE, dense=DENSE, runs=runs)


# --------------------------------------------------------------------------------------------- editing

LOW, HIGH = 5e-4, 4e-3  # rates: near the best for tables of means, and the best for new ones
RECIPES = {  # first rows; what is done to the names' token embeddings; how much faster tables learn; rate
    "means": ("means", None, 2, LOW),
    "means, tables at 10 times the rate": ("means", None, 10, LOW),
    "means, embedding frozen": ("means", "frozen", 2, LOW),
    "means, names share one embedding": ("means", "shared", 2, LOW),
    "means, names share one embedding, high rate": ("means", "shared", 2, HIGH),
    "means, names shuffled": ("means", "shuffled", 2, LOW),
    "means, names shuffled, high rate": ("means", "shuffled", 2, HIGH),
    "new": ("new", None, 2, HIGH),
    "new, names shuffled": ("new", "shuffled", 2, HIGH),
}


class Shuffled(Tables):
    """Half of the names in a batch have the token embedding of another name there, but their own rows: what
    the answer is can then be told by the rows alone."""

    def __init__(self, arrays, names, seed):
        super().__init__(arrays)
        self.names_, self.rng = names, np.random.default_rng(seed)

    def fetch(self, ids, targets=None):
        batch = super().fetch(ids, targets)
        slot = batch.slots["embed"].copy()
        some = np.argwhere(np.isin(batch.rows[slot], self.names_) & (self.rng.random(slot.shape) < 0.5))
        slot[tuple(some.T)] = slot[tuple(self.rng.permutation(some).T)]
        return replace(batch, slots=batch.slots | {"embed": slot})


def editing(args):
    seeds = []
    for seed in range(args.seeds):
        base = dense(args, "facts", seed)
        countries = sorted({q.country for q in base.questions})
        names = [naming.spelling(base.run.tokenizer, name)[-1] for name in countries]
        assert all(len(naming.spelling(base.run.tokenizer, name)) == 1 for name in countries)
        rng = np.random.default_rng(seed)
        pairs = [tuple(rng.choice(countries, 2, replace=False).tolist()) for _ in range(args.pairs)]
        at_once = edits(base, model := converted(base, "means", ALL), model.tables, pairs)
        seeds.append(dict(seed=seed, recipe="means, at once", **at_once))
        for label, recipe in RECIPES.items():
            seeds.append(dict(seed=seed, recipe=label, **edited(args, base, names, pairs, *recipe)))
            print(seeds[-1], flush=True)
    return dict(shape=SHAPE, dense=DENSE, steps=args.steps, pairs=args.pairs, runs=seeds)


def edited(args, base, names, pairs, first, embedding, table_lr, lr):
    model = converted(base, first, ALL)
    if embedding == "shared":
        model.tables["embed"][names] = model.tables["embed"][names].mean(0)
    own = model.tables
    if embedding == "shuffled":
        model.tables = Shuffled(own.arrays, names, base.seed)
    kept = own["embed"].copy()
    still = {"frozen": np.arange(len(own["embed"])), "shared": names}.get(embedding, [])

    def keep(grads):
        grad = grads["embed"]
        moving = ~np.isin(grad.rows, still)
        return grads | {"embed": replace(grad, rows=grad.rows[moving], values=grad.values[moving])}

    go_on(args, base, model, lr, args.steps, every=10**6, table_lr=table_lr, keep=keep)
    assert (own["embed"][still] == kept[still]).all()
    return dict(lr=lr, **edits(base, model, own, pairs))


def edits(base, model, tables, pairs):
    """Rows exchanged, or the token embedding, or both -> shares of answers that become the other country's"""
    run = SimpleNamespace(**vars(model) | dict(tables=tables, tokenizer=base.run.tokenizer))
    found = dict(recall=quality(base, run))
    for what, layers in dict(rows=list(ALL), embedding=["embed"], both=["embed", *ALL]).items():
        rates = edit_rates(run, pairs, base.questions, layers=layers)
        found[what] = rates["success"]["all"]["share"]
        if what == "rows":
            few = edit_rates(run, pairs[:20], base.questions, write=True)
            found |= dict(kept=rates["kept"]["share"], others=few["others"]["share"])
    return found


if __name__ == "__main__":
    experiments = (rates_text, rates_facts, tables, knife, rows, editing)
    records = {f"dense_to_stem_{experiment.__name__}": experiment for experiment in experiments}
    common.main(__doc__, records, **common.SEEDS, text=(Path("input.txt"), "a text file in UTF-8"),
                runs=(Path("runs/dense_to_stem"), "folder of the dense models"),
                pairs=(60, "of countries"), steps=(150, "of training before editing"))  # fmt: skip
