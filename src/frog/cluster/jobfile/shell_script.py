"""The shell part of a job file: its commands in the order in which they run. Nothing is executed.

tree-sitter parses the text. The walk follows calls of the file's own functions, marks commands in branches, loops and
the background, and stops at `exit` and `exec`. `not_understood` lists the lines that it could not read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cache, cached_property

import tree_sitter_bash
from tree_sitter import Language, Node, Parser

from frog.cluster.jobfile.shell_words import Assignment, Word, open_quote, read_assignment

_DEEPEST, _DEEPEST_CALL, _MOST_STATEMENTS = 40, 6, 2000
_DECLARES = ("export", "declare", "typeset", "local", "readonly")
_FOREVER = re.compile(
    r"(while\s+(true|:|\[\s*1\s*\]|\(\(\s*1\s*\)\))|until\s+false)\s*(;|\n)|for\s*\(\(\s*;\s*;\s*\)\)"
)
_LEAVES = re.compile(r"\b(break|exit|return|exec)\b")
_STATEMENTS = ("command", "declaration_command", "unset_command", "test_command", "variable_assignment",
               "redirected_statement", "list", "pipeline", "if_statement", "for_statement", "while_statement",
               "case_statement", "function_definition", "compound_statement", "subshell")  # fmt: skip
_ENDS = {"if": "fi", "do": "done", "case": "esac"}
_BEGINS = {"if": "if", "do": "(?:for|while|until|select)", "case": "case"}
_ELSEWHERE = re.compile(r"(?ms)<<-?[ \t]*(['\"]?)(\w+)\1.*?^[ \t]*\2[ \t]*$|\"(?:\\.|[^\"\\])*\"|'[^']*'")
"""Here-documents and quotes, which may contain other languages."""
_NO_THEN = re.compile(r"(?m)^[ \t]*(?:el)?if\b(?![^;\n]*;[ \t]*then\b)(?!.*\\\n).*\n(?![ \t]*(?:then|\[|&&|\|\|)\b)")
_FUNCTION = re.compile(r"(?m)^[ \t]*(?:function[ \t]+[\w-]+[ \t]*(?:\(\))?|[\w-]+[ \t]*\(\))\s*\{[ \t]*$")
_PAIRS = (
    (re.compile(r"(?m)^[ \t]*(?:el)?if\b"), re.compile(r"\bthen\b"), _NO_THEN),
    (re.compile(r"(?m)^[^'\"\n]*\{[ \t]*$"), re.compile(r"(?m)^[^'\"{\n]*\}"), _FUNCTION),
)
"""Opening keywords, the keywords that must follow equally often, and where the first is expected."""
_PASSED_OVER = ("comment", "heredoc_body", "heredoc_content", "heredoc_end")


@dataclass(frozen=True)
class Context:
    """Circumstances in which a command runs."""

    conditional: bool = False
    """True in a branch, after `||`, or in a loop that might not run."""
    loop: bool = False
    background: bool = False
    """True in the background."""
    subshell: bool = False
    """In a subshell or a pipe, which loses its assignments."""
    checked: bool = False
    """Its failure does not end the script under `set -e`."""
    calls: tuple[str, ...] = ()
    """The enclosing functions."""

    @property
    def certain(self) -> bool:
        return not (self.conditional or self.background or self.subshell)


@dataclass(frozen=True)
class Command:
    """A simple command: its words after its assignments, and how it runs."""

    words: tuple[Word, ...]
    assignments: tuple[Assignment, ...]
    line: int
    last_line: int
    context: Context = Context()
    heredoc: Word | None = None
    writes: Word | None = None
    """The file that receives its output."""

    @cached_property
    def name(self) -> str:
        """The command's program, without directories."""
        return self.words[0].base if self.words else ""

    @property
    def text(self) -> str:
        return " ".join(word.text for word in self.words)


@dataclass
class Shell:
    """The commands of a script."""

    commands: list[Command] = field(default_factory=list)
    functions: dict[str, list[Command]] = field(default_factory=dict)
    """Commands of the script's functions, called or not."""
    function_lines: dict[str, int] = field(default_factory=dict)
    not_understood: list[int] = field(default_factory=list)
    """Lines that the parser did not understand."""
    unclosed: int | None = None
    """The line of a quote, an `if` or a loop that is never closed."""
    heredocs: list[tuple[str, int, bool]] = field(default_factory=list)
    """Every here-document, with its line and True if the shell does not expand it."""
    endless: list[int] = field(default_factory=list)
    """Endless loops in the foreground."""
    ends: Command | None = None
    """The `exit` or `exec` after which nothing runs."""

    @property
    def all_commands(self) -> list[Command]:
        """All commands, including those of functions that are never called."""
        return [*self.commands, *(command for body in self.functions.values() for command in body)]


def parse(text: str, first_line: int = 1) -> Shell:
    """Parse a shell text whose first line has the number `first_line`."""
    text = re.sub(r"(?<!\\)\\\s*\Z", "", text)  # the shell ignores a backslash before the end
    source = text.replace("\0", " ").replace("\r\n", "\n").encode(errors="replace")
    root = Parser(_bash()).parse(source).root_node
    reader = _Reader(Shell(), first_line)
    if root.has_error:
        reader.note_errors(root)
        lost = {number - first_line + 1 for number in reader.shell.not_understood}
        line = open_quote(text) or _open_block(root, text, lost)
        reader.shell.unclosed = None if line is None else line + first_line - 1
    reader.read_functions(root)
    reader.shell.heredocs = list(reader.heredocs(root))
    reader.sequence(root, Context())
    for name, body in reader.bodies.items():
        reader.shell.functions[name] = reader.body_alone(name, body)
    reader.shell.not_understood = sorted(set(reader.shell.not_understood))
    return reader.shell


def _open_block(root: Node, text: str, lost: set[int]) -> int | None:
    """Return the line of an `if`, `case` or loop that is never closed, if the tree and the plain words agree.

    `lost` are the lines that the parser did not understand.
    """
    plain = re.sub(r"(?m)(^|(?<=\s))#.*", "", text)
    opened: list[Node] = []
    waiting = [root]
    while waiting:
        node = waiting.pop()
        if node.type in _ENDS and not node.is_named:
            opened.append(node)
        elif node.type in _ENDS.values() and not node.is_missing:
            mate = next((opener for opener in reversed(opened) if _ENDS[opener.type] == node.type), None)
            if mate is not None:
                opened.remove(mate)
        waiting += reversed(node.children)
    bare = _ELSEWHERE.sub(lambda match: "\n" * match[0].count("\n"), plain)
    for before, behind, first in _PAIRS:
        lines = {bare.count("\n", 0, match.start()) + 1 for match in first.finditer(bare)} & lost
        if lines and len(before.findall(bare)) > len(behind.findall(bare)):
            return min(lines)
    for node in opened:
        begins, ends = (len(re.findall(rf"(?m)(^|[;&|]|\b(?:then|else|do)\b)[ \t]*{word}\b", plain))
                        for word in (_BEGINS[node.type], _ENDS[node.type]))  # fmt: skip
        if begins > ends:
            return node.start_point.row + 1
    return None


@cache
def _bash() -> Language:
    return Language(tree_sitter_bash.language())


class _Reader:
    """Walks the tree. Methods that run something return True if the script continues after it."""

    def __init__(self, shell: Shell, first_line: int) -> None:
        self.shell, self.first_line = shell, first_line
        self.bodies: dict[str, Node] = {}
        self.out = shell.commands
        self.seen = 0

    def note_errors(self, root: Node) -> None:
        waiting = [root]
        while waiting:
            node = waiting.pop()
            lost = node.type == "ERROR" and not any(child.type in _STATEMENTS for child in node.children)
            if lost or node.is_missing:
                self.unread(node)
            elif node.type == "ERROR":  # the parser understood the statements among its children
                for child in node.children:
                    if child.type not in _STATEMENTS:
                        self.unread(child)
                    elif child.has_error:
                        waiting.append(child)
            elif node.has_error:
                waiting += node.children

    def unread(self, node: Node) -> None:
        last = max(node.start_point.row, node.end_point.row - (node.end_point.column == 0))
        self.shell.not_understood += range(node.start_point.row + self.first_line, last + self.first_line + 1)

    def read_functions(self, root: Node) -> None:
        waiting = [root]
        while waiting:
            node = waiting.pop()
            name, body = node.child_by_field_name("name"), node.child_by_field_name("body")
            if node.type == "function_definition" and name and body:
                self.bodies[_text(name)] = body
                self.shell.function_lines[_text(name)] = self._line(node)
            waiting += node.children

    def body_alone(self, name: str, body: Node) -> list[Command]:
        kept, self.out = self.out, []
        endless, ends = list(self.shell.endless), self.shell.ends
        self.statement(body, Context(conditional=True, calls=(name,)))
        self.shell.endless, self.shell.ends = endless, ends
        body_commands, self.out = self.out, kept
        return body_commands

    def sequence(self, node: Node, context: Context, depth: int = 0) -> bool:
        children = [child for child in node.children if child.is_named or child.type == "&"]
        for place, child in enumerate(children):
            if self.seen > _MOST_STATEMENTS:
                self.unread(child)
                return True
            following = children[place + 1] if place + 1 < len(children) else None
            in_background = following is not None and following.type == "&"
            if child.is_named and not self.statement(
                child, replace(context, background=context.background or in_background), depth + 1
            ):
                return False
        return True

    def statement(self, node: Node, context: Context, depth: int = 0) -> bool:
        self.seen += 1
        if node.type == "ERROR" and depth < _DEEPEST:
            for child in node.children:
                if child.type in _STATEMENTS:
                    self.statement(child, replace(context, conditional=True), depth + 1)
            return True
        if depth > _DEEPEST or self.seen > _MOST_STATEMENTS:
            if self.seen <= 2 * _MOST_STATEMENTS:
                self.unread(node)
            return True
        kind = node.type
        if kind in _PASSED_OVER or kind == "function_definition":
            return True
        if kind in ("command", "declaration_command", "unset_command", "test_command"):
            return self.command(node, context, depth)
        if kind in ("variable_assignment", "variable_assignments"):
            parts = [node] if kind == "variable_assignment" else node.named_children
            self.add(Command((), tuple(self.assignment(part, context) for part in parts), *self._span(node), context))
            return True
        if kind == "redirected_statement":
            return self.redirected(node, context, depth)
        if kind in ("list", "negated_command", "pipeline", "subshell", "compound_statement", "program", "do_group"):
            return self.compound(node, context, depth)
        if kind.endswith(("_statement", "_clause")) or kind == "case_item":
            self.branches(node, context, depth)
        return True

    def compound(self, node: Node, context: Context, depth: int) -> bool:
        if node.type == "list":
            left, right = node.children[0], node.children[-1]
            either = any(child.type == "||" for child in node.children)
            continues = self.statement(left, replace(context, checked=context.checked or either), depth + 1)
            conditional = context.conditional or either or left.type in ("test_command", "negated_command", "list")
            return continues and self.statement(right, replace(context, conditional=conditional), depth + 1)
        if node.type == "pipeline":
            for place, child in enumerate(node.named_children):
                last = place == len(node.named_children) - 1
                self.statement(child, replace(context, subshell=True, checked=context.checked or not last), depth + 1)
            return True
        if node.type == "subshell":
            self.sequence(node, replace(context, subshell=True), depth)
            return True
        checked = context.checked or node.type == "negated_command"
        return self.sequence(node, replace(context, checked=checked), depth)

    def branches(self, node: Node, context: Context, depth: int) -> None:
        """Walk if, case, for and while: their body may run, and may run several times."""
        loop = node.type in ("for_statement", "while_statement", "c_style_for_statement")
        text = _text(node)
        if loop and context.certain and _FOREVER.match(text) and not _LEAVES.search(text):
            self.shell.endless.append(self._line(node))
        if node.type == "for_statement" and (name := node.child_by_field_name("variable")):
            self.add(
                Command((), (Assignment(_text(name), "$(for)", self._line(node), conditional=True),), *self._span(node))
            )
        inside = replace(context, conditional=context.conditional or "for_" not in node.type, loop=context.loop or loop)
        conditions = {child.id for child in node.children_by_field_name("condition")}
        for child in node.named_children:
            if child.id in conditions:
                self.statement(child, replace(context, checked=True), depth + 1)
            elif child.type not in ("word", "string", "number", "variable_name", "concatenation"):
                self.statement(child, inside, depth + 1)

    def redirected(self, node: Node, context: Context, depth: int) -> bool:
        body, before = node.child_by_field_name("body"), len(self.out)
        continues = self.statement(body, context, depth + 1) if body else True
        for redirect in node.children_by_field_name("redirect"):
            if redirect.type == "file_redirect" and len(self.out) > before:
                self.file_redirect(redirect, before)
            if redirect.type == "heredoc_redirect":
                self.heredoc(redirect, before)
                for right in redirect.children_by_field_name("right"):
                    self.statement(right, replace(context, conditional=True), depth + 1)
        return continues

    def file_redirect(self, node: Node, before: int) -> None:
        words = [self.word(child) for child in node.children_by_field_name("destination")]
        command = self.out[before]  # words after `> file` belong to the command
        self.out[before] = replace(command, words=(*command.words, *words[1:]))
        if words and node.children[0].type in (">", ">>"):
            self.out[before:] = [replace(item, writes=item.writes or words[0]) for item in self.out[before:]]

    def heredoc(self, node: Node, before: int) -> None:
        heredoc = next(self.heredocs(node), None)
        if len(self.out) > before and heredoc:
            self.out[before] = replace(self.out[before], heredoc=Word(heredoc[0], heredoc[1]))

    def heredocs(self, root: Node) -> Iterator[tuple[str, int, bool]]:
        """Yield the commands below a node, including those of command substitutions."""
        waiting = [root]
        while waiting:
            node = waiting.pop()
            parts = {child.type: child for child in node.children}
            if node.type == "heredoc_redirect" and {"heredoc_start", "heredoc_body"} <= parts.keys():
                body = parts["heredoc_body"]
                text = re.sub(r"^\t+", "", _text(body), flags=re.MULTILINE) if "<<-" in parts else _text(body)
                yield text, self._line(body), _text(parts["heredoc_start"])[:1] in "'\"\\"
            waiting += reversed(node.children)

    def command(self, node: Node, context: Context, depth: int) -> bool:
        if node.has_error:
            self.unread(node)
            return True
        words, assignments = self.words(node, context)
        command = Command(words, assignments, *self._span(node), context)
        self.add(command)
        body = self.bodies.get(command.name)
        if body is not None and command.name not in context.calls and len(context.calls) < _DEEPEST_CALL:
            inside = replace(context, calls=(*context.calls, command.name))
            return self.statement(body, inside, depth + 1) or self.shell.ends is None
        leaves = command.name == "exit" or (command.name == "exec" and len(words) > 1)
        if leaves and context.certain:
            self.shell.ends = command
            return False
        return not (command.name == "return" and context.certain and context.calls)

    def words(self, node: Node, context: Context) -> tuple[tuple[Word, ...], tuple[Assignment, ...]]:
        if node.type == "test_command":
            return (Word("[[", self._line(node)), self.word(node)), ()
        if node.type in ("declaration_command", "unset_command"):
            first = Word(_text(node.children[0]), self._line(node))
            rest = [child for child in node.named_children if child.type not in _PASSED_OVER]
            words = (first, *(self.word(child) for child in rest))
            exported = first.raw == "export" or any(re.fullmatch(r"-\w*x\w*", word.raw) for word in words)
            assignments = [
                self.assignment(child, context, exported) for child in rest if child.type == "variable_assignment"
            ]
            others = [read_assignment(Word(word.text, word.line), exported, context.conditional) for word in words
                      if word.raw[:1] in "'\"" and first.raw in _DECLARES]  # fmt: skip
            return words, (*assignments, *(item for item in others if item))
        assignments = [
            self.assignment(child, context) for child in node.children if child.type == "variable_assignment"
        ]
        names = [child for child in node.children_by_field_name("name") if child.is_named]
        arguments = node.children_by_field_name("argument")
        return tuple(self.word(child) for child in [*names, *arguments]), tuple(assignments)

    def assignment(self, node: Node, context: Context, exported: bool = False) -> Assignment:
        name, value = node.child_by_field_name("name"), node.child_by_field_name("value")
        items = None
        if value is not None and value.type == "array":
            items = tuple(self.word(child) for child in value.named_children if child.type != "comment")
        adds = any(child.type == "+=" for child in node.children)
        label = re.sub(r"\[.*", "", _text(name)) if name else ""
        line = self._line(value) if value else self._line(node)
        return Assignment(
            label, _text(value) if value else "", line, exported, items, adds, context.conditional or context.subshell
        )

    def add(self, command: Command) -> None:
        self.out.append(command)

    def word(self, node: Node) -> Word:
        return Word(_text(node), self._line(node))

    def _line(self, node: Node) -> int:
        return node.start_point.row + self.first_line

    def _span(self, node: Node) -> tuple[int, int]:
        return self._line(node), node.end_point.row + self.first_line


def _text(node: Node) -> str:
    return (node.text or b"").decode(errors="replace")


def commands_of(shell: Shell, name: str) -> Iterator[Command]:
    """Yield every command of that program, including those in functions."""
    return (command for command in shell.all_commands if command.name == name)
