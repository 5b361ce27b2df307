#!/usr/bin/env python3
"""Reports phrases that make documents and comments hard to read, with the rule and a replacement.

    check_language.py [--command build/dev/tools/cachalot] [FILE…]
    check_language.py --self-test

Without FILEs it checks the documents that DOCUMENTS lists, and all sources in C, C++, CUDA and Python. With --command it also
checks the --help texts of the command. Each finding is a line "file:line: 'phrase': rule"; the exit status is 1 if there is one.

In documents, code is not checked: fenced and indented blocks, and `inline code`. In sources only comments and docstrings are
checked.
"""

import argparse
import ast
import io
import os
import pathlib
import re
import subprocess
import sys
import tokenize
import typing

ROOT = pathlib.Path(__file__).resolve().parents[2]

DOCUMENTS = [
    "*.md", "allocator/README.md", "bench/**/*.md", "data/**/*.md", "docs/**/*.md", "examples/**/*.md", "kernels/*.md", "adapters/*.md",
    "packaging/*.md", "pool/*.md", "pytorch/**/*.md", "simulator/*.md",
]
SOURCES = {".c", ".cpp", ".cu", ".cuh", ".h", ".inc", ".py"}  # and programs without a suffix that begin with #!…python
NOT_READ = {"build", "docs/site", "tools/html/vendor"}  # built, or written by others
PUBLIC_HEADERS = {f"{folder}/include/cachalot" for folder in
                  ("adapters", "allocator", "c_api", "diagnostics", "kernels", "pool", "simulator", "simulator/device")}
HEADER_COLUMNS = 100

# ---- Rules ------------------------------------------------------------------------------------------------------------

EVERYWHERE = "everywhere"
STARTS = "starts"  # of headings, and of the first sentence of a comment
SOURCE_STARTS = "starts in sources"  # of the first sentence of a comment
SOURCE = "sources"  # comments and docstrings


class Rule(typing.NamedTuple):
    pattern: re.Pattern
    advice: str
    where: str = EVERYWHERE


def rule(pattern, advice, where=EVERYWHERE):
    return Rule(re.compile(pattern), advice, where)


UNITS = r"(?:ns|us|µs|ms|bytes|instructions|KiB|MiB|GiB|pairs|numbers|one|two|three|times)"
PER = r"(?:pair|event|line|thread|stream|device|block|iteration|step|slot|MiB|GiB|page|malloc|call|trace|shape|direction|class)"

PERSONS = ("user", "users", "reader", "readers", "people", "those", "anyone", "everyone", "someone", "author", "authors", "programmers")

RULES = [
    rule(r"^(?:What|Who|Whom|Whose|Whether|Whoever|Where|Of|As|The same|Those)\b(?![^.:;]*\?)",
         "begin with the subject: the thing that is declared, or a verb such as Returns", STARTS),
    rule(r"^(?:How|Which|Without|That)\b(?![^.:;]*\?)", "begin with the subject or a verb", SOURCE_STARTS),
    rule(r"^(?:what|who|whose|whom|whether|how|which)\b", "name the noun: the cost, the number of bytes", SOURCE_STARTS),
    rule(r"^(?:With|By|To|In|On|From|For|At|After|Under|Through|Behind|Into) (?:which|what|whom|whose)\b",
         "begin with the subject or a verb", SOURCE_STARTS),
    rule(r"^When\b[^,.:;?]*[.:;]", "begin with the subject or a verb", SOURCE_STARTS),
    rule(r"^(?:[Tt]rue|[Ff]alse)\b[:,]", "Returns true if …", SOURCE_STARTS),
    rule(r"^The (?:\w+ )?\w+'s?[,.;:]", "name the noun: the process's connections", SOURCE_STARTS),
    rule(r"\b(?:has|have|had) not(?=[.,;:)]|$| (?:the|an?|any|enough|its|one|room)\b)", "does not have"),
    rule(r"(?<![Tt]here )\b(?:is|are|was) none\b", "say 'is not a …' or 'is invalid'"),
    rule(r"\bthere (?:is|are|was|were) not(?=[.,;:)]|$)", "does not exist"),
    rule(r"(?<![Tt]here )\b(?:is|was) no (?:number|size|slot|block|file|name|tag|pool|leak|mistake|GPU)\b", "is not a …"),
    rule(r"\b(?:[Hh]imself|[Hh]erself|[Hh]e|[Hh]im|[Hh]is|[Ss]he)\b", "threads and programs are not persons: name the thing, or use 'it'"),
    rule(r"\b(?:[Ss]omebody|[Nn]obody|[Aa]nybody|[Ee]verybody)(?:'s|s)?\b", "name the subject: the caller, another thread"),
    rule(r"\b(?:for|by|to|of|from|with|but|that|whom) who\b|(?:^|[.;:] )(?:Who|Whoever) (?![^.]*\?)",
         "name the subject: the caller, the thread that …"),
    rule(rf"\b{UNITS} an? {PER}\b", "per"),
    rule(r"\bone for one\b", "exactly"),
    rule(r", aloud\b", "with a message"),
    rule(r"\bto be had\b", "available"),
    rule(r"\bas ever\b", "as before, as usual"),
    rule(r"\bfor (?:ever|good|life)\b", "permanently, for its whole life"),
    rule(r"\bbut for\b", "except for"),
    rule(r", for (?:no \w+|the \w+|it|they|there|this|these|that) (?:is|are|was|were|has|have|does|do|can|may|must)\b", "because"),
    rule(r"\blest\b|\bsome day\b", "so that … does not, later"),
    rule(r"\bis told (?:of|that|which)\b|\bhears? of\b|\btells? of\b", "receives, is notified of, reports"),
    rule(r"\blet(?:s|ting)? go(?: of)?\b", "release"),
    rule(r"\b[Aa]n UUID\b", "a UUID"),
    rule(r"\bthe used\b(?= *[.,:;)])|\btimes the used\b", "used memory"),
    rule(r"\bto the byte\b(?=,? (?:as|in|is))|\breal to the byte\b", "exact"),
    rule(r"\b(?:[Oo]f|[Ff]or|[Bb]y|[Ww]ith|[Ff]rom) what (?:is|was|are|lies?|lives?|sleeps?|waits?|has|have)\b",
         "name the noun: of the memory that …"),
    rule(r"\ban own\b", "its own"),
    rule(r"\bin one go\b", "at once"),
    rule(r"\bon (?:the|its) host's account\b", "costs host time"),
    rule(r"(?<=[.;] )(?:True|False): ", "Returns true if …", SOURCE),
    rule(r"(?<=[.;] )(?:What|Whatever|Whose|Whom|Whether|Of (?:what|those|these))\b(?![^.;:]*\?)", "begin with the subject: a noun", SOURCE),
    rule(r"\bwhat (?:was|is|were|are) (?:\w+ed|\w+en|held|left|made|read|found|free|live|open|asleep|there)\b(?! (?:to|of it|in)\b)",
         "name the noun: the memory that …, freed memory", SOURCE),
    rule(r"\b(?:is|are|was|were) no more\b(?! than)", "no longer exists", SOURCE),
    rule(r"\b[Ss]o (?:much|many)\b(?! (?:that|less|better|of)\b)", "name the number: of `count` bytes", SOURCE),
    rule(r"\b(?:some|all|part|more|less|most|much|each|any|none|one|half|rest|sum|list|end) of what\b", "name the noun", SOURCE),
    rule(r"(?:^|[,;:] )(?:[Ww]ere|[Ss]hould|[Hh]ad) (?:it|they|there|this|the|an?) ", "if it …", SOURCE),
    rule(r"\bof (?:ours|theirs|yours)\b", "our, their, the library's", SOURCE),
    rule(r"\b[Cc](?:omes?|ame) here\b", "is also called for", SOURCE),
    rule(r"\bthat there (?:is|are)\b(?! (?:an?|no|not|one|two|three|enough|nothing|any|some|only|room|more|at|none|too|memory)\b)",
         "that exists, or leave it out", SOURCE),
    rule(r"\b[Ww]ho(?:m)?ever\b", "any thread that, the caller that", SOURCE),
    rule("".join(f"(?<!{word} )" for word in PERSONS) + r"\bwho\b", "name the subject: the thread that …, the caller that …", SOURCE),
    rule(r"^There (?:is|are) none\b|^(?:Null: |nullptr: (?:it|this|there)\b)|(?<=[.;] )(?:nullptr|[Nn]ull): ",
         "Returns …, or null if …; Requires: …", SOURCE),
    rule(r"\b(?:throws|raises|Throws|Raises) as [^ ;,.]+ *[;,.]", "as … does", SOURCE),
    rule(r"(?<![Tt]here )\b(?:is|was|are|were) no (?!longer\b|more\b|other\b|less\b|better\b|worse\b|later\b|earlier\b|larger\b)\w+",
         "is not a …", SOURCE),
    rule(r"(?<=; )what\b(?![^.;]*\?)", "begin with the subject: a noun", SOURCE),
    rule(r"\b(?:comes?|came|stands?) behind\b", "follows"),
    rule(r"\b[Ll]ocks? by (?:itself|themselves)\b", "takes the lock itself"),
    rule(r"\b(?:while|until|when|as long as) this (?:lives|goes|dies)\b", "while the object lives; the destructor …", SOURCE),
    rule(r"\bis how much\b|\bof how (?:far|much|many)\b(?=,)", "name the quantity"),
]

# ---- Texts: paragraphs of prose, each with the line of every character --------------------------------------------------


class Paragraph(typing.NamedTuple):
    text: str
    lines: list  # number of the line, for each character
    is_start: bool  # a heading, or the first paragraph of a comment
    is_source: bool = False  # of a comment or a docstring


def joined(lines, is_start=False):
    """Returns one paragraph of (number, text) pairs."""
    text = ""
    numbers = []
    for number, line in lines:
        line = line.strip() + " "
        text += line
        numbers += [number] * len(line)
    return Paragraph(text.rstrip(), numbers, is_start)


INLINE = re.compile(r"``.+?``|`[^`]*`|<!--.*?-->|\]\([^)]*\)|<https?:[^>]*>|https?:\S+")


def without_code(paragraph, **changes):
    text = INLINE.sub(lambda found: "`" + " " * (len(found[0]) - 2) + "`" if len(found[0]) > 1 else " ", paragraph.text)
    return paragraph._replace(text=text, **changes)


def document_paragraphs(text):
    """Returns the prose of a Markdown document."""
    paragraphs = []
    current = []
    fence = None
    before_is_blank = True
    in_list = False

    def end():
        if current:
            paragraphs.append(joined(current))
            current.clear()

    for number, line in enumerate(text.splitlines(), 1):
        mark = re.match(r"\s*(```+|~~~+)", line)
        if fence or mark:
            end()
            if not fence:
                fence = mark[1]
            elif mark and mark[1].startswith(fence):
                fence = None
            continue
        blank = not line.strip()
        if blank:
            end()
        elif re.match(r"(?: {4}|\t)", line) and before_is_blank and not in_list:
            continue  # indented code; before_is_blank stays
        elif heading := re.match(r"#{1,6} +(.*)", line):
            end()
            title = re.sub(r"^\d{4}: ", "", heading[1])
            paragraphs.append(joined([(number, title)], is_start=True))
            in_list = False
        elif line.lstrip().startswith("|"):
            end()
            for cell in line.strip().strip("|").split("|"):
                paragraphs.append(joined([(number, cell)]))
        elif item := re.match(r"\s*(?:[*+-]|\d+\.|:) +(.*)", line):
            end()
            current.append((number, item[1]))
            in_list = True
        else:
            if not line.startswith(" "):
                in_list = False
            current.append((number, line))
        before_is_blank = blank
    end()
    return [without_code(paragraph) for paragraph in paragraphs]


# ---- Comments and docstrings ------------------------------------------------------------------------------------------


class Piece(typing.NamedTuple):
    """A comment of one line, or a line of a longer one, without its marks."""
    line: int
    column: int
    text: str
    is_alone: bool  # no code before it
    block: int  # the lines of one /* */ share it; 0 for other comments


CPP = re.compile(r"""(?P<raw>R"(?P<mark>[^()\\\s"]{0,16})\(.*?\)(?P=mark)")|"(?:\\.|[^"\\\n])*"|(?<![0-9a-fA-F])'(?:\\.|[^'\\\n])+'"""
                 r"""|//(?P<line>[^\n]*)|/\*(?P<block>.*?)\*/""", re.DOTALL)
BLOCK_LINE = re.compile(r"^\s*(?:\*+(?!/))?(.*)$")


def cpp_pieces(text):
    """Returns the comments of a C, C++ or CUDA source."""
    pieces = []
    number, counted = 1, 0
    for found in CPP.finditer(text):
        comment = found["line"] if found["line"] is not None else found["block"]
        if comment is None:
            continue
        number += text.count("\n", counted, found.start())
        counted = found.start()
        begin = text.rfind("\n", 0, counted) + 1
        is_alone = not text[begin:counted].strip()
        if found["line"] is not None:
            pieces.append(Piece(number, counted - begin, comment.lstrip("/!<"), is_alone, 0))
        else:
            pieces += [Piece(number + row, counted - begin, BLOCK_LINE.match(line)[1], is_alone, counted + 1)
                       for row, line in enumerate(comment.split("\n"))]
    return pieces


def python_pieces(text):
    """Returns the comments of a Python source."""
    pieces = []
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT and not (token.start[0] == 1 and token.string.startswith("#!")):
            pieces.append(Piece(*token.start, token.string.lstrip("#:!"), not token.line[:token.start[1]].strip(), 0))
    return pieces


RULER = re.compile(r"^\s*(?:[-=~#]{3,}\s*)?(.*?)(?:\s*[-=~#]{3,})?\s*$")  # ---- Title ------
MARKS = re.compile(r"^\s*(?:NOLINT|clang-format|noqa|type: ignore|pyright:|mypy:|pylint:|IWYU|SPDX|namespace\b|!?[A-Z_]+$)")
CODE_IN_COMMENT = re.compile(r"\s{3,}\S")


def grouped(pieces):
    """Returns the pieces of each comment: consecutive lines, or a trailing comment with the lines that continue it."""
    comments = []
    for piece in pieces:
        before = comments[-1][-1] if comments else None
        if before and before.line + 1 == piece.line and piece.is_alone and piece.block == before.block and (
                piece.block or piece.column == before.column):
            comments[-1].append(piece)
        elif before and piece.block and piece.block == before.block:
            comments[-1].append(piece)
        else:
            comments.append([piece])
    return comments


def comment_paragraphs(pieces):
    paragraphs = []
    for comment in grouped(pieces):
        part = []
        is_first = True
        for piece in [*comment, Piece(0, 0, "", True, 0)]:
            ruler = RULER.match(piece.text) if re.match(r"^\s*[-=~#]{3,}", piece.text) else None
            line = "" if ruler or MARKS.match(piece.text) else piece.text
            if line.strip() and not (CODE_IN_COMMENT.match(line) and comment[0].is_alone):
                part.append((piece.line, line))
            elif part:
                paragraphs.append(joined(part, is_start=is_first))
                part = []
                is_first = False
            if ruler and ruler[1]:
                paragraphs.append(joined([(piece.line, ruler[1])], is_start=True))
                is_first = True
    return [without_code(paragraph, is_source=True) for paragraph in paragraphs]


def cpp_paragraphs(text):
    return comment_paragraphs(cpp_pieces(text))


def docstring_paragraphs(text):
    paragraphs = []
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        if docstring := ast.get_docstring(node):
            first = node.body[0].lineno
            lines = docstring.splitlines()
            rest = 1 + next((row for row, line in enumerate(lines[1:]) if not line.strip()), len(lines) - 1)
            paragraphs.append(joined([(first + row, line) for row, line in enumerate(lines[:rest])], is_start=True))
            paragraphs += [part._replace(lines=[first + rest - 1 + number for number in part.lines])
                           for part in document_paragraphs("\n".join(lines[rest:]))]
    return [without_code(paragraph, is_source=True) for paragraph in paragraphs]


def python_paragraphs(text):
    return docstring_paragraphs(text) + comment_paragraphs(python_pieces(text))


def help_paragraphs(text):
    return [joined([(number, line)]) for number, line in enumerate(text.splitlines(), 1)
            if line.strip()] + [joined(list(enumerate(text.splitlines(), 1)))]


# ---- Checking ---------------------------------------------------------------------------------------------------------


def findings(name, paragraphs):
    found = {}
    for paragraph in paragraphs:
        for one in RULES:
            if one.where in (STARTS, SOURCE_STARTS) and not paragraph.is_start:
                continue
            if one.where in (SOURCE, SOURCE_STARTS) and not paragraph.is_source:
                continue
            for match in one.pattern.finditer(paragraph.text):
                number = paragraph.lines[min(match.start(), len(paragraph.lines) - 1)]
                phrase = " ".join(match[0].split())
                found[name, number, phrase] = f"{name}:{number}: '{phrase}': {one.advice}"
    return list(found.values())


def long_lines(name, text):
    return [f"{name}:{number}: {len(line)} columns: at most {HEADER_COLUMNS} in public headers"
            for number, line in enumerate(text.splitlines(), 1) if len(line) > HEADER_COLUMNS]


def check_file(path):
    name = path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else str(path)
    text = path.read_text()
    if path.suffix == ".md":
        return findings(name, document_paragraphs(text))
    if path.suffix in SOURCES - {".py"} or str(pathlib.PurePath(name).parent) in PUBLIC_HEADERS:
        found = findings(name, cpp_paragraphs(text))
        return found + (long_lines(name, text) if str(pathlib.PurePath(name).parent) in PUBLIC_HEADERS else [])
    return findings(name, python_paragraphs(text))


def check_help(command):
    found = []
    for arguments in (["--help"], *([name, "--help"] for name in subcommands(command))):
        name = " ".join([command.name, *arguments])
        found += findings(name, help_paragraphs(output([command, *arguments])))
    return found


def output(words):
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"check_language.py: {' '.join(map(str, words))}: exit status {done.returncode}")
    return done.stdout


def subcommands(command):
    """Returns the words that begin the lines of the list "Commands:" in the command's help."""
    listed = re.search(r"^Commands:\n((?: .*\n)+)", output([command, "--help"]), re.MULTILINE)
    if not listed:
        sys.exit(f"check_language.py: {command.name} --help has no list 'Commands:'")
    return re.findall(r"^  (\w[\w-]*)", listed[1], re.MULTILINE)


def is_source(path):
    if path.suffix:
        return path.suffix in SOURCES
    with path.open("rb") as file:
        return re.match(rb"#!.*\bpython", file.readline(100)) is not None


def files():
    """Returns the documents and sources of the repository, without those in NOT_READ."""
    found = {path for pattern in DOCUMENTS for path in ROOT.glob(pattern)}
    for folder, folders, names in os.walk(ROOT):
        inside = pathlib.Path(folder).relative_to(ROOT)
        folders[:] = [name for name in folders if (inside / name).as_posix() not in NOT_READ and name != "__pycache__"
                      and (not name.startswith(".") or name == ".ci")]
        found |= {path for path in (ROOT / inside / name for name in names) if is_source(path)}
    left_out = {ROOT / name for name in NOT_READ}
    return sorted(path for path in found if not left_out & {path, *path.parents})


# ---- Self-test ----------------------------------------------------------------------------------------------------------

GOOD = [
    "# Leak detector", "# Why is memory not returned?", "# What is a leak?",
    "Returns the number of bytes per pair.", "It does not have a GPU.", "There is none in this build.",
    "A test has not run yet.", "one of a pair", "Does the program fit?", "The host waits once per second.",
    "`somebody` is code, and so is `is none`.", "    indented code: somebody wrote 3 ns a pair", "Its own stream is used.",
    "```\nsomebody wrote behind it\n```", "It was let in.", "This is for users who train models.",
]
BAD = {
    "# What is where": "What", "# Whose memory is it": "Whose", "# Of streams": "Of", "# The same in C": "The same",
    "A device that the allocator has not.": "has not", "The heap has not enough memory.": "has not",
    "A spec that is none is refused.": "is none", "A device that there is not.": "there is not",
    "'A100' is no GPU of the table.": "is no GPU", "The caller frees it himself.": "himself",
    "Memory that somebody\nwrote to.": "somebody", "It is for who\nholds memory.": "for who",
    "Fast. Who frees it waits.": ". Who", "30 ns a pair": "ns a pair", "one a line": "one a line",
    "It decides one for one.": "one for one", "It is skipped, aloud.": ", aloud", "Nothing is to be had.": "to be had",
    "It works as ever.": "as ever", "It is kept for good.": "for good", "The lock is let go.": "let go",
    "* an item, of what is held": "of what is", "| cell | an UUID |": "an UUID",
}
BAD_COMMENTS = {
    "// What it asks for memory.\nint a();": "What", "// Whether it is open.\nbool b();": "Whether",
    "/* As the other one. */\nint c();": "As", "int d;  // a device that it has not": "has not",
    "// Returns a.\n//\n// Of what is held, a part. He frees it.\nint e();": "He",
    "// How much it is.\nint f();": "How", "// Which block fits.\nint g();": "Which", "// Without the lock.\nint h();": "Without",
    "// In which order they go.\nint i();": "In which", "// When it ends.\nint j();": "When it ends.", "// True: it is open.\nbool k();": "True:",
    "// Closes it. False: it was not open.\nbool l();": "False:", "// The process's, made once.\nint& m();": "The process's",
    "int n;  // what it costs": "what", "bool o;  // true: it is open": "true:", "// The stream is no more.\nint p();": "is no more",
    "// Takes so many bytes.\nint q();": "so many", "// Gives back some of what it took.\nint r();": "some of what",
    "// Returns it, should it fit.\nint s();": "should it", "// A call of ours is in it.\nint t();": "of ours",
    "// Comes here for host memory, too.\nint u();": "Comes here", "// Visits each block that there is.\nint v();": "that there is",
    "// Locks it for whoever frees.\nint w();": "whoever", "// Says who allocated it.\nint x();": "who",
    "// Goes on. What failed stays.\nint y();": "What", "// Goes on. Of those in use, none.\nint z();": "Of those",
    "// Gives back what is cached.\nint a();": "what is cached", "int b(\"//\");  // Whose it is": "Whose",
    "int c(R\"(/*)\");\n// Whose it is.\nint d();": "Whose", "auto d = '\"';  // Whose it is": "Whose", "// ---- What is left ----": "What",
    "int e;  // the bytes\n        // of what is held\n": "of what is", "// All calls, but for frees.\nint f();": "but for",
    "// Has a key, for no two are equal.\nint g();": ", for no two are", "// It is half, lest rounding decides.\nint h();": "lest",
    "// It goes some day.\nint i();": "some day", "// Belongs for life to a stream.\nint j();": "for life",
    "// Keep so many more slots.\nint k();": "so many", "// nullptr: there is none.\nint* l();": "nullptr: there",
    "// Null: out of memory.\nint* m();": "Null:", "// Returns the gap; nullptr: none.\nint* n();": "nullptr:",
    "// There is none.\nint& o();": "There is none", "// Takes it. Throws as take; then nothing changes.\nvoid p();": "Throws as take",
    "// Throws if it is no power of two.\nvoid q();": "is no power", "// Waits; what takes longer is killed.\nvoid r();": "what",
    "// The child comes behind the other.\nvoid s();": "comes behind", "// These lock by themselves.\nvoid t();": "lock by",
    "// It is killed when this goes.\nvoid u();": "when this goes",
}
GOOD_COMMENTS = [
    "// Returns a.\nint a();", "// Does it fit?\nbool b();", "int c;  // of the whole handle",
    "// Example:\n//\n//   somebody(wrote);\nint d();", "int e(const char* url = \"http://who\");",
    "// When it ends, the memory goes.\nint f();", "// Returns true if it is open: false otherwise.\nbool g();",
    "int h;  // so much that it overflows", "// Returns the users who set it.\nint i();", "const char* j = \"what // is cached\";",
    "const char* k = R\"(// Whose\n// Of)\";", "int l = 1'000'000;  // bytes", "// ---- Waits ----\nint m();",
    "// NOLINTNEXTLINE(whoever)\nint n();", "int o;  // no more than this", "// There is no pool.\nint q();",
    "int* r = nullptr;  // null: no hints", "// Throws as launch does.\nvoid s();", "// It is no longer used.\nint t();",
    "// Serves it now, for the memory that is free.\nint u();", "// Returns what is wrong with it, or \"\".\nint p();",
]
BAD_PYTHON = {
    "def a():\n    \"\"\"Of so many floats.\"\"\"": "Of", "def b():\n    \"\"\"Returns it.\n\n    It is kept for good.\n    \"\"\"": "for good",
    "class C:\n    \"\"\"Whose it is.\"\"\"": "Whose", "\"\"\"What it does.\"\"\"": "What", "# Whether it fits.\na = 1": "Whether",
    "a = 1  # what it costs": "what", "def _d():\n    \"\"\"Whether it fits.\"\"\"": "Whether",
    "def enable(config):\n    \"\"\"As cachalot.enable_cupy.\"\"\"": "As",
    "class D:\n    def e(self):\n        \"\"\"As the other one.\"\"\"": "As",
}
GOOD_PYTHON = [
    "def a():\n    \"\"\"Returns `somebody`.\n\n    So:\n\n        somebody(wrote)\n    \"\"\"", "a = '# Whose it is'", "#!/usr/bin/env python3\na = 1",
    "a = \"\"\"\n# Whose it is\n\"\"\"", "a = 1  # bytes of it", "a = 1  # noqa: whoever",
]


def self_test():
    wrong = []
    for read, texts in ((document_paragraphs, GOOD), (cpp_paragraphs, GOOD_COMMENTS), (python_paragraphs, GOOD_PYTHON)):
        for text in texts:
            if found := findings("good", read(text)):
                wrong.append(f"{text!r} is refused: {found}")
    for read, texts in ((document_paragraphs, BAD), (cpp_paragraphs, BAD_COMMENTS), (python_paragraphs, BAD_PYTHON)):
        for text, phrase in texts.items():
            found = findings("bad", read(text))
            if not any(phrase.lower() in line.lower() for line in found):
                wrong.append(f"{text!r}: {phrase!r} is not reported, but {found}")
    for read, text, line in ((document_paragraphs, "One.\n\nTwo\nlines, an UUID.\n", "4"),
                             (cpp_paragraphs, "int a;\n\n/* One.\n *\n * Two, an UUID. */\n", "5"),
                             (python_paragraphs, "def a():\n    \"\"\"One.\n\n    Two\n    lines, an UUID.\n    \"\"\"\n", "5")):
        if findings("bad", read(text))[0].split(":")[1] != line:
            wrong.append(f"a finding in {text!r} has the wrong line")
    if len(long_lines("long", "x" * HEADER_COLUMNS + "\n" + "x" * (HEADER_COLUMNS + 1))) != 1:
        wrong.append("long lines are not found")
    good, bad = (sum(map(len, lists)) for lists in ((GOOD, GOOD_COMMENTS, GOOD_PYTHON), (BAD, BAD_COMMENTS, BAD_PYTHON)))
    print("\n".join(wrong) or f"{good} good and {bad} bad texts")
    return 1 if wrong else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--command", type=pathlib.Path, help="the built command, whose --help texts are checked")
    parser.add_argument("--self-test", action="store_true", help="check the rules themselves")
    parser.add_argument("files", nargs="*", type=pathlib.Path, metavar="FILE", help="check these instead of the lists")
    options = parser.parse_args()
    if options.self_test:
        return self_test()
    chosen = [path.resolve() for path in options.files] or files()
    found = [line for path in chosen for line in check_file(path)]
    if options.command:
        found += check_help(options.command)
    print("\n".join(found) or f"{len(chosen)} files: no finding")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
