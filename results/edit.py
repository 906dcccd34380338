"""Rates of knowledge editing, as JSON beside this file. The numbers in the lessons come from here.

    python results/edit.py first      lesson 01: Spain reads the rows of Germany, in four ways
    python results/edit.py rates      the default atlas model: overrides and row edits
    python results/edit.py names      names of several tokens: which way to handle lengths?
    python results/edit.py layers     which layers are STEM, and where is a fact read from?
    python results/edit.py patch      ten invented countries, taught by rows alone

--runs is where the default models are trained, or found if an earlier call has trained them.
"""

import random
import subprocess
import sys
import time
from dataclasses import asdict
from itertools import permutations
from pathlib import Path
from types import SimpleNamespace

import common
import numpy as np
from common import fit
from measures import edit_rates

from ministem import atlas, backend
from ministem.config import Config
from ministem.data import draw_batch, load_corpus
from ministem.knowledge import edit, measure, naming
from ministem.run import checkpoint
from ministem.tokenizer import train_bpe

CPU = backend.device_array("cpu")


def default_run(args, seed):
    """The default model with that seed, trained by train.py unless an earlier call has done so."""
    folder = args.runs / f"atlas-{seed}"
    if not checkpoint.step_folders(folder):
        # saved at the end alone: a run that was interrupted is trained again
        train(args, "--seed", seed, "--eval-every", 10**6, "--out", folder)
    return checkpoint.load_checkpoint(folder)


def train(args, *options):
    args.runs.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, common.ROOT / "train.py", "--threads", args.threads, *options]
    subprocess.run(list(map(str, command)), check=True, stdout=subprocess.DEVNULL)


def settings_of(run):
    return dict(steps=run.step, **asdict(run.config))


def random_pairs(countries, n, seed):
    """n ordered pairs of different countries, drawn at random."""
    pairs = list(permutations(sorted(countries), 2))
    return random.Random(seed).sample(pairs, min(n, len(pairs)))


def recall(run, questions):
    shares, right = measure.recall(run, questions)
    return shares | {"all": sum(right) / len(right)}


# ------------------------------------------------------------------------------- the default model

PROMPT = "The capital of {} is"
# what is overridden -> how far from the country's position, and in which layers
WAYS = {
    "the country, all four layers": (0, None),
    "the word before it, all four layers": (-1, None),
    "the country, the last layer only": (0, [3]),
    "the country, the token embedding only": (0, ["embed"]),
}


def first(args):
    seeds = [first_edit(args, seed) for seed in range(args.seeds)]
    return dict(settings=settings_of(default_run(args, 0)), seeds=seeds)


def first_edit(args, seed):
    """One prompt about 400 pairs of countries: the likeliest next token, and of Spain=Germany the odds."""
    run = default_run(args, seed)
    capital = {c.name: c.capital for c in atlas.load()}
    pairs = [("Spain", "Germany")]
    pairs += [p for p in random_pairs(capital, args.pairs + 1, seed) if p != pairs[0]][: args.pairs]
    texts = [run.tokenizer.encode(PROMPT.format(old)) for old, _ in pairs]
    answer = {name: run.tokenizer.encode(f" {city}")[0] for name, city in capital.items()}
    result = dict(seed=seed, tokens=[run.tokenizer.shown(id) for id in texts[0]], odds={}, share={})

    def ask(changes, layers):
        """-> top (pairs,): the likeliest next token; odds of the five likeliest for the first pair"""
        top, odds = np.zeros(len(texts), int), None
        for group, logits in measure.batches(run, texts, changes, layers):
            for row, j in zip(logits, group, strict=True):
                last = row[len(texts[j]) - 1].astype("float64")
                top[j] = last.argmax()
                if j == 0:
                    p = np.exp(last - last.max())
                    p /= p.sum()
                    odds = {run.tokenizer.shown(i): float(p[i]) for i in np.argsort(-p)[:5].tolist()}
        return top, odds

    top, result["odds"]["no override"] = ask(None, None)
    # only where the model knows the answer, and the other answer does not begin with the same token
    known = [j for j, (old, new) in enumerate(pairs) if top[j] == answer[old] != answer[new]]
    for way, (offset, layers) in WAYS.items():
        changes = [
            [(t + offset, rows) for t, rows in naming.plan(run.tokenizer, PROMPT.format(old), [(old, new)])]
            for old, new in pairs
        ]
        top, result["odds"][way] = ask(changes, layers)
        result["share"][way] = dict(
            new=float(np.mean([top[j] == answer[pairs[j][1]] for j in known])),
            old=float(np.mean([top[j] == answer[pairs[j][0]] for j in known])),
            of=len(known),
        )
    print(result, flush=True)
    return result


# how much of a fact is in which table: edit only some, and the token embedding, which is no STEM table
LAYERS = [0], [1], [2], [3], [0, 1], [1, 2, 3], [0, 1, 2], ["embed"], ["embed", 0, 1, 2, 3]


def rates(args):
    seeds = []
    for seed in range(args.seeds):
        run, questions = default_run(args, seed), load_corpus("atlas", seed).questions
        pairs = random_pairs({q.country for q in questions}, args.pairs, seed)
        result = dict(seed=seed, recall=recall(run, questions))
        start = time.perf_counter()
        result["override"] = edit_rates(run, pairs, questions)
        result["override_seconds"] = round(time.perf_counter() - start, 1)
        result["row_edit"] = edit_rates(run, pairs, questions, write=True)
        result["override_by_layers"] = {}
        for layers in LAYERS:
            success = edit_rates(run, pairs[:150], questions, layers=layers)["success"]
            result["override_by_layers"][",".join(map(str, layers))] = success["all"]
        seeds.append(result)
        print(result, flush=True)
    return dict(settings=settings_of(run), pairs=args.pairs, seeds=seeds)


# ------------------------------------------------------------------------- a world of forty countries


def small_world(seed, whole_names):
    """Forty countries, of which the seed chooses the split into training text and questions.

    -> training text, questions, and the names that the tokenizer keeps whole"""
    short = [c for c in atlas.load() if len(c.name) <= 9 and " " not in c.name]
    names = {c.name for c in random.Random(1).sample(short, 40)}
    text, questions = atlas.corpus(seed, [f for f in atlas.facts() if f.country in names])
    return text, questions, [" " + name for name in sorted(names)] if whole_names else []


SMALL = dict(dim=128, n_layers=4, n_heads=4, context=48)
SMALL_TRAINING = dict(steps=800, batch=16, lr=3e-3, table_lr=2.0)


def small_run(args, seed, vocab_size, text, whole_names, stem_layers=(0, 1, 2, 3)):
    """Train a model on a small world, with the bits of train.py -> what edit_rates needs of a run."""
    tokenizer = train_bpe(text, vocab_size, whole_names)
    config = Config(tokenizer.n_vocab, **SMALL, stem_layers=stem_layers)
    ids = np.array(tokenizer.encode(text), dtype="int32")
    training = dict(SMALL_TRAINING)
    B = training.pop("batch")

    def draw(step):
        return draw_batch(ids, B, config.context, seed, step - 1)  # train.py counts from 0

    model, *_ = fit(config, draw, seed=seed, threads=args.threads, **training)
    return SimpleNamespace(**vars(model), tokenizer=tokenizer)


def names(args):
    """V=500: names take 2 to 5 tokens. Overrides and row edits, by what is done about lengths."""
    seeds = []
    for seed in range(args.seeds):
        text, questions, whole_names = small_world(seed, whole_names=False)
        run = small_run(args, seed, 500, text, whole_names)
        countries = sorted({q.country for q in questions})
        lengths = {name: len(naming.spelling(run.tokenizer, name)) for name in countries}
        pairs = random_pairs(countries, args.pairs, seed)
        result = dict(seed=seed, lengths=lengths, recall=recall(run, questions), how={})
        for how in naming.HOW[2:]:  # auto is one of these; one-to-one is what most do at equal lengths
            result["how"][how] = dict(
                override=edit_rates(run, pairs, questions, how),
                # row edits go a pair at a time: a part of the pairs has to do
                row_edit=edit_rates(run, pairs[: args.pairs // 5], questions, how, write=True),
            )
        # where lengths are equal, this is then the other prompt: what the model can do at best
        everything = ["embed", *run.config.stem_layers]
        result["auto, with the token embedding"] = edit_rates(run, pairs, questions, layers=everything)
        seeds.append(result)
        print(result, flush=True)
    return dict(settings=SMALL | SMALL_TRAINING | dict(vocab_size=500), pairs=args.pairs, seeds=seeds)


def layers(args):
    """Which layers are STEM; and what happens if the token embedding is exchanged instead, or as well."""
    models = []
    for seed in range(args.seeds):
        text, questions, whole_names = small_world(seed, whole_names=True)
        pairs = random_pairs({q.country for q in questions}, args.pairs // 2, seed)
        for stem in ((0, 1, 2, 3), (1, 2, 3), (1, 3), (2, 3), (1,)):
            run = small_run(args, seed, 512, text, whole_names, stem)
            known, stem_layers = recall(run, questions)["all"], ",".join(map(str, stem))
            about = dict(stem_layers=stem_layers, seed=seed, recall=known)
            tables = dict(rows=[*stem], embedding=["embed"], both=["embed", *stem])
            models.append(about | {what: edit_rates(run, pairs, questions, layers=which)["success"]
                                   for what, which in tables.items()})  # fmt: skip
            print(models[-1], flush=True)
    settings = SMALL | SMALL_TRAINING | dict(vocab_size=512)
    return dict(settings=settings, pairs=args.pairs // 2, models=models)


# ----------------------------------------------------------------------------------------- patches

FREE = "Drovia Burwanda Slovuna Penani Delkara Seroba Lankistani Dompala Turkhala Amtoria".split()
SHARED = ["South sea", "North star", "New globe", "Cape road", "Saint purse", "Costa coin", "Sao map",
          "Papua trip", "Saudi shop", "Sri price"]  # fmt: skip
VARIANTS = {
    "free names": FREE,  # spelled by tokens that no old sentence has: nothing else reads these rows
    "shared tokens": SHARED,  # of words and names that old sentences have
}
PATCH = dict(steps=200, batch=16, lr=3e-3, table_lr=5.0, warmup=10)
OLD_SENTENCES = 2000  # beside the new ones, or the ten would be all there is in a window, as in no question


def invented(names):
    """Ten countries with a capital, a language, a currency and a continent each -> facts."""
    answers = dict(
        capital="Oslo Lima Cairo Riga Seoul Dakar Dublin Kabul Lisbon Quito",
        language="Thai Swahili Polish Urdu Greek Spanish Dutch Khmer French Arabic",
        currency="yen zloty birr rand baht kip lek dram naira tenge",
        continent="Europe Africa Asia Africa Asia Europe Asia Oceania Asia Africa",
    )
    columns = [answers[relation].split() for relation in atlas.ASKED]
    for name, *row in zip(names, *columns, strict=True):
        yield from (atlas.Fact(name, *fact) for fact in zip(atlas.ASKED, row, strict=True))


def patch(args):
    """What a patch of rows can teach, what it costs, and what it does to all the rest."""
    run, corpus = default_run(args, 0), load_corpus("atlas", 0)
    used = set(run.tokenizer.encode(corpus.train + corpus.val))
    free = set(range(run.tokenizer.eot)) - used
    before, patches = recall(run, corpus.questions), []
    for variant, names in VARIANTS.items():
        for seed in range(args.seeds):
            patches.append(one_patch(args, run, free, corpus, variant, seed, names))
            print(patches[-1], flush=True)
    return dict(base=settings_of(run), settings=PATCH, old_before=before, patches=patches)


def one_patch(args, run, free, corpus, variant, seed, names):
    new_text, new_questions = atlas.corpus(seed, list(invented(names)))
    lines = new_text.splitlines() + random.Random(seed).sample(corpus.train.splitlines(), OLD_SENTENCES)
    random.Random(seed).shuffle(lines)
    stem = f"{variant} {seed}".replace(" ", "-")
    facts, file, out = (args.runs / f"{stem}{end}" for end in (".txt", ".safetensors", ""))
    facts.write_text("\n".join(lines) + "\n", "utf-8")
    options = [word for name, value in PATCH.items() for word in ("--" + name.replace("_", "-"), value)]
    start = time.perf_counter()
    train(args, "--init-from", run.folder, "--tables-only", "--data", facts, "--rows", ",".join(names),
          "--save-patch", file, "--out", out, "--seed", seed, *options)  # fmt: skip
    seconds = time.perf_counter() - start
    bytes_before = {name: run.tables[name].tobytes() for name in run.tables.names}
    taught = edit.Patch.load(file)
    taught.check(run)
    new_before = recall(run, new_questions)
    with edit.applied([taught], run.tables):
        new_after, old_after = recall(run, new_questions), recall(run, corpus.questions)
    return dict(
        variant=variant, seed=seed, sentences=len(lines), seconds=round(seconds, 1),
        bytes=file.stat().st_size, tokens=len(taught.describe(run.tokenizer)),
        new_before=new_before, new_after=new_after, old_after=old_after,
        spelled_freely=sum(set(naming.spelling(run.tokenizer, name)) <= free for name in names),
        reverted_to_the_byte=all(run.tables[n].tobytes() == b for n, b in bytes_before.items()),
    )  # fmt: skip


if __name__ == "__main__":
    records = dict(first_edit=first, edit_rates=rates, edit_names=names, edit_layers=layers, patch=patch)
    common.main(__doc__, records, **common.SEEDS, pairs=(400, "of countries"),
                runs=(Path("runs/edit"), "folder of the trained models"))  # fmt: skip
