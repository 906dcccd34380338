"""The official STEM code, started on a folder that ministem exported. Stands alone: the folder has a copy.

    torchrun --nproc-per-node 2 FOLDER/launch.py CODE train [key=value ...]
    python FOLDER/launch.py CODE generate CHECKPOINT [key=value ...]

CODE is a checkout of github.com/Infini-AI-Lab/STEM. No file of it is touched: what has to be different for a
model of ours is put in its place at run time, here. Settings are FOLDER/train.yaml, paths in it relative to
FOLDER, and any of them can be given as key=value. A dense model is trained by apps.main.train, which cannot
have tables, others by apps.main.stem_train, which cannot do without. CHECKPOINT is FOLDER or one of
FOLDER/dump/checkpoints.
"""

import base64
import json
import os
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parent


def use_our_tokenizer():
    """The official class has Llama 3's splitting pattern and 256 special tokens built in; and tiktoken's
    loader remembers a vocabulary by its path, even if the file has changed."""
    import lingua.tokenizer
    import tiktoken

    class Tokenizer(lingua.tokenizer.TikTokenTokenizer):
        def __init__(self, path):
            lines = map(bytes.split, Path(path).read_bytes().splitlines())
            ranks = {base64.b64decode(token): int(rank) for token, rank in lines}
            how = json.loads(Path(path).with_name("splitting.json").read_text("utf-8"))
            self.tkt_model = tiktoken.Encoding(
                "ministem", pat_str=how["pattern"], mergeable_ranks=ranks, special_tokens=how["special"]
            )
            self.n_words = self.tkt_model.n_vocab
            self.bos_id = self.eos_id = self.tkt_model.eot_token

    lingua.tokenizer.TikTokenTokenizer = Tokenizer


def train(*options):
    """Start from FOLDER's weights: with no moments, which do not travel, and without drawing tables anew."""
    import lingua.stem_checkpoint
    from lingua.distributed import get_world_size
    from omegaconf import OmegaConf

    settings = OmegaConf.merge(OmegaConf.load("train.yaml"), OmegaConf.from_dotlist(list(options)))
    stem, processes = bool(settings.model.get("stem_layers")), get_world_size()
    shards = len(list(Path("stem_shards").glob("stem_model_mp*.pt")))
    if not Path(".metadata").exists():
        fail(f"{FOLDER} has no .metadata: python {FOLDER}/pth.py {FOLDER} makes it")
    # fewer shards than processes: gradients of a table's replicas stay apart. More: half a table is trained
    if stem and {processes, settings.distributed.stem_parallel_size} != {shards}:
        fail(f"tables are cut into {shards}, processes: {processes}. Start {shards}, or export once more")
    load = lingua.stem_checkpoint.load_from_checkpoint

    def load_weights(ckpt_dir, model, optimizer=None, **how):
        load(ckpt_dir, model, **how)
        model.reset_stem_embeddings = lambda: None  # stem_train calls it right after

    lingua.stem_checkpoint.load_from_checkpoint = load_weights
    sys.argv = [sys.argv[0], "config=train.yaml", *options]
    if stem:
        from apps.main.stem_train import main
    else:
        from apps.main.train import main
    main()


def generate(checkpoint, *options):
    """Read prompts from the terminal, until an empty one, and continue them."""
    import lingua.stem_dist_utils
    import pth
    import torch.distributed

    if not (checkpoint / "consolidated/consolidated.pth").exists():
        try:
            pth.consolidate(checkpoint)
        except ValueError as error:
            fail(error)
    if (checkpoint / "consolidated/consolidated_stem.pth").exists():
        import apps.main.stem_generate as generation

        # tables are cut up among processes, and here there is one
        store = torch.distributed.HashStore()
        torch.distributed.init_process_group(backend="gloo", store=store, rank=0, world_size=1)
        lingua.stem_dist_utils.initialize_stem_process_group(1, "gloo", "gloo")
    else:
        import apps.main.generate as generation
    load = generation.load_consolidated_model_and_tokenizer

    def load_with_prompts_as_trained(path):
        model, tokenizer, config = load(path)
        encode = tokenizer.encode  # the generator asks for a token in front that training has not seen
        tokenizer.encode = lambda text, add_bos, add_eos: encode(text, False, add_eos)
        return model, tokenizer, config

    generation.load_consolidated_model_and_tokenizer = load_with_prompts_as_trained
    sys.argv = [sys.argv[0], f"ckpt={checkpoint / 'consolidated'}", *options]
    generation.main()


def fail(message):
    print(f"launch.py: {message}", file=sys.stderr)
    sys.exit(2)


def main():
    code, command, *options = sys.argv[1:] if len(sys.argv) > 2 else ("", "")
    if command == "generate" and options:
        options[0] = Path(options[0]).resolve()
        if not (options[0] / "params.json").exists():
            fail(f"{options[0]} has no params.json: not an exported folder, and no checkpoint")
    elif command != "train":
        usage = __doc__.split("\n\n")[1]
        fail(f"usage:\n{usage}")
    if not Path(code, "lingua").is_dir():
        fail(f"{code} is not a checkout of the official code")
    if not (FOLDER / "train.yaml").exists():
        fail(f"{FOLDER} has no train.yaml: use the launch.py of an exported folder")
    sys.path[:0] = [os.path.abspath(code), str(FOLDER)]
    os.environ["PYTHONPATH"] = os.pathsep.join(sys.path)  # for the process that loads data
    os.chdir(FOLDER)
    use_our_tokenizer()
    dict(train=train, generate=generate)[command](*options)


if __name__ == "__main__":
    main()
elif __name__ == "__mp_main__":  # the process that loads data
    use_our_tokenizer()
