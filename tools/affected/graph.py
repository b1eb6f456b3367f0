"""The graph of uses between the parts of Python files: functions, classes and assigned names of Frog, tests and tools.

A node is `frog.plan.memory:step_memory`, `frog.plan.memory:*` for the whole file, or `command:plan`. An edge is a
possible use:

- a name that the file defines or imports, anywhere in the part. `from frog.train.comm import World` leads to where the
  package's `__getattr__` finds it;
- the name of a module in a string, since Frog starts processes and loads strategies by such names. If the string is in
  a table that nothing starts, the uses begin at the functions that load modules and import the table's file;
- a command of Frog that it starts: `[..., "-m", "frog.cli", "run"]`, or the words of a test.

The graph knows names, not types: a method belongs to its class, and who has an object reached it through the code that
constructed it. It counts more than what really runs, so that it does not miss a test.
"""

from __future__ import annotations

import keyword
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tools.affected.command_table import CLI, read_commands
from tools.affected.facts import IMPORTING, Facts, Part

ALL = "*"
HOOKS, PRODUCTS, OLD_NAMES = "frog.hooks", "frog.products", "frog.core.old_names"
HOOK_FOLDER = "frog.observe.hook"
"""Modules in it are named as on the path of a program: `frog_observer.faults`."""
_STARTED = re.compile(r"\bfrog(?:\.cli)? (\w+)")


@dataclass
class Graph:
    """Files as modules, their parts, and the edges between the parts."""

    files: dict[str, Path]
    """Each module's file. Modules of tests are named by their path: `tests/harness.py`."""
    facts: dict[str, Facts]
    commands: dict[str, set[str]] = field(default_factory=dict)
    """The targets of each command."""
    uses: defaultdict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    """Edges between nodes."""
    loads: defaultdict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    """Modules that each module imports as it is imported itself."""

    def nodes_of(self, module: str) -> set[str]:
        return {f"{module}:{part}" for part in (*self.facts[module].parts, ALL)}

    def used_by(self, module: str) -> set[str]:
        """Return the modules of which a module uses a part, directly or not."""
        return {node.partition(":")[0] for node in closure(self.uses, [f"{module}:{ALL}"])} & self.files.keys()

    def loaded_by(self, module: str) -> set[str]:
        """Return the modules that are imported with all that a module uses."""
        return set(closure(self.loads, self.used_by(module)))

    def users_of(self, nodes: Iterable[str]) -> dict[str, str]:
        """Return the nodes that use any of these nodes, each with the node that it uses for that."""
        backward: defaultdict[str, set[str]] = defaultdict(set)
        for node, targets in self.uses.items():
            for target in targets:
                backward[target].add(node)
        return closure(backward, nodes)


def closure(edges: Mapping[str, set[str]], nodes: Iterable[str]) -> dict[str, str]:
    """Return the nodes and everything that edges lead to, each with its predecessor; "" for a first node."""
    found = dict.fromkeys(nodes, "")
    for node in (order := list(found)):
        for target in sorted(edges.get(node, ())):
            if target not in found:
                found[target] = node
                order.append(target)
    return found


def build_graph(files: dict[str, Path], facts: dict[str, Facts]) -> Graph:
    """Find all edges. files: every module with its file; facts: what each says."""
    graph = Graph(files, facts, read_commands(files, facts))
    for command, targets in graph.commands.items():
        node = f"command:{command}"
        for target in targets:
            graph.uses[node] |= _resolve(graph, target, set())
        graph.uses[node].add(f"{CLI}:main")
        if not targets:  # its modules are not known
            graph.uses[node] |= {f"{module}:{ALL}" for module in files if module.startswith("frog")}
    for module in files:
        _add_module(graph, module)
    _add_named_modules(graph)
    _add_products(graph)
    return graph


def _add_products(graph: Graph) -> None:
    """Let each hook use the function that `frog/products.py` registers for it; to register it uses no product."""
    graph.uses[f"{PRODUCTS}:register_products"].clear()
    names = graph.facts[HOOKS].parts.keys() if HOOKS in graph.facts else set()
    products = {f"{HOOKS}:{name}": f"{PRODUCTS}:_{name}" for name in names if f"{PRODUCTS}:_{name}" in graph.uses}
    for name in names:
        graph.uses[f"{HOOKS}:{name}"] -= products.keys()  # they are decorated at the import, which calls none of them
    for hook, product in products.items():
        graph.uses[hook].add(product)


def _add_module(graph: Graph, module: str) -> None:
    """Add the edges between the parts of a file, and to what they import."""
    facts = graph.facts[module]
    of_file = facts.parts[IMPORTING].imports
    names = module.split(".") if module.startswith("frog") else []
    packages = {".".join(names[:count]) for count in range(1, len(names))}
    for name, part in facts.parts.items():
        uses = graph.uses[f"{module}:{name}"]
        graph.uses[f"{module}:{ALL}"].add(f"{module}:{name}")
        uses |= {f"{module}:{other}" for other in facts.always - {name}}
        uses |= {f"{module}:{other}" for other in part.names & facts.parts.keys() if other != name}
        uses |= {f"{package}:{IMPORTING}" for package in packages}
        imports = dict(part.imports) if name != IMPORTING and module != CLI else {}  # its imports are its commands
        imports |= {imported: target for imported, target in of_file.items() if imported.split(".")[0] in part.names}
        for target in imports.values():
            uses |= _resolve(graph, target, part.attributes | part.names)
        uses |= {f"command:{command}" for command in started_commands(part, graph.commands)}
    if graph.files[module].name == "__init__.py":  # names that it only hands on
        for target in of_file.values():
            graph.uses[f"{module}:{ALL}"] |= _resolve(graph, target, set())
    graph.loads[module] |= packages
    for target in of_file.values():
        graph.loads[module] |= {node.partition(":")[0] for node in _resolve(graph, target, set())}


def _resolve(graph: Graph, target: str, attributes: set[str]) -> set[str]:
    """Return the nodes of an imported name. attributes: names behind a dot, if the name is a module."""
    if target in graph.files:
        parts = graph.facts[target].parts
        if "getattr" in attributes:
            return {f"{target}:{ALL}"}
        found = {f"{target}:{name}" for name in parts if name in attributes or name.partition(".")[0] in attributes}
        of_file = parts[IMPORTING].imports
        for name, other in of_file.items():
            if name in attributes and other.startswith("frog."):
                found |= _resolve(graph, other, attributes)
        if not target.startswith("frog") or "." in target:
            return found or {f"{target}:{ALL}"}
        return found or {f"{target}:{IMPORTING}"}  # `import frog` for its version
    module, _, name = target.rpartition(".")
    if module not in graph.files:
        return _resolve(graph, module, set()) if "." in module and module.startswith("frog") else set()
    facts = graph.facts[module]
    if name in facts.parts:
        return {f"{module}:{name}"} | {f"{module}:{part}" for part in facts.parts if part.startswith(f"{name}.__")}
    if name in facts.parts[IMPORTING].imports:
        return {f"{module}:{IMPORTING}"} | _resolve(graph, facts.parts[IMPORTING].imports[name], attributes)
    place = f"{module}.{facts.whole.table.get(name, '')}"
    if "__getattr__" in facts.parts and place in graph.files:
        return {f"{module}:{IMPORTING}"} | _resolve(graph, f"{place}.{name}", attributes)
    return {f"{module}:{IMPORTING}"} if name.startswith("__") else {f"{module}:{ALL}"}


def started_commands(part: Part, commands: Iterable[str]) -> set[str]:
    """Return the commands that a part starts: the word after `frog`, or after `-m frog.cli`; all if it is not known."""
    known = set(commands)
    found: set[str] = set()
    for words in part.sequences:
        for option, before, word in zip(words, words[1:], words[2:], strict=False):
            if option == "-m" and before in ("frog", CLI):
                found |= known if word is None else known & {word}
    return found


def typed_commands(part: Part, commands: Iterable[str]) -> set[str]:
    """Return the commands that the words of a test may be: the first word of a line, or the word after `frog`."""
    known = set(commands)
    found = {word for text in part.strings for word in _STARTED.findall(text)}
    for text in part.words:
        words = text.split()
        is_code = "\n" in text or (len(words) > 1 and keyword.iskeyword(words[0]))
        if words and not is_code:
            found.add(words[0])
    return found & known


# ---- names of modules in strings -------------------------------------------------------------------------------------


def _add_named_modules(graph: Graph) -> None:
    """Add the edges to modules that strings name."""
    tables = _program_tables(graph)
    in_tables = {(holder, target) for holders in tables.values() for target, of in holders.items() for holder in of}
    loaders = [
        (module, name)
        for module, facts in graph.facts.items()
        for name, part in facts.parts.items()
        if part.is_loader and module.startswith("frog")
    ]
    imports = _imports(graph)
    below = {module: closure(imports, [module]) for module in {module for module, _ in loaders}}
    for module, facts in graph.facts.items():
        for name, part in facts.parts.items():
            named = {one for one in named_modules(graph, part, facts.whole) if (module, one) not in in_tables}
            named -= {module, CLI}
            graph.uses[f"{module}:{name}"] |= {f"{hook}:{ALL}" for hook in _named_hooks(graph, part)}
            if not named or module in (CLI, OLD_NAMES):
                continue
            in_table = named if name in facts.assigned else named & set(part.table.values())
            if any("-m" in words for words in part.sequences):
                in_table = set()
            users = {f"{place}:{loader}" for place, loader in loaders if module in below[place]}
            for user in users or {f"{module}:{name}"}:
                graph.uses[user] |= {f"{one}:{ALL}" for one in in_table}
            graph.uses[f"{module}:{name}"] |= {f"{one}:{ALL}" for one in named - in_table}
    for command, holders in tables.items():
        graph.uses[f"command:{command}"] |= {f"{target}:{ALL}" for target in holders}


def _named_hooks(graph: Graph, part: Part) -> set[str]:
    """Return the modules that every Python below a launcher imports because FROG_HOOKS names them."""
    return {f"{HOOK_FOLDER}.{text}" for text in part.strings} & graph.files.keys()


def _imports(graph: Graph) -> dict[str, set[str]]:
    """Return the modules of Frog that each module of Frog imports anywhere."""
    return {
        name: {
            node.partition(":")[0]
            for part in facts.parts.values()
            for target in part.imports.values()
            for node in _resolve(graph, target, set())
        }
        for name, facts in graph.facts.items()
        if name.startswith("frog")
    }


def _program_tables(graph: Graph) -> dict[str, dict[str, set[str]]]:
    """Return, by command, the modules that a dictionary outside `cli.py` names for it, with the modules that hold it.

    `"prove": "frog.train.prove.prove_rank"` is what `frog run -- prove` starts.
    """
    found: defaultdict[str, dict[str, set[str]]] = defaultdict(dict)
    for module, facts in graph.facts.items():
        for key, value in facts.whole.table.items():
            if key in graph.commands and value in graph.files and module != CLI:
                found[key].setdefault(value, set()).add(module)
    return found


def named_modules(graph: Graph, part: Part, whole: Part) -> set[str]:
    """Return the modules that a part names: `frog.a.b`, `frog.a.b:...`, or `frog.a.{}` with strings of its file."""
    found: set[str] = set()
    for text in part.strings:
        name = text.partition(":")[0]
        if name in graph.files and "." in name and name.startswith("frog."):
            found.add(name)
        elif name.startswith("frog.") and name.endswith(".{}"):
            package = name.removesuffix("{}")
            inside = {module for module in graph.files if module.startswith(package)}
            found |= {module for module in inside if module.removeprefix(package) in whole.strings} or inside
    return found
