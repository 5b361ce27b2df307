"""Finds the functions and classes of a C++ source, with their lines and members, by its braces.

It reads the style of this code base: formatted by clang-format, braces balanced in each branch of an #if. It does not expand
macros; a name in capitals with arguments is an annotation and declares nothing. Source that it cannot follow raises ScanError.
"""

import re
import typing


class ScanError(Exception):
    def __init__(self, line, text):
        super().__init__(text)
        self.line = line


class Function(typing.NamedTuple):
    name: str
    line: int
    lines: int


class Class(typing.NamedTuple):
    name: str
    line: int
    members: int  # functions, each overload by itself, and data


class Token(typing.NamedTuple):
    text: str
    line: int


# ---- Words ------------------------------------------------------------------------------------------------------------

NOT_CODE = re.compile(
    r'//(?:[^\\\n]|\\.|\\\n)*'  # a comment may go on behind a backslash
    r'|/\*.*?\*/'
    r'|(?:u8|[uUL])?R"(?P<delimiter>[^()\\\s]{0,16})\(.*?\)(?P=delimiter)"'
    r'|(?:u8|[uUL])?"(?:[^"\\\n]|\\.)*"'
    r"|(?<![0-9A-Za-z_])(?:u8|[uUL])?'(?:[^'\\\n]|\\.)+'", re.DOTALL)
# The macros of cachalot/version.h.
OPENS_NAMESPACE = re.compile(r"^CACHALOT_BEGIN(?:_API)?$", re.MULTILINE)
CLOSES_NAMESPACE = re.compile(r"^CACHALOT_END(?:_API)?$", re.MULTILINE)
DIRECTIVE = re.compile(r"^[ \t]*#(?:[^\\\n]|\\.|\\\n)*", re.MULTILINE | re.DOTALL)
WORD = re.compile(r"[A-Za-z_]\w*|\.?\d(?:[\w.']|(?<=[eEpP])[+-])*|::|->|\.\.\.|\S")


def blank(match):
    """Keeps the lines of dropped text. A text stays a word of its own."""
    return ('""' if match[0].endswith('"') else " ") + "\n" * match[0].count("\n")


def tokens_of(source):
    source = DIRECTIVE.sub(blank, NOT_CODE.sub(blank, source))
    source = CLOSES_NAMESPACE.sub("}", OPENS_NAMESPACE.sub("namespace cachalot {", source))
    return [Token(match[0], number) for number, line in enumerate(source.split("\n"), 1) for match in WORD.finditer(line)]


# ---- Declarations -------------------------------------------------------------------------------------------------------

BEFORE_A_CLASS = {"typedef", "static", "const", "constexpr", "inline", "export", "mutable", "volatile", "extern"}
CLASS_WORDS = {"class", "struct", "union"}
# Their parentheses hold no parameters.
NO_FUNCTIONS = {"alignas", "decltype", "noexcept", "requires", "explicit", "__attribute__", "static_assert", "sizeof", "typeof"}
CLOSING = {"(": ")", "[": "]", "{": "}", "<": ">"}


def is_name(word):
    return re.match(r"[A-Za-z_]", word) is not None


def is_annotation(word):
    return re.fullmatch(r"[A-Z][A-Z0-9_]+", word) is not None


def skip(words, at):
    """Returns where the text behind the bracket at `at` begins; its end, if it does not close."""
    opened = []
    while at < len(words):
        word = words[at]
        if word in CLOSING:
            opened.append(CLOSING[word])
        elif word == ">" and opened and opened[-1] == ">":
            opened.pop()
        elif word in (")", "]", "}"):
            while opened and opened[-1] == ">":  # it was "less than"
                opened.pop()
            if opened:
                opened.pop()
        at += 1
        if not opened:
            break
    return at


def top_level(words):
    """Yields (index, word) of the words outside of all brackets; brackets that open are among them."""
    at = 0
    while at < len(words):
        yield at, words[at]
        if words[at] == "operator":
            at += 1
            while at < len(words) and words[at] != "(":
                at += 1
            if words[at:at + 2] == ["(", ")"] and words[at + 2:at + 3] == ["("]:
                at += 2  # operator()
            continue
        at = skip(words, at) if words[at] in CLOSING else at + 1


def without_template(words):
    while words[:1] == ["template"] and words[1:2] == ["<"]:
        words = words[skip(words, 1):]
        if words[:1] == ["requires"]:
            words = without_constraint(words)
    return words


def without_constraint(words):
    """Drops `requires A<T> && B<T>`: what follows a name without && or || between begins the declaration."""
    at = 1
    while at < len(words):
        while at < len(words) and (words[at] == "::" or is_name(words[at]) and (at == 1 or words[at - 1] in ("::", "&", "|"))):
            at += 1
        if at < len(words) and words[at] in ("(", "<"):
            at = skip(words, at)
        if words[at:at + 2] not in (["&", "&"], ["|", "|"]):
            break
        at += 2
    return words[at:]


def without_attributes(words):
    while words[:2] == ["[", "["]:
        words = words[skip(words, 0):]
    return words


def declared_class(words):
    """The name of the class that the words declare, "" if it has none; None: they declare something else."""
    words = without_attributes(without_template(words))
    while words and words[0] in BEFORE_A_CLASS:
        words = words[1:]
    if not words or words[0] not in CLASS_WORDS:
        return None
    name = ""
    for _, word in top_level(words[1:]):
        if word == ":":
            break
        if is_name(word) and word != "final" and not is_annotation(word):
            name = word
    return name


def parameters_at(words):
    """Returns the position where the parentheses of a function's parameters open; None: the words declare no function."""
    for at, word in top_level(words):
        if word == "=":
            return None
        if word != "(" or at == 0:
            continue
        before = words[at - 1]
        if before in NO_FUNCTIONS or is_annotation(before):
            continue
        if words[at + 1:at + 2] in (["*"], ["&"]) or words[at + 2:at + 4] == ["::", "*"]:  # a pointer to a function
            return None
        return at
    return None


def function_name(words):
    at = parameters_at(words)
    if "operator" in words[:at]:
        return "operator" + "".join(words[words.index("operator") + 1:at])
    first = at
    while True:
        first = name_before(words, first)
        if words[first - 1:first] == ["~"]:
            first -= 1
        if first < 2 or words[first - 1] != "::":
            return "".join(words[first:at])
        first -= 1


def name_before(words, end):
    """Returns the begin of the name that ends there, with its template arguments behind it."""
    begin = end - 1
    depth = 0
    while words[begin] == ">" or depth > 0:
        depth += (words[begin] == ">") - (words[begin] == "<")
        begin -= 1
    return begin


def is_in_initializers(words):
    """Returns whether the words are behind a constructor's colon, where a brace behind a name begins a value and no body."""
    at = parameters_at(words)
    return at is not None and any(word == ":" for index, word in top_level(words) if index > at)


def declarators(words):
    return 1 + sum(word == "," for _, word in top_level(words))


NO_MEMBERS = {"using", "typedef", "friend", "static_assert", "namespace", "__extension__"}


def members_in(words):
    """Returns the number of members of the declaration that ends here."""
    words = without_attributes(without_template(words))
    if not words or words[0] in NO_MEMBERS:
        return 0
    if parameters_at(words) is not None:
        return 1
    if words[0] == "enum" or (words[0] in CLASS_WORDS and is_forward(words)):
        return 0
    return declarators(words) if any(is_name(word) for word in words) else 0


def is_forward(words):
    return sum(is_name(word) and not is_annotation(word) for _, word in top_level(words[1:])) < 2


# ---- Scopes -------------------------------------------------------------------------------------------------------------

CODE = ("function", "friend", "block")


class Scope:
    def __init__(self, kind, name="", line=0):
        self.kind = kind  # "namespace", "class", "block", "function" or, in a class, "friend"
        self.name = name
        self.line = line
        self.members = 0


class Scan:
    """One pass over a source. `head` is the declaration that is being read: the tokens since the last one ended."""

    def __init__(self, source):
        self.tokens = tokens_of(source)
        self.at = 0
        self.scopes = [Scope("namespace")]
        self.head = []
        self.functions = []
        self.classes = []

    def run(self):
        while self.at < len(self.tokens):
            self.step(self.tokens[self.at])
        if len(self.scopes) > 1:
            raise ScanError(self.scopes[-1].line, "a brace is not closed")
        return self

    def step(self, token):
        self.at += 1
        if token.text == "{":
            self.open(token)
        elif token.text == "}":
            self.close(token)
        elif token.text in ("(", "["):
            self.take_bracket(token)
        elif token.text == ";":
            self.end_declaration()
        elif token.text == ":" and self.ends_label():
            self.head = []
        else:
            self.head.append(token)

    def words(self):
        return [token.text for token in self.head]

    def ends_label(self):
        return self.words() in (["public"], ["protected"], ["private"]) or self.scopes[-1].kind in CODE

    def end_declaration(self):
        if self.scopes[-1].kind == "class":
            self.scopes[-1].members += members_in(self.words())
        self.head = []

    def take_bracket(self, token):
        """Takes all up to its end. In a function, where classes may be in a lambda, the text between is read as it comes."""
        self.head.append(token)
        if self.scopes[-1].kind in CODE:
            return
        depth = 1
        while depth > 0:
            if self.at == len(self.tokens):
                raise ScanError(token.line, "a bracket is not closed")
            inner = self.tokens[self.at]
            depth += (inner.text in "([{") - (inner.text in ")]}")
            self.head.append(inner)
            self.at += 1

    def open(self, token):
        words = self.words()
        line = self.head[0].line if self.head else token.line
        scope = self.scopes[-1]
        name = declared_class(words)
        if name is not None and parameters_at(words[1:]) is None:
            self.push(Scope("class", name, line))
        elif scope.kind in CODE:
            self.push(Scope("block", line=token.line))
        elif "namespace" in words or words[:1] == ["extern"] and words[1:2] == ['"']:
            self.push(Scope("namespace", line=line))
        elif parameters_at(words) is not None and not (is_in_initializers(words) and self.begins_value(words)):
            self.push(Scope("friend" if words[0] == "friend" else "function", function_name(words), line))
        else:
            self.take_bracket(token)  # an initializer, or an enum's values

    @staticmethod
    def begins_value(words):
        return is_name(words[-1]) or words[-1] == ">"

    def push(self, scope):
        self.scopes.append(scope)
        self.head = []

    def close(self, token):
        scope = self.scopes.pop()
        if not self.scopes:
            raise ScanError(token.line, "a brace closes nothing")
        self.head = []
        if scope.kind in ("function", "friend"):
            self.functions.append(Function(scope.name, scope.line, token.line - scope.line + 1))
            if scope.kind == "function" and self.scopes[-1].kind == "class":
                self.scopes[-1].members += 1
        elif scope.kind == "class":
            self.classes.append(Class(scope.name, scope.line, scope.members))


def scan(source):
    """Returns the functions and classes of the source."""
    done = Scan(source).run()
    return done.functions, done.classes
