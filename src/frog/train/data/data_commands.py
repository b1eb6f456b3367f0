"""`frog data prepare | list | inspect`. Modules that need torch or tokenizers are imported when a command runs."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from frog.core.errors import DataError
from frog.core.terminal import printable, printable_lines
from frog.core.units import count, format_bytes, format_count
from frog.train.data.folder import DATA_ROOT, DEFAULT_NAME, set_folder

if TYPE_CHECKING:
    from frog.train.data.prepared import PreparedData, Split
    from frog.train.data.survey import Documents, Progress

_PHASE_WORDS = {"read": "reading", "learn": "training the tokenizer", "tokenize": "tokenizing"}
_LINE_EVERY_S = 5.0
_SHOWN_CHARS = 300


def add_data_parser(commands: argparse._SubParsersAction[Any]) -> None:
    """Add `data` and its three commands; each sets `handler`, which takes the namespace and returns an exit code."""
    data = commands.add_parser("data", help="prepare, list and inspect text", description=__doc__.splitlines()[0])
    of_data = data.add_subparsers(dest="data_command", required=True, metavar="COMMAND")

    prepare = of_data.add_parser("prepare", help="tokenize a text", description="Create a data set under data/.")
    prepare.add_argument("--name", help=f"name of the set (default: from the corpus, or {DEFAULT_NAME})")
    corpus = prepare.add_mutually_exclusive_group()
    corpus.add_argument("--corpus", type=Path, metavar="PATH", help=".txt .md .py .jsonl .parquet, or a folder of them")
    corpus.add_argument("--hub", metavar="NAME", help="a data set on the Hugging Face Hub, or a local copy")
    prepare.add_argument("--split", default="train", help="split of the Hub data set (default: %(default)s)")
    prepare.add_argument("--column", default="text", help="column with the text (default: %(default)s)")
    tokens = prepare.add_mutually_exclusive_group()
    tokens.add_argument(
        "--vocab-size", type=int, default=2048, metavar="N", help="train a tokenizer of N tokens (default: %(default)s)"
    )
    tokens.add_argument(
        "--tokenizer",
        type=Path,
        metavar="PATH",
        help="use a given tokenizer.json, or the one in a folder",
    )
    prepare.add_argument(
        "--heldout", type=float, default=0.05, metavar="PART", help="share of held-out documents (default: %(default)s)"
    )
    prepare.add_argument("--force", action="store_true", help="replace an existing set")
    prepare.set_defaults(handler=run_prepare)

    listing = of_data.add_parser("list", help="list the prepared sets", description="List the sets under data/.")
    listing.set_defaults(handler=run_list)

    inspect = of_data.add_parser("inspect", help="inspect a set", description="Show counts, sizes and samples.")
    inspect.add_argument("name", nargs="?", default=DEFAULT_NAME, help="the set (default: %(default)s)")
    inspect.add_argument("--documents", type=int, default=5, metavar="N", help="number to show (default: %(default)s)")
    inspect.add_argument("--split", choices=("train", "heldout"), default="heldout", help="default: %(default)s")
    inspect.add_argument("--verify", action="store_true", help="check the hash of every file")
    inspect.set_defaults(handler=run_inspect)


def run_prepare(args: argparse.Namespace) -> int:
    """`frog data prepare`: create a set, unless it exists."""
    from frog.train.data.preparation import prepare
    from frog.train.data.prepared import open_prepared

    name = args.name or _default_name(args)
    if set_folder(name).manifest_json.is_file() and not args.force:
        data = open_prepared(name)
        print(f"{data.path}: already prepared from {data.manifest.source}; --force prepares it again")
        return 0
    documents, source = _corpus(args)
    with _shown_progress() as progress:
        data = prepare(
            name,
            documents,
            source=source,
            vocab_size=args.vocab_size,
            given_tokenizer=args.tokenizer,
            heldout_fraction=args.heldout,
            progress=progress,
        )
    _print_summary(data)
    if args.corpus is not None:
        _print_files(args.corpus, data)
    return 0


def run_list(args: argparse.Namespace) -> int:
    """`frog data list`: one line per set, with the reason if it cannot be opened."""
    from rich.box import SIMPLE
    from rich.table import Column, Table

    from frog.train.data.prepared import PreparedData, scan_prepared

    prepared = scan_prepared()
    if not prepared:
        print(f"no prepared sets under {DATA_ROOT}/; `frog data prepare` creates {DEFAULT_NAME}")
        return 0
    table = Table(Column("name", no_wrap=True), "vocabulary", "train", "held out", "source", box=SIMPLE)
    for data in (entry for entry in prepared.values() if isinstance(entry, PreparedData)):
        splits = data.manifest.splits
        table.add_row(
            printable(data.name),
            str(data.vocab_size),
            f"{format_count(splits['train'].num_tokens)} tokens",
            f"{format_count(splits['heldout'].num_tokens)} tokens",
            printable(data.manifest.source),
        )
    from frog.core.console import console
    from frog.core.schema import shortened

    screen = console()
    if table.row_count:
        screen.print(table)
    for name, entry in prepared.items():
        if not isinstance(entry, PreparedData):
            screen.print(f"{printable(name)} cannot be used: {shortened(str(entry), 1000)}", soft_wrap=True)
    return 0


def run_inspect(args: argparse.Namespace) -> int:
    """`frog data inspect`: splits, document sizes, and documents decoded to text."""
    from frog.train.data.prepared import open_prepared

    data = open_prepared(args.name, verify=args.verify)
    from frog.core.console import console

    screen = console()
    print(f"{data.path}: {data.manifest.source}")
    print(f"prepared {data.manifest.created}, vocabulary {data.vocab_size}, data_sha256 {data.data_sha256[:16]}")
    if args.verify:
        print(f"verified: all {len(data.manifest.files)} files match the manifest")
    screen.print(_splits_table(data))
    _print_documents(screen, data, data.split(args.split), args.documents)
    return 0


def _default_name(args: argparse.Namespace) -> str:
    if args.corpus is not None:
        return str(args.corpus.resolve().name.split(".")[0])
    if args.hub is not None:
        return str(args.hub).rstrip("/").rsplit("/", 1)[-1]
    return DEFAULT_NAME


def _corpus(args: argparse.Namespace) -> tuple[Documents, str]:
    """Return the chosen documents, and a description of their source."""
    from frog.train.data.corpora import hub_corpus, python_docs
    from frog.train.data.document_files import find_corpus_files, read_corpus
    from frog.train.data.preparation import python_docs_source

    if args.corpus is not None:
        others = find_corpus_files(args.corpus).describe_others()
        if others:
            print(f"{args.corpus}: {others}")
        return lambda: read_corpus(args.corpus, args.column), str(args.corpus)
    if args.hub is not None:
        return lambda: hub_corpus(args.hub, args.split, args.column), f"{args.hub} [{args.split}]"
    return python_docs, python_docs_source()


@contextmanager
def _shown_progress() -> Iterator[Progress]:
    """Show a progress bar on a terminal; elsewhere print a line per phase and every few seconds."""
    from frog.core.console import console

    screen = console()
    if not screen.is_terminal:
        yield _line_progress()
        return
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeElapsedColumn

    with Progress(
        TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeElapsedColumn(), console=screen
    ) as bars:
        task = bars.add_task(_PHASE_WORDS["read"], total=None)
        read_bytes = 0

        def show(phase: str, num_bytes: int) -> None:
            nonlocal read_bytes
            # Only the tokenizing phase has a known end: the bytes that were read.
            read_bytes = num_bytes if phase == "read" else read_bytes
            total = read_bytes if phase == "tokenize" else None
            bars.update(task, description=_PHASE_WORDS[phase], completed=num_bytes, total=total)

        yield show


def _line_progress() -> Callable[[str, int], None]:
    shown_phase, shown_s = "", 0.0

    def show(phase: str, num_bytes: int) -> None:
        nonlocal shown_phase, shown_s
        now_s = time.monotonic()
        if phase != shown_phase:
            print(_PHASE_WORDS[phase], flush=True)
        elif now_s - shown_s > _LINE_EVERY_S:
            print(f"{_PHASE_WORDS[phase]}: {format_bytes(num_bytes)}", flush=True)
        else:
            return
        shown_phase, shown_s = phase, now_s

    return show


def _print_summary(data: PreparedData) -> None:
    splits = data.manifest.splits
    num_bytes = sum(split.num_bytes for split in splits.values())
    num_tokens = sum(split.num_tokens for split in splits.values())
    print(
        f"{data.path}: {splits['train'].num_documents} training documents, "
        f"{splits['heldout'].num_documents} held out; {format_bytes(num_bytes)} of text, {num_tokens} tokens, "
        f"{num_bytes / num_tokens:.2f} bytes per token"
    )
    asked = data.manifest.tokenizer.vocab_size_asked
    if data.vocab_size < asked:
        print(f"the text only yields {data.vocab_size} tokens; the requested size was {asked}")


def _print_files(corpus: Path, data: PreparedData) -> None:
    """Say why a folder's documents are not as many as its files."""
    from frog.train.data.document_files import find_corpus_files

    num_files = len(find_corpus_files(corpus).paths)
    num_documents = sum(split.num_documents for split in data.manifest.splits.values())
    if num_files not in (1, num_documents):
        print(
            f"{count(num_files, 'file')} gave {count(num_documents, 'document')}: a text longer than 64 KiB is split, "
            "each line of .jsonl and each row of .parquet is one document, and empty texts are left out"
        )


def _splits_table(data: PreparedData) -> Any:
    import numpy as np
    from rich.box import SIMPLE
    from rich.table import Table

    table = Table("split", "documents", "tokens", "text", "bytes/token", "shards", "median document", box=SIMPLE)
    for name, split in data.manifest.splits.items():
        lengths = data.split(name).document_lengths()
        table.add_row(
            name,
            str(split.num_documents),
            str(split.num_tokens),
            format_bytes(split.num_bytes),
            f"{split.num_bytes / split.num_tokens:.2f}",
            str(len(split.shards)),
            f"{np.median(lengths):.0f} tokens",
        )
    return table


def _print_documents(screen: Any, data: PreparedData, split: Split, num_documents: int) -> None:
    """Print documents spread evenly over the split, decoded from their tokens."""
    import numpy as np
    from rich.panel import Panel
    from rich.text import Text

    from frog.train.data.tokenizer import load_tokenizer

    if num_documents < 0:
        raise DataError(f"--documents {num_documents}: must be 0 or more")
    tokenizer = load_tokenizer(data.tokenizer_json)
    shown = np.unique(np.linspace(0, split.num_documents - 1, min(num_documents, split.num_documents)).round())
    for index in shown.astype(int).tolist():
        token_ids = split.document(index)
        # Decode only the start of a long document: enough tokens for the characters shown.
        text = tokenizer.decode(token_ids[:_SHOWN_CHARS].tolist(), skip_special_tokens=True)
        ending = " ..." if len(text) > _SHOWN_CHARS or len(token_ids) > _SHOWN_CHARS else ""
        title = f"{split.name} document {index}: {len(token_ids)} tokens"
        shown_text = Text(printable_lines(text[:_SHOWN_CHARS]) + ending)
        screen.print(Panel(shown_text, title=title, title_align="left"))
