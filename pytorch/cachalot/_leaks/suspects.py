"""Finds the holders of a leak's blocks: references are followed from the tensors that lie there to a name of the program's.

Two ways lead to a block. A tensor of Python's lies in it, and something refers to that tensor; or only an autograd graph keeps
it, as a saved tensor, and something refers to a tensor at the graph's end. Either way one climbs from the tensor, referrer
by referrer as the garbage collector knows them, all tensors of a leak side by side, until a name is reached: a local or
global variable, a cache, an exception. Where they came together on the way up, in a list, say, is what grows.

Nothing is guessed: a suspect was found by its references, or it is not named. Memory that C++ code keeps without Python is not
found.

The search runs no code of the program's but its finalizers and metaclasses: it may do and raise anything. The objects it finds
are read by objects.py, and are not shown by their repr.
"""

from __future__ import annotations

import collections
import contextvars
import dataclasses
import functools
import gc
import inspect
import os
import re
import sys
import threading
import traceback
import types
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from .._base.text import bytes_text
from . import objects as _objects
from .frames import is_of_library, shown

_DEEPEST = 24  # references from a tensor up to a name
_ABOVE_NAMES = 3  # references from a named object up to one that lives longer
_WORST = sys.maxsize  # rank of a name: any other says more
_OF_LIBRARY = _WORST - 1  # rank of the global variables of a library
_MOST_NODES = 20_000  # objects looked at for one leak
_MANY_NODES = 400  # for which the garbage collector's own search takes longer than one in Python
_MANY_ALIKE = 4  # objects without a name, of one type, of which each may keep one tensor
_MOST_SUSPECTS = 3  # of a leak
_LEAST_SHARE = 0.2  # of the blocks that the first suspect keeps: others with fewer are not named

# A member of a module, which shows it as an attribute, or of a thread's part of a threading.local.
_MEMBER = re.compile(r"(?:\._(?:parameters|buffers|modules)|<thread>\[ReferenceType\])\['(\w+)'\]")
_FOLDER = os.path.dirname(os.path.dirname(__file__)) + os.sep  # frames of this package are not the program's
_ASYNCIO = ("asyncio.events", "asyncio.tasks", "_asyncio")
# Their methods, for objects whose class may have others.
_LIST: type[list[Any]] = list
_TUPLE: type[tuple[Any, ...]] = tuple


@dataclasses.dataclass(frozen=True)
class Suspect:
    """An object that keeps blocks of a site alive, found by following references."""

    kind: str  # container, variable, graph, cache, exception, hook, closure, generator, gradient, context, cycle or unknown
    name: str  # "history", say: how the program reaches it; "" where no name leads there
    blocks: int  # of the site's that it was seen to keep
    text: str  # the finding and what to do, in a sentence or two

    def __str__(self) -> str:
        return self.text


def find(leaks: list[set[int]], at_exit: int = 0) -> list[list[Suspect]]:
    """Returns for each leak, given the addresses of its blocks, their holders: the one that keeps most of them first.

    The program has registered `at_exit` functions with atexit, each of which may keep some by its arguments.
    """
    import torch

    with torch._C.DisableTorchFunction():  # tensors answer by themselves, not by code of the program's
        search = _Search(at_exit)
        return [search.suspects(addresses) for addresses in leaks]


class _Node:
    """An object on the way up. Objects are held by these alone, so that we know our own references from others'."""

    __slots__ = ("below", "children", "key", "left", "object", "reached")

    def __init__(self, object: Any, key: int = 0) -> None:
        self.object: Any = object
        self.key = key  # of a tensor from which a way begins: the address of its block, say
        self.children: list[_Node] = []  # to whose objects this one refers
        self.reached = 0  # a bit for each key of tensors to which it leads
        self.below: _Node | None = None  # the child that leads to most
        self.left = _DEEPEST  # references that are followed further up


class _Variable(NamedTuple):
    """A variable with a value."""

    name: str
    place: str  # "a variable of main() in train.py", say
    rank: int  # twice the depth of its function; one less for the object that a method has


class _Name:
    """The end of a way up: an object that the program can name."""

    def __init__(self, kind: str, name: str, place: str, top: _Node, rank: int = 0) -> None:
        self.kind = kind
        self.rank = rank  # the lower, the longer it lives
        self.name = name
        self.place = place  # "a global of train", say
        self.top = top
        self.reached = set[int]()  # keys of the tensors to which it leads
        self.keys: list[int] = []  # of all tensors, by the bits of nodes
        self.count = 1  # of the objects that have no name, if they are of one type

    @functools.cached_property
    def way(self) -> list[tuple[_Node, str]]:
        """The nodes from below the top to where the tensors come together, each with how the one above reaches it."""
        return _way_down(self.top)

    @property
    def passed(self) -> list[Any]:
        """The objects on the way, from the top on."""
        return [self.top.object, *(node.object for node, _ in self.way)]

    @functools.cached_property
    def path(self) -> str:
        """Returns the path by which the program reaches the place where the tensors come together."""
        return self.name + "".join(label for _, label in self.way)

    @property
    def shown_path(self) -> str:
        return _MEMBER.sub(r".\1", self.path)

    @property
    def where(self) -> str:
        return f"`{self.shown_path}`" + (f" ({self.place})" if self.place else "")

    @property
    def holder_node(self) -> _Node:
        return self.way[-1][0] if self.way else self.top

    @property
    def holder(self) -> Any:
        """The object in which the tensors come together."""
        return self.holder_node.object

    @property
    def key(self) -> tuple[str, str, str]:
        """Tells it from others: two modules may both have a variable of this name."""
        if self.kind == "unnamed":
            return self.kind, "", type(self.top.object).__name__
        return self.kind, self.path, self.place


class _Finding(NamedTuple):
    """Blocks that a name keeps: through graphs of `functions` functions, or (None) because tensors lie there."""

    name: _Name
    functions: int | None
    kept: set[int]
    is_used: bool = False  # other graphs go through its tensors: what one iteration leaves to the next

    @property
    def tensors(self) -> str:
        count = len(self.name.reached)
        return "a tensor" if count == 1 else f"{count} tensors"

    @property
    def graphs(self) -> str:
        if self.functions is None:
            return ""
        return f" with autograd graphs of {self.functions:,} functions in all, which keep {len(self.kept)} of these blocks"


def _kept_by(findings: list[_Finding]) -> set[int]:
    return set[int]().union(*(finding.kept for finding in findings))


def _place_of(finding: _Finding, most_kept: int) -> tuple[int, bool, int, int]:
    """Returns the place of a finding in the order. Of findings that keep nearly as many blocks, those come first that other graphs
    go through, as the loss goes through a state that is carried on; of these the one that lives longest; of these the nearest:
    another may lead there in a circle."""
    name = finding.name
    return -5 * len(finding.kept) // most_kept, not finding.is_used, name.rank, len(name.way)


def _that_explain(findings: list[_Finding]) -> list[_Finding]:
    """Returns the findings that keep blocks which the ones before do not keep: others depend on the same graph, say, and are not
    a cause.

    Two are causes of the same blocks if many tensors come together in one, and few in the other: a list of losses and their
    average each keep all graphs.
    """
    chosen: list[_Finding] = []
    explained: dict[bool, set[int]] = {False: set(), True: set()}
    for finding in findings:
        explained_so = explained[4 * len(finding.name.reached) >= len(finding.kept)]
        if len(finding.kept - explained_so) >= max(1, _LEAST_SHARE * len(findings[0].kept)):
            chosen.append(finding)
            explained_so |= finding.kept
    return chosen[:_MOST_SUSPECTS]


class _Search:
    def __init__(self, at_exit: int) -> None:
        self._at_exit = at_exit
        self._locals = _local_names()
        self._passed_over = _parts_of_uncaught()
        self._tensors = [_Node(tensor, address) for tensor, address in _objects.cuda_tensors()]

    def suspects(self, addresses: set[int]) -> list[Suspect]:
        nodes = [node for node in self._tensors if node.key in addresses]
        # A gradient belongs to its tensor in C++: no object of Python's refers to it.
        held = {id(node.object) for node in nodes}
        nodes += [node for node in self._with_gradients if node.key in addresses and id(node.object) not in held]
        names = self._names(nodes)
        contexts = [name for name in names if name.kind == "context"]
        names = [name for name in names if name.kind != "context"]
        found = {name.key: _Finding(name, None, name.reached) for name in names}
        rest = addresses.difference(*(name.reached for name in names))
        without_tensors = frozenset(rest)
        for of_graphs in self._graphs if rest else ():
            kept = of_graphs.kept & without_tensors
            if kept:
                rest -= kept
                key = of_graphs.name.key
                if key in found:  # a list of losses: they lie in some, their graphs keep others
                    kept |= found[key].kept
                found[key] = of_graphs._replace(kept=kept)
        for name in contexts:  # no named object ends its graph
            if not name.reached.isdisjoint(rest):
                found[name.key] = _Finding(name, None, name.reached & rest)
        most_kept = max((len(finding.kept) for finding in found.values()), default=1)
        findings = sorted(found.values(), key=lambda finding: _place_of(finding, most_kept))
        named = [finding for finding in findings if finding.name.kind != "unnamed"]
        if 2 * len(_kept_by(named)) >= len(addresses):
            findings = named  # an object without a name is a call's arguments, say
        if 2 * len(_kept_by(findings)) < len(addresses):
            most = len(findings[0].kept) if findings else 0
            return [_unknown(most, len(addresses), len({node.key for node in nodes}), self._at_exit)]
        return [_suspect(finding, self._at_exit) for finding in _that_explain(findings)]

    @functools.cached_property
    def _unseen(self) -> dict[int, list[_Node]]:
        """Returns the referrers of objects that the garbage collector does not report, by the objects' ids."""
        unseen: dict[int, list[_Node]] = {}
        for held, owner in _objects.unseen_references():
            unseen.setdefault(id(held), []).append(_Node(owner))
        return unseen

    @functools.cached_property
    def _checkpoints(self) -> dict[int, Any]:
        return _objects.checkpoints()

    @functools.cached_property
    def _with_gradients(self) -> list[_Node]:
        """The tensors that have a gradient, with the address of its block."""
        leaves = (node.object for node in self._tensors if _objects.attribute_of(node.object, "is_leaf"))
        gradients = ((tensor, _objects.attribute_of(tensor, "grad")) for tensor in leaves)
        return [_Node(tensor, _objects.cuda_address(gradient)) for tensor, gradient in gradients if gradient is not None]

    @functools.cached_property
    def _graphs(self) -> list[_Finding]:
        """Named holders of tensors that end a graph, with all blocks that their graphs keep; and the gradients with graphs of their
        own, which a backward pass with create_graph=True made."""
        ends = [_Node(node.object, id(node.object)) for node in self._tensors if _objects.has_graph(node.object)]
        names = self._names(ends)
        by_key = {node.key: node.object for node in ends}  # not before: it refers to the tensors
        outputs = [[_objects.output_of(by_key[key]) for key in name.reached] for name in names]
        graphs = [_objects.graph_of((function for function, _ in of_name), self._checkpoints) for of_name in outputs]
        used = set[tuple[Any, int]]().union(*(graph.inputs for graph in graphs))
        findings = [
            _Finding(name, graph.functions, graph.blocks, 2 * sum(output in used for output in of_name) >= len(of_name))
            for name, graph, of_name in zip(names, graphs, outputs)
        ]
        of_gradients = [graph for node in self._tensors if (graph := _objects.graph_of_gradient(node.object)) is not None]
        if of_gradients:
            graph = _objects.graph_of(of_gradients, self._checkpoints)
            name = _Name("gradient", ".grad", "", _Node(None))
            name.reached = set(range(len(of_gradients)))
            findings.append(_Finding(name, graph.functions, graph.blocks))
        return findings

    def _names(self, tensors: list[_Node]) -> list[_Name]:
        """Climbs from the tensors, all at once, to names; each name has the tensors to which it leads."""
        names: list[_Name] = []
        ascent = _Ascent(tensors, self._passed_over, self._unseen)
        for node in tensors:  # a variable may name one, and a list may hold it as well
            self._finish(node, names)
        while ascent.frontier and len(ascent.nodes) < _MOST_NODES:
            ascent.step()
            ascent.frontier = [node for node in ascent.frontier if not self._finish(node, names)]
        named = {id(name.top) for name in names}
        unnamed = [_Name("unnamed", "", "", node, _WORST) for node in ascent.ends if id(node) not in named]
        ascent.settle(names + unnamed)
        names = _of_longest_life(names)
        known = set[int]().union(*(name.reached for name in names))
        names += _worth_naming(unnamed, known)
        if not names and (circle := ascent.circle()):
            return [_cycle(circle, {node.key for node in tensors})]
        return _merged([part for name in names for part in _by_attributes(name)])

    def _finish(self, node: _Node, names: list[_Name]) -> bool:
        """Returns whether the way up ends here, at a name. Above a variable of a function there may be one that lives longer."""
        name = self._name(node)
        if name is None:
            return False
        names.append(name)
        if not _objects.is_tensor(node.object) and name.kind != "exception":
            node.left = min(node.left, _ABOVE_NAMES)
        return name.rank in (0, _OF_LIBRARY) or name.name in ("self", "cls")

    def _name(self, node: _Node) -> _Name | None:
        import torch

        held = node.object
        if _objects.is_kind(held, functools._lru_cache_wrapper):
            return _Name("cache", _objects.function_name(held.__wrapped__), "", node)
        if _objects.is_kind(held, torch._C._FunctionBase):  # the ctx of an autograd function of the program's
            return _Name("context", type(held).__name__.removesuffix("Backward"), "", node)
        if _objects.is_kind(held, BaseException):
            return _Name("exception", type(held).__name__, "", node, _WORST)
        variables = self._locals.get(id(held))
        if variables is not None:  # the innermost function's says most, and the outermost lives longest: of a tensor that counts
            longest = min(variables, key=lambda each: each.rank)
            best = longest if _objects.is_tensor(held) else variables[0]
            return _Name("variable", best.name, best.place, node, longest.rank)
        if _objects.is_kind(held, dict) and node.below is not None:
            module = _objects.module_of(held)
            if module is not None:
                key = _objects.key_of(held, node.below.object)
                name = key if type(key) is str else _objects.shown_key(key)
                rank = _OF_LIBRARY if _objects.is_of_library_module(module) else 0
                return _Name("variable", name, f"a global of {module}", node.below, rank)
        if _objects.is_kind(held, type) and node.below is not None:
            return _Name("variable", held.__qualname__, "a class", node)
        return None


class _Ascent:
    """The way up from tensors, step by step: the objects that refer to those of the frontier. Each is met once."""

    def __init__(self, tensors: list[_Node], passed_over: set[int], unseen: dict[int, list[_Node]]) -> None:
        self.frontier = tensors
        self._passed_over = passed_over  # by which the way does not lead up
        self._unseen = unseen  # referrers that the garbage collector does not report, by the objects' ids
        self.ends: list[_Node] = []  # to which nothing refers that the garbage collector knows
        self._keys = list({node.key: None for node in tensors})
        self.nodes: dict[object, _Node] = {id(node.object): node for node in tensors}  # objects stay: their ids are theirs
        self._bits = {key: 1 << i for i, key in enumerate(self._keys)}
        for node in tensors:  # they may have been on another's way
            node.reached, node.children, node.below, node.left = self._bits[node.key], [], None, _DEEPEST

    def step(self) -> None:
        below = {id(node.object): node for node in self.frontier if node.left > 0}
        ends = below.copy()
        self.frontier = []
        for referrer in _referrers(below):
            if _is_ours(referrer) or id(referrer) in self._passed_over:
                continue
            children = [below[key] for key in {id(held) for held in gc.get_referents(referrer)} if key in below]
            if type(referrer).__module__ in _ASYNCIO:  # of a task that waits the context variable says more
                children = [child for child in children if not _objects.is_kind(child.object, contextvars.Context)]
            for child in children:
                ends.pop(id(child.object), None)
            if _objects.is_kind(referrer, dict) and _objects.module_of(referrer) is not None:  # each of its variables is a name
                for child in children:
                    self._add(referrer, [child], (id(referrer), id(child.object)))
            elif children:
                self._add(referrer, children, id(referrer))
        for node in below.values():
            for unseen in self._unseen.get(id(node.object), ()):
                ends.pop(id(node.object), None)
                self._add(unseen.object, [node], id(unseen.object))
        self.ends += [node for node in ends.values() if not _objects.is_tensor(node.object)]

    def _add(self, referrer: Any, children: list[_Node], key: object) -> None:
        node = self.nodes.get(key)
        if node is None:
            node = self.nodes[key] = _Node(referrer)
            node.below = children[0]
            node.left = max(child.left for child in children) - 1
            self.frontier.append(node)
        node.children += children

    def settle(self, names: list[_Name]) -> None:
        """Lets the names know the tensors to which they lead, and the nodes under them the child that leads to most."""
        order = _children_first([name.top for name in names])
        changes = True
        while changes:  # once more for each cycle within a cycle
            changes = False
            for node in order:
                before = node.reached
                for child in node.children:
                    node.reached |= child.reached
                changes |= node.reached != before
        for name in names:
            name.keys = self._keys
            name.reached = _keys_of(self._keys, name.top.reached)
        places = {id(node): place for place, node in enumerate(order)}
        for place, node in enumerate(order):
            lower = [child for child in node.children if places[id(child)] < place]  # or one would go down in circles
            node.below = max(lower, key=lambda child: child.reached.bit_count(), default=None)
            node.reached = self._bits.get(node.key, 0)
            for child in lower:
                node.reached |= child.reached

    def circle(self) -> list[_Node]:
        """Nodes that refer to each other in a circle; empty if there is none."""
        order = _children_first(list(self.nodes.values()))
        places = {id(node): place for place, node in enumerate(order)}
        for node in order:
            upper = next((child for child in node.children if places[id(child)] >= places[id(node)]), None)
            if upper is not None:  # the way down passed through it
                return _shortest_way(upper, node)
        return []


def _shortest_way(top: _Node, bottom: _Node) -> list[_Node]:
    ways = {id(top): [top]}
    waiting = [top]
    for node in waiting:
        for child in node.children:
            if id(child) not in ways:
                ways[id(child)] = [*ways[id(node)], child]
                waiting.append(child)
    return ways[id(bottom)]


def _of_longest_life(names: list[_Name]) -> list[_Name]:
    """Returns the names without those to which another leads that lives longer: a variable may point into a list that belongs to
    an object."""
    kept: list[_Name] = []
    below: set[int] = set()
    for rank in sorted({name.rank for name in names}):
        of_rank = [name for name in names if name.rank == rank and id(name.top) not in below]
        kept += of_rank
        waiting = [child for name in of_rank for child in name.top.children]
        while waiting:
            node = waiting.pop()
            if id(node) not in below:
                below.add(id(node))
                waiting += node.children
    return kept


def _worth_naming(ends: list[_Name], known: set[int]) -> list[_Name]:
    """Ends without a name that lead to tensors to which no name leads: such with several tensors, generators, and many of a type."""
    kinds: list[type[Any]] = [type(end.top.object) for end in ends]

    def is_worth(end: _Name) -> bool:
        is_one_of_many = sum(kind is type(end.top.object) for kind in kinds) >= _MANY_ALIKE
        return len(end.reached) > 1 or is_one_of_many or any(map(_objects.is_waiting_generator, end.passed))

    return [end for end in ends if is_worth(end) and not end.reached <= known]


def _referrers(below: dict[int, _Node]) -> Iterable[Any]:
    """Returns the referrers of the objects of these nodes."""
    if len(below) < _MANY_NODES:  # it compares each existing reference with each of the objects
        return gc.get_referrers(*[node.object for node in below.values()])
    return (held for held in gc.get_objects() if not below.keys().isdisjoint(map(id, gc.get_referents(held))))


def _keys_of(keys: list[int], bits: int) -> set[int]:
    return {key for i, key in enumerate(keys) if bits >> i & 1}


def _by_attributes(name: _Name) -> list[_Name]:
    """The name, or where the ways come together in an object, one for each of its attributes: these are what a program empties."""
    nodes = [name.top, *(node for node, _ in name.way)]
    last = nodes[-1]
    above = nodes[-2].object if len(nodes) > 1 else None
    owner = above if above is not None and _objects.is_kind(last.object, dict) else last.object
    is_object = all(_label(last.object, child.object, above).startswith(".") for child in last.children) or _module_part(name)
    is_chain = any(type(child.object) is type(owner) for child in last.children)
    most = max((child.reached.bit_count() for child in last.children), default=0)
    if not is_object or is_chain or len(last.children) < 2 or 2 * most < last.reached.bit_count():
        return [name]
    parts: list[_Name] = []
    for child in last.children:
        below = child
        for node in reversed(nodes):
            copy = _Node(node.object)
            copy.below, copy.reached = below, child.reached
            below = copy
        part = _Name(name.kind, name.name, name.place, below)
        part.keys, part.reached = name.keys, _keys_of(name.keys, child.reached)
        parts += _by_attributes(part)
    return parts


def _children_first(tops: list[_Node]) -> list[_Node]:
    """Returns all nodes below, each after its children, except one of each cycle."""
    order: list[_Node] = []
    seen: set[int] = set()
    for top in tops:
        way = [] if id(top) in seen else [(top, iter(top.children))]
        seen.add(id(top))
        while way:
            node, children = way[-1]
            child = next((child for child in children if id(child) not in seen), None)
            if child is None:
                order.append(node)
                way.pop()
            else:
                seen.add(id(child))
                way.append((child, iter(child.children)))
    return order


def _is_ours(referrer: Any) -> bool:
    if _objects.is_kind(referrer, types.FrameType):
        return bool(referrer.f_code.co_filename.startswith(_FOLDER))
    return _objects.is_kind(referrer, (_Node, _Search, types.ModuleType))


def _merged(names: list[_Name]) -> list[_Name]:
    """One entry a place, the ones that lead to most first."""
    merged: dict[tuple[str, str, str], _Name] = {}
    for name in names:
        known = merged.setdefault(name.key, name)
        if known is not name:
            known.reached = known.reached | name.reached
            known.count += name.count
    return sorted(merged.values(), key=lambda name: -len(name.reached))


def _cycle(circle: list[_Node], reached: set[int]) -> _Name:
    kinds = {type(node.object).__name__ for node in circle if not _objects.is_kind(node.object, _objects.CONTAINERS)}
    goes_through_graph = any(_objects.is_tensor(node.object) and _objects.has_graph(node.object) for node in circle)
    name = _Name("cycle", " and ".join(sorted(kinds)), "C++" if goes_through_graph else "", circle[0])
    name.reached = reached
    return name


# --- texts -------------------------------------------------------------------------------------------------------------


def _unknown(most: int, blocks: int, with_tensors: int, at_exit: int) -> Suspect:
    """Returns the answer if the finding that keeps most blocks does not keep half of them: a cure for it would not help."""
    import torch

    kept = "C++ keeps them, as an autograd graph whose end no name reaches, or an object does that the garbage collector does not know"
    if torch.is_autocast_enabled() and torch.is_autocast_cache_enabled():
        kept = (
            "C++ keeps them, perhaps in autocast's cache, which lives until the outermost torch.autocast block ends: end it "
            "each iteration"
        )
    elif with_tensors == blocks:
        kept = "Python's tensors lie in all of them, and C code refers to these, or a running function that works with them"
        if 2 * at_exit > blocks:
            kept += f": {at_exit} functions are registered with atexit.register(), which keeps their arguments"
    found = f" (of those found, one keeps {most})" if most else ""
    return Suspect("unknown", "", most, f"no object is known that keeps most of these {blocks} blocks{found}: {kept}")


def _suspect(finding: _Finding, at_exit: int) -> Suspect:
    """The finding in words, with its cure."""
    kind = _kind(finding)
    if kind == "unnamed container" and at_exit >= _MANY_ALIKE and 2 * at_exit > finding.name.count:
        kind = "atexit container"
    if kind in _TEXTS:
        name = {"cache": finding.name.name, "atexit container": "atexit"}.get(kind, finding.name.shown_path)
        text = _TEXTS[kind].format(
            name=name, place=finding.name.place, tensors=finding.tensors, graphs=finding.graphs,
            functions=finding.functions, kept=len(finding.kept),
        )  # fmt: skip
    else:
        name, text = _WORDS[kind](finding)
    return Suspect(kind.rpartition(" ")[2], name, len(finding.kept), text)


def _kind(finding: _Finding) -> str:
    """One of _WORDS or _TEXTS; its last word is that of the suspect."""
    name, holder = finding.name, finding.name.holder
    if name.kind in ("cycle", "gradient", "cache", "context"):
        return name.kind
    if any(_objects.is_kind(node.object, BaseException) for node in _nodes_below(name.top)):
        return "exception"
    if _hooked(name):
        return "many hook"
    if holder is weakref.finalize._registry:  # type: ignore[attr-defined]
        return "finalizers container"
    if holder is threading._active:  # type: ignore[attr-defined]
        return "threads container"
    if _module_part(name):
        return "module container"
    if any(_objects.is_kind(held, types.FunctionType) for held in name.passed):
        return "hook" if any("_hooks" in label for _, label in name.way) else "closure"
    if any(map(_objects.is_waiting_generator, name.passed)):
        return "generator"
    if name.kind == "unnamed":
        return "unnamed container"
    if _objects.is_kind(holder, _objects.CONTAINERS) or len(name.reached) > 1:
        return "container"
    return "graph" if finding.functions is not None else "variable"


def _words_of_cycle(finding: _Finding) -> tuple[str, str]:
    objects = f" through {finding.name.name}" if finding.name.name else ""
    text = f"no name leads to the tensors of {len(finding.kept)} blocks: a reference cycle{objects} keeps them"
    if finding.name.place == "C++":
        return "", (
            f"{text}, of which the garbage collector does not see the part in C++: a hook that refers to its own tensor, say. Let "
            "the hook work with its argument, or detach() what it refers to"
        )
    return "", f"{text} until the garbage collector runs. Break the cycle, with weakref say"


def _words_of_context(finding: _Finding) -> tuple[str, str]:
    name = finding.name
    attribute = name.shown_path.removeprefix(name.name) or ".…"
    is_own = any(_objects.attribute_of(node.object, "grad_fn") is name.top.object for node in _nodes_below(name.top.below))
    kept = "its own output, a cycle through C++ that the garbage collector may not see" if is_own else "tensors"
    text = (
        f"`ctx{attribute}` of the autograd function {name.name} keeps {kept}: {len(finding.kept)} of these blocks. "
        "Use ctx.save_for_backward()"
    )
    return name.name, text


def _words_of_hooks(finding: _Finding) -> tuple[str, str]:
    hooked, held = _hooked(finding.name), finding.tensors
    return hooked, (
        f"{len(finding.name.holder)} hooks on `{hooked}` hold {held}. Register a hook once, or call remove() of its handle"
    )


def _words_of_exception(finding: _Finding) -> tuple[str, str]:
    name = finding.name
    kind = next(type(node.object).__name__ for node in _nodes_below(name.top) if _objects.is_kind(node.object, BaseException))
    held = f"{finding.tensors}{_variable_of_frame(name)}"
    if name.name and not any(_objects.is_kind(passed, BaseException) for passed in name.passed):
        count = sum(_objects.is_kind(child.object, BaseException) for child in name.holder_node.children)
        several = f"{count} exceptions" if count > 1 else "exceptions"
        text = f"the {_shown_type(name)} {name.where} holds {several}, {kind} say, whose tracebacks hold {held}. Keep their text"
    else:
        reached = "" if name.kind == "exception" else f" reached as {name.where},"
        text = f"an exception that is kept, {kind},{reached} holds {held} through its traceback. Keep its text"
    path = "" if name.kind == "exception" else name.shown_path
    return path, f"{text}, or call traceback.clear_frames(exception.__traceback__)"


def _words_of_module(finding: _Finding) -> tuple[str, str]:
    module = finding.name.shown_path.rpartition(".")[0]
    where = f"`{module}`" + (f" ({finding.name.place})" if finding.name.place else "")
    if attribute := _attribute_of_tensors(finding.name):
        return module, (
            f"the attribute `{attribute}` of the parameters of the module {where} holds {finding.tensors}{finding.graphs}. "
            "Empty it, or keep what is needed on the host"
        )
    return module, (
        f"the {_module_part(finding.name)} of the module {where} hold {finding.tensors}{finding.graphs}. Add none in a "
        "loop, or delete those of the past"
    )


def _attribute_of_tensors(name: _Name) -> str:
    """The attribute of tensors on the way down in which the others lie; "" where they end it."""
    nodes = [*_nodes_below(name.holder_node)]
    for tensor, attributes, held in zip(nodes, nodes[1:], nodes[2:]):
        if _objects.is_tensor(tensor.object) and _objects.is_kind(attributes.object, dict):
            return str(_objects.key_of(attributes.object, held.object))
    return ""


def _words_of_function(finding: _Finding) -> tuple[str, str]:
    name = finding.name
    function = next(_objects.function_name(held) for held in name.passed if _objects.is_kind(held, types.FunctionType))
    kind = _kind(finding)
    role, cure = _HOLDERS["default" if kind == "closure" and _is_default(name.passed) else kind]
    reached = f", reached as {name.where}," if name.name else ""
    return function, f"the function {function}{reached} {role} {finding.tensors}. {cure}"


def _words_of_generator(finding: _Finding) -> tuple[str, str]:
    name = finding.name
    last = max(i for i, held in enumerate(name.passed) if _objects.is_waiting_generator(held))
    generator = name.passed[last]
    labels = [name.name, *(label for _, label in name.way)]
    outer, inner = "".join(labels[: last + 1]), "".join(labels[last + 1 :]).removeprefix(".")
    kind = "generator" if _objects.is_kind(generator, types.GeneratorType) else "coroutine"
    place = f" ({name.place})" if name.place else ""
    reached = f" reached as `{outer}`{place}," if outer else ""
    through = f" through `{inner}`" if inner else ""
    frame = _objects.frame_of(generator)
    line = f" at {shown(frame.f_code.co_filename)}:{frame.f_lineno}" if frame is not None else ""
    function = f"{generator.__name__}()"
    return function, (
        f"variables of {function}, which waits{line} (a {kind}),{reached} hold {finding.tensors}{through}. "
        "Empty them, run it to its end, or close() it"
    )


def _words_of_unnamed(finding: _Finding) -> tuple[str, str]:
    called = next((held for held in finding.name.passed[:2] if callable(held) and not _objects.is_tensor(held)), None)
    if called is not None:
        return "", (
            f"C++ refers to a {type(called).__name__} that holds {finding.tensors}{finding.graphs}, as to the hook of an "
            "autograd function (grad_fn.register_hook): the garbage collector sees no cycle through C++. Remove the hook, or let it "
            "have a weakref"
        )
    return "", (
        f"a {_shown_type(finding.name)} to which no variable refers holds {finding.tensors}{finding.graphs}: a running "
        "function works with it, as a comprehension does with its list, or C code keeps it. Keep what is needed on the host"
    )


def _words_of_object(finding: _Finding) -> tuple[str, str]:
    name, holder, count = finding.name, finding.name.holder, len(finding.name.reached)
    what = _shown_type(name)
    if _objects.is_kind(holder, _objects.CONTAINERS) or (count > 1 and not _objects.is_tensor(holder)):
        text = f"the {what} {name.where} holds {finding.tensors}"
    elif _objects.is_kind(holder, types.FrameType):
        text = f"{name.where} keeps a frame that holds {finding.tensors}"
    else:
        size = f" of {_objects.storage_of(holder).nbytes():,} bytes" if _objects.is_tensor(holder) and count == 1 else ""
        text = f"{name.where} holds {finding.tensors}{size}"
    tensors = (node.object for node in _nodes_below(name.top) if _objects.is_tensor(node.object))
    has_graph = finding.functions is None and any(map(_objects.has_graph, tensors))
    if has_graph:
        text += ", with autograd graphs" if count > 1 else ", with its autograd graph"
    return name.shown_path, f"{text}{finding.graphs}. {_CURES.get(what) or _cure(finding, has_graph)}{_of_views(finding)}"


_CURES = {
    "itertools.cycle": "It remembers each item: make a new iterator for each round, or let it have what lies on the host",
    "itertools._tee": "tee() keeps each item until all of its iterators have had it: read them in step",
}


def _cure(finding: _Finding, has_graph: bool) -> str:
    if finding.functions is not None and len(finding.name.reached) == 1:
        return ".detach() it between iterations"
    is_state = finding.is_used or _objects.is_kind(finding.name.holder, tuple)  # carried on, or it cannot be emptied
    if finding.functions is not None and is_state:
        return ".detach() its tensors between iterations"
    if finding.functions is not None or has_graph:
        return "Keep loss.item() or .detach().cpu(), or empty it after backward()"
    if _objects.is_kind(finding.name.holder, collections.deque):
        return "Give it a maxlen, empty it, or keep what is needed on the host"
    return "Empty it, or keep what is needed on the host"


def _of_views(finding: _Finding) -> str:
    """The advice for views, which keep the blocks of the tensors of which they are parts."""
    tensor = next((node.object for node in _nodes_below(finding.name.top) if _objects.is_tensor(node.object)), None)
    if tensor is None or finding.functions is not None:
        return ""
    used, all_bytes = _objects.bytes_used(tensor), _objects.storage_of(tensor).nbytes()
    if 2 * used > all_bytes:
        return ""
    return f". It holds views: one of {bytes_text(used)}, say, keeps {bytes_text(all_bytes)}. clone() what is needed of them"


_WORDS: dict[str, Callable[[_Finding], tuple[str, str]]] = {
    "cycle": _words_of_cycle,
    "context": _words_of_context,
    "exception": _words_of_exception,
    "many hook": _words_of_hooks,
    "module container": _words_of_module,
    "hook": _words_of_function,
    "closure": _words_of_function,
    "generator": _words_of_generator,
    "unnamed container": _words_of_unnamed,
    "container": _words_of_object,
    "graph": _words_of_object,
    "variable": _words_of_object,
}

# The texts of kinds of which nothing more is to be found out.
_TEXTS = {
    "gradient": "the gradients of {tensors} have graphs of their own ({functions} functions), which keep {kept} of these blocks: "
    "backward(create_graph=True) made them. Use torch.autograd.grad, or set the gradients to None",
    "cache": "the functools cache of {name} holds {tensors}{graphs}. Keep tensors out of it, bound it with maxsize, or call "
    "cache_clear()",
    "finalizers container": "arguments of weakref.finalize() hold {tensors}: they live as long as the object that it watches. Do not "
    "pass the tensor, or detach() the finalizer",
    "atexit container": "arguments of functions that are registered with atexit.register() hold {tensors}: they live as long as the "
    "process. Register one function, once, or keep what is needed on the host",
    "threads container": "threads that run, in `{name}` ({place}), hold {tensors}: in their arguments, as those of a Timer are, or "
    "variables. Let them end, with cancel() say, or keep what is needed on the host",
}

_HOLDERS = {
    "hook": ("is registered as a hook and holds", "Remove the hook when it is done, and keep .detach()ed values"),
    "closure": ("is a closure that holds", "Let go of it"),
    "default": ("has a default argument that holds", "Let None be the default, and make a new value in each call"),
}


def _is_default(passed: list[Any]) -> bool:
    functions = [held for held in passed if _objects.is_kind(held, types.FunctionType)]
    defaults = [value for function in functions for value in (function.__defaults__, function.__kwdefaults__)]
    return any(value is held for held in passed for value in defaults if value is not None)


def _hooked(name: _Name) -> str:
    """Returns the object that the hooks are registered on, if the tensors come together in the hooks of a tensor or module; else
    ""."""
    objects, path = name.passed, name.shown_path
    if len(objects) < 2 or not _objects.is_kind(objects[-1], dict):  # the hooks of all modules are a global
        return path if path.endswith("_hooks") and _objects.is_kind(objects[-1], dict) else ""
    owner, _, attribute = path.rpartition(".")
    return owner if attribute.endswith("_hooks") else ""


_PARTS_OF_MODULE = {"_modules": "submodules", "_parameters": "parameters", "_buffers": "buffers"}


def _module_part(name: _Name) -> str:
    """Returns the module that the tensors belong to, if they come together in such a part of a module; else ""."""
    import torch

    is_of_module = len(name.passed) > 2 and any(_objects.is_kind(held, torch.nn.Module) for held in name.passed[-3:-1])
    return _PARTS_OF_MODULE.get(name.path.rpartition(".")[2], "") if is_of_module else ""


def _shown_type(name: _Name) -> str:
    """The type of the object that the path names: what C code has within has no name, nor has an object's own dict."""
    shown_object = name.top.object
    for node, label in name.way:
        shown_object = node.object if label else shown_object
    module, kind = type(shown_object).__module__, type(shown_object).__name__
    return f"itertools.{kind}" if module == "itertools" else kind


_HOOKS_OF_TENSOR = ("_backward_hooks", "_post_accumulate_grad_hooks")


def _way_down(top: _Node) -> list[tuple[_Node, str]]:
    is_one = top.reached.bit_count() <= 1  # nothing to come together: down to the tensor
    way: list[tuple[_Node, str]] = []
    node, owner = top, None
    while node.below is not None and (is_one or node.below.reached.bit_count() >= max(2, node.reached.bit_count())):
        way.append((node.below, _label(node.object, node.below.object, owner)))
        node, owner = node.below, node.object
    return way


def _label(above: Any, below: Any, owner: Any) -> str:
    """Returns the program's step from one object to the other: ".attribute", "[key]", or "" without one.

    The owner is the object from which the way came.
    """
    if _objects.is_kind(above, dict):
        key = _objects.key_of(above, below)
        is_attribute = type(key) is str and key.isidentifier() and _objects.has_attributes(owner, above)
        return f".{key}" if is_attribute else f"[{_objects.shown_key(key)}]"
    if _objects.is_kind(below, types.CellType):  # in a closure
        return ""
    if _objects.is_kind(above, (set, frozenset)):
        return "[…]"
    if _objects.is_tensor(above) and _objects.is_kind(below, dict):
        return next((f".{name}" for name in _HOOKS_OF_TENSOR if _objects.attribute_of(above, name) is below), "")
    if _objects.is_kind(above, threading.local) and _objects.is_kind(below, dict):
        return "<thread>"
    if _objects.is_kind(above, _objects.GENERATORS):
        variable = _variable_name(_objects.frame_of(above), below)
        return f".{variable}" if variable else ""
    if _objects.is_kind(above, (list, tuple)):
        items = _LIST.__iter__(above) if _objects.is_kind(above, list) else _TUPLE.__iter__(above)
        return next((f"[{i}]" for i, held in enumerate(items) if held is below), "")
    attributes = _objects.instance_attributes(above)
    if attributes is below:
        return ""
    named = [(key, held) for key, held in _objects.items(attributes or {}) if type(key) is str]
    return next((f".{key}" for key, held in [*named, *_objects.slots(above)] if held is below), "")


def _nodes_below(node: _Node | None) -> Iterator[_Node]:
    while node is not None:
        yield node
        node = node.below


def _variable_of_frame(name: _Name) -> str:
    for node in _nodes_below(name.top):
        held = node.object
        if _objects.is_kind(held, types.FrameType) and node.below is not None and not is_of_library(held.f_code.co_filename):
            variable = _variable_name(held, node.below.object)
            variable = f"a variable `{variable}`" if variable else "a variable"
            return f", in {variable} of {held.f_code.co_name}() at {shown(held.f_code.co_filename)}:{held.f_lineno}"
    return ""


# --- the names of running functions -------------------------------------------------------------------------------------


def _local_names() -> dict[int, list[_Variable]]:
    """The variables of running functions that refer to objects, by the objects' ids; the innermost first. Nothing is held."""
    names: dict[int, list[_Variable]] = {}
    walked: types.FrameType | None
    for walked in sys._current_frames().values():
        depth = _depth(walked)
        while walked is not None:
            _add_locals(walked, depth, names)
            walked, depth = walked.f_back, depth - 1
    for exception in _objects.uncaught():
        for walked in reversed([*_objects.frames_of(exception)]):
            _add_locals(walked, _depth(walked), names)
    contexts = [held for held in gc.get_objects() if _objects.is_kind(held, contextvars.Context)]  # of waiting tasks, too
    for context in contexts:
        for variable, value in context.items():
            names.setdefault(id(value), []).append(_Variable(variable.name, "a context variable", _WORST))
    walked = None  # None of the frames is held: ours would be held by its own variable, and hold all that its callers have.
    return names


def _depth(frame: types.FrameType) -> int:
    """Returns the depth of a function's call, below the program's begin."""
    return sum(1 for _ in traceback.walk_stack(frame))


def _parts_of_uncaught() -> set[int]:
    """Ids of what the uncaught exceptions consist of. Their functions' variables are names, as those of running functions are."""
    parts: set[int] = set()
    for exception in _objects.uncaught():
        parts.update([id(exception)], map(id, _objects.tracebacks(exception)), map(id, _objects.frames_of(exception)))
    return parts


def _add_locals(frame: types.FrameType, depth: int, names: dict[int, list[_Variable]]) -> None:
    """Adds the variables of a function of the program's: a library's have values that its callers' variables say more of."""
    code = frame.f_code
    if not code.co_flags & inspect.CO_OPTIMIZED or is_of_library(code.co_filename):  # or they may be in any mapping
        return
    place = f"a variable of {code.co_name}() in {shown(code.co_filename)}"
    for name, value in _variables(frame):
        rank = 2 * depth - (name in ("self", "cls"))
        names.setdefault(id(value), []).append(_Variable(name, place, rank))


def _variables(frame: types.FrameType) -> list[tuple[str, Any]]:
    variables = frame.f_locals
    items = list(variables.copy().items())  # another thread's may change
    # Before Python 3.13 a function's f_locals is a copy that the frame keeps: it would keep tensors alive.
    is_copy = sys.version_info < (3, 13)
    if is_copy and sys.gettrace() is None and sys.getrefcount(variables) <= 3:
        variables.clear()
    return items


def _variable_name(frame: types.FrameType | None, value: Any) -> str:
    """The frame's variable with the value; "" where it has no name, as the iterator of a comprehension."""
    named = _variables(frame) if frame is not None else []
    return next((name for name, held in named if held is value and name.isidentifier()), "")
