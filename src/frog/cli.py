"""The `frog` command. It imports only what the given command needs; heavy packages only when that command runs."""

from __future__ import annotations

import argparse
import errno
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from frog import __version__
from frog.core.commands import EXAMPLES, WELCOME, overview
from frog.core.errors import MOST_WORDS, FrogError
from frog.core.processes import loading
from frog.core.schema import shortened
from frog.core.startup import INTERRUPTED, EndedByInterrupt, end_at_interrupt, is_command, raise_interrupts
from frog.core.terminal import make_streams_whole, printable_output, terminal_columns, wrapped_lines
from frog.core.units import parse_whole
from frog.core.user_input import CommandOrValue, did_you_mean, integer

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return its exit code. A user's mistake is reported without a traceback."""
    try:
        raise_interrupts()
        make_streams_whole()
        with printable_output():
            words = sys.argv[1:] if arguments is None else arguments
            if not words:
                print(WELCOME, end="")
                return 0
            with EndedByInterrupt():
                parser = _parser(words[0])
            return _run(parser.parse_args(words))
    except KeyboardInterrupt:
        return INTERRUPTED
    finally:
        if is_command():
            end_at_interrupt()  # Python's own end takes a while


def _run(args: argparse.Namespace) -> int:
    if not _has_current_directory():
        print("error: the current directory no longer exists\n  try: cd to an existing directory", file=sys.stderr)
        return 1
    try:
        _check_words()
        code: int = args.handler(args)
        sys.stdout.flush()
        return code
    except FrogError as error:
        print(wrapped_lines(f"error: {error}", terminal_columns(sys.stderr)), file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:  # `frog runs | head`
        sys.stderr.close()
        return 141
    except UnicodeEncodeError as error:  # for example a file name that Frog would have to record
        is_utf8 = sys.getfilesystemencoding() == "utf-8"
        hint = "another name" if is_utf8 else "export LC_ALL=C.UTF-8; unset PYTHONUTF8"
        print(
            f"error: not {sys.getfilesystemencoding().upper()}: {shortened(error.object)!a}, character {error.start}\n"
            f"  try: {hint}",
            file=sys.stderr,
        )
        return 2
    except MemoryError:
        print("error: not enough memory\n  try: a smaller input, or more memory", file=sys.stderr)
        return 1
    except OSError as error:  # a folder in place of a file, a file in place of a folder, no permission
        path = error.filename2 or error.filename
        if path is None and error.errno not in _FULL:
            raise
        where = "a file or the output" if path is None else shortened(str(path))
        print(f"error: {where}: {error.strerror}\n  try: another path", file=sys.stderr)
        return 1


def _check_words() -> None:
    """Raise UnicodeEncodeError if an argument is not valid UTF-8: Frog writes arguments to files."""
    for word in sys.argv[1:]:
        word.encode()


def _has_current_directory() -> bool:
    """True if the current directory of this process still exists."""
    try:
        os.getcwd()
    except FileNotFoundError:
        return False
    return True


class _Parser(argparse.ArgumentParser):
    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.register("type", int, integer)  # options with `type=int`

    def error(self, message: str) -> NoReturn:
        super().error(shortened(message, MOST_WORDS))  # it quotes the arguments, which may be the content of a file

    def _check_value(self, action: argparse.Action, value: object) -> None:
        if isinstance(action, CommandOrValue) and action.is_value(value):
            return
        if isinstance(action, argparse._SubParsersAction) and value not in action.choices:
            wrong = shortened(str(value))
            hint = did_you_mean(wrong, action.choices, 0.5)
            raise argparse.ArgumentError(None, f"{wrong!r} is not a command; {hint}")
        super()._check_value(action, value)


class _FrogParser(_Parser):
    """Parser of commands; its help lists them under their headings."""

    def __init__(self) -> None:
        super().__init__(
            prog="frog", usage="frog COMMAND ...", description="Learn distributed training locally, scale it globally."
        )
        self.add_argument("--version", action="version", version=f"frog {__version__}")
        of_commands: type[argparse.ArgumentParser] = _Parser
        self.commands = self.add_subparsers(prog="frog", metavar="COMMAND", required=True, parser_class=of_commands)

    def format_help(self) -> str:
        about = {choice.dest: choice.help or "" for choice in self.commands._choices_actions}
        parts = [self.description or "", overview(about), "One command: frog COMMAND --help. Version: frog --version"]
        return wrapped_lines("\n\n".join(parts), terminal_columns(sys.stdout), hang=13) + "\n"


def _parser(command: str | None = None) -> argparse.ArgumentParser:
    """Build the parser of one command, or of all if that command does not exist."""
    parser = _FrogParser()
    for name in [command] if command in EXAMPLES else EXAMPLES:
        if name not in parser.commands.choices:
            _adder(name)(parser.commands)
    for name, subparser in parser.commands.choices.items():
        subparser.epilog = f"example: {EXAMPLES[name]}"
    return parser


def _adder(command: str) -> Callable[[argparse._SubParsersAction[argparse.ArgumentParser]], None]:
    """Import only the modules of one command. Return the function that adds it, perhaps with related ones."""
    match command:
        case "doctor":
            from frog.learn.doctor.doctor_commands import add_doctor_parser as add
        case "quiz":
            from frog.learn.quiz.quiz_commands import add_quiz_parser as add
        case "init":
            from frog.core.config.project import add_init_parser as add
        case "data":
            from frog.train.data.data_commands import add_data_parser as add
        case "train":
            return _add_train
        case "join":
            return _add_join
        case "run":
            from frog.launch.launch_commands import add_run_parser as add
        case "world":
            from frog.launch.cells.world_commands import add_world_parser as add
        case "sample" | "eval" | "export" | "import":
            return _add_model_commands
        case "finetune" | "classify":
            from frog.train.finetune.finetune_commands import add_finetune_parsers as add
        case "strategies":
            from frog.plan.plan_commands import add_plan_parsers as add
        case "report":
            from frog.observe.view.view_commands import add_report_parser as add
        case "compare":
            from frog.observe.view.view_commands import add_compare_parser as add
        case "runs":
            from frog.observe.view.view_commands import add_runs_parser as add
        case "checkpoints":
            from frog.observe.view.view_commands import add_checkpoints_parser as add
        case "tensorboard":
            from frog.observe.view.view_commands import add_tensorboard_parser as add
        case "watch":
            from frog.observe.watch.watch_commands import add_watch_parser as add
        case "logs":
            from frog.observe.view.logs_command import add_logs_parser as add
        case "chaos":
            from frog.measure.chaos.chaos_commands import add_chaos_parser as add
        case "diagnose":
            from frog.observe.diagnose.diagnose_commands import add_diagnose_parser as add
        case "check":
            from frog.observe.check.check_commands import add_check_parser as add
        case "observe":
            from frog.observe.observe_commands import add_observe_parser as add
        case "schedule":
            from frog.train.parallel.parallel_commands import add_schedule_parser as add
        case "prove":
            from frog.train.prove.prove_commands import add_proof_parser as add
        case "profile":
            from frog.train.profile.profile_commands import add_profile_parser as add
        case "collectives":
            from frog.measure.peers.collectives_commands import add_collectives_parser as add
        case "slurm":
            from frog.cluster.slurm_commands import add_slurm_parser as add
        case "explain":
            from frog.learn.explain.explain_commands import add_explain_parser as add
        case "submit":
            from frog.cluster.submit.submit_commands import add_submit_parser as add
        case "plan":
            from frog.plan.predict_command import add_plan_parser as add
        case "bundle":
            from frog.cluster.submit.bundle_commands import add_bundle_parser as add
        case "learn":
            from frog.learn.learn_commands import add_learn_parser as add
        case "drill":
            from frog.learn.drill import add_drill_parser as add
        case "class":
            from frog.learn.classroom.class_commands import add_class_parser as add
        case "demo":
            from frog.learn.demo.demo_commands import add_demo_parser as add
        case _:
            from frog.learn.docs import add_docs_parser

            return lambda commands: add_docs_parser(commands, _parser)
    return add


def _add_train(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    from frog.core.config.arguments import add_train_arguments

    description = "Train from a run file."
    parser = commands.add_parser("train", help="train from a run file, in this process", description=description)
    add_train_arguments(parser)
    parser.set_defaults(handler=_train)


def _train(args: argparse.Namespace) -> int:
    with EndedByInterrupt(), loading():
        from frog.train.main import run_rank

    return run_rank(args)


def _add_model_commands(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    sample = commands.add_parser("sample", help="generate text with a trained model")
    sample.add_argument("run", metavar="RUN", help="a run: a name, a folder, or latest")
    sample.add_argument("--prompt", default="The ", help="beginning of the text")
    sample.add_argument("--tokens", type=int, default=100, metavar="N", help="number of tokens to generate")
    sample.add_argument("--temperature", type=float, default=0.8, help="0 always picks the most likely token")
    sample.add_argument("--seed", type=int, default=0)
    sample.add_argument("--step", type=int, metavar="N", help="step of the checkpoint to load; default: the last")
    sample.set_defaults(handler=_model_command("sample"))

    evaluate = commands.add_parser("eval", help="score a trained model on held-out text")
    evaluate.add_argument("run", metavar="RUN")
    evaluate.add_argument(
        "--tokens",
        type=_num_tokens,
        metavar="N",
        help="maximum number of held-out tokens to score, or all; default: the number scored during training",
    )
    evaluate.add_argument("--step", type=int, metavar="N", help="step of the checkpoint to load; default: the last")
    evaluate.set_defaults(handler=_model_command("evaluate"))

    export = commands.add_parser("export", help="write a trained model for another library")
    export.add_argument("run", metavar="RUN")
    export.add_argument(
        "--to", choices=["hf"], default="hf", help="hf: a folder for transformers' from_pretrained (default)"
    )
    export.add_argument("folder", metavar="DIR")
    export.add_argument("--step", type=int, metavar="N", help="step of the checkpoint to load; default: the last")
    export.add_argument("--merge", action="store_true", help="fine-tuned runs: merge the adapter into the base model")
    export.set_defaults(handler=_model_command("export"))

    imported = commands.add_parser("import", help="create a run from another library's model")
    imported.add_argument("folder", metavar="DIR")
    saved = "hf: a folder written by save_pretrained"
    imported.add_argument("--from", dest="source", choices=["hf"], required=True, help=saved)
    imported.add_argument("--name", required=True, help="name of the new run, under runs/")
    imported.set_defaults(handler=_model_command("import_model"))


def _num_tokens(text: str) -> int | str:
    """Parse a number of tokens, or all."""
    if text == "all":
        return text
    number = parse_whole(text)
    if not number:
        raise argparse.ArgumentTypeError(f"{shortened(text)!r}: expected a number of tokens, 1 or more, or all")
    return number


def _add_join(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "join",
        help="add a rank to an active run",
        description="Join a run with comm.on_loss=shrink between two of its steps, and train with it until it ends.",
    )
    parser.add_argument("run", metavar="RUN", help="a run: a name, a folder, or latest")
    patience = "seconds to keep trying to join; default: 60"
    parser.add_argument("--timeout", type=float, default=60.0, metavar="S", help=patience)
    parser.set_defaults(handler=_join)


def _join(args: argparse.Namespace) -> int:
    with EndedByInterrupt(), loading():
        from frog.train.elastic.join import main

    return main(args)


def _model_command(name: str) -> Callable[[argparse.Namespace], int]:
    def handler(args: argparse.Namespace) -> int:
        with EndedByInterrupt(), loading():
            from frog.train import train_commands as commands

        code: int = getattr(commands, name)(args)
        return code

    return handler


if __name__ == "__main__":
    sys.exit(main())
