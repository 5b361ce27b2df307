#!/usr/bin/env python3
"""Reports phrases that make the documentation hard to read, with the rule and a replacement.

    check_language.py [--command build/dev/tools/cachalot] [FILE…]
    check_language.py --self-test

Without FILEs it checks the documents, public headers and docstrings that DOCUMENTS, HEADERS and PYTHON list, and with
--command the --help texts of the command. Each finding is a line "file:line: 'phrase': rule"; the exit status is 1 if there is one.

In documents, code is not checked: fenced and indented blocks, and `inline code`. In headers only comments are checked.
"""

import argparse
import ast
import functools
import pathlib
import re
import subprocess
import sys
import typing

ROOT = pathlib.Path(__file__).resolve().parents[2]

DOCUMENTS = [
    "*.md", "allocator/README.md", "bench/**/*.md", "data/**/*.md", "docs/**/*.md", "examples/**/*.md", "kernels/*.md", "adapters/*.md",
    "packaging/*.md", "pool/*.md", "pytorch/**/*.md", "simulator/*.md",
]
HEADERS = [f"{folder}/include/cachalot/*" for folder in ("adapters", "allocator", "diagnostics", "kernels", "pool", "simulator", "simulator/device")]
PYTHON = ["pytorch/cachalot/*.py"]
HEADER_COLUMNS = 100

# ---- Rules ------------------------------------------------------------------------------------------------------------

EVERYWHERE = "everywhere"
STARTS = "starts"  # of headings, and of the first sentence of a comment


class Rule(typing.NamedTuple):
    pattern: re.Pattern
    advice: str
    where: str = EVERYWHERE


def rule(pattern, advice, where=EVERYWHERE):
    return Rule(re.compile(pattern), advice, where)


UNITS = r"(?:ns|us|µs|ms|bytes|instructions|KiB|MiB|GiB|pairs|numbers|one|two|three|times)"
PER = r"(?:pair|event|line|thread|stream|device|block|iteration|step|slot|MiB|GiB|page|malloc|call|trace|shape|direction|class)"

RULES = [
    rule(r"^(?:What|Who|Whom|Whose|Whether|Whoever|Where|Of|As|The same|Those)\b(?![^.:;]*\?)",
         "begin with the subject: the thing that is declared, or a verb such as Returns", STARTS),
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
    rule(r"\bfor (?:ever|good)\b", "permanently"),
    rule(r"\bbut for (?:what|those|that|two|one|the)\b", "except"),
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
    rule(r"\bis how much\b|\bof how (?:far|much|many)\b(?=,)", "name the quantity"),
]

# ---- Texts: paragraphs of prose, each with the line of every character --------------------------------------------------


class Paragraph(typing.NamedTuple):
    text: str
    lines: list  # number of the line, for each character
    is_start: bool  # a heading, or the first paragraph of a comment


def joined(lines, is_start=False):
    """One paragraph of (number, text) pairs."""
    text = ""
    numbers = []
    for number, line in lines:
        line = line.strip() + " "
        text += line
        numbers += [number] * len(line)
    return Paragraph(text.rstrip(), numbers, is_start)


INLINE = re.compile(r"``.+?``|`[^`]*`|<!--.*?-->|\]\([^)]*\)|<https?:[^>]*>|https?:\S+")


def without_code(paragraph):
    text = INLINE.sub(lambda found: "`" + " " * (len(found[0]) - 2) + "`" if len(found[0]) > 1 else " ", paragraph.text)
    return paragraph._replace(text=text)


def document_paragraphs(text):
    """The prose of a Markdown document."""
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


CODE_IN_COMMENT = re.compile(r"\s{3,}\S")
LINE_COMMENT = re.compile(r"^\s*//+(.*)$")
BLOCK_LINE = re.compile(r"^\s*(?:/\*+|\*(?!/))?(.*?)(?:\*/)?\s*$")
TRAILING = re.compile(r"^[^\"]*?\S.*?//\s*(.*)$|^[^\"]*?\S.*?/\*\s*(.*?)(?:\*/)?\s*$")


def header_comments(text):
    """The comments of a C or C++ header, each a list of (number, text) with the marks taken away."""
    comments = []
    current = []
    in_block = False

    def end():
        if current:
            comments.append(list(current))
            current.clear()

    for number, line in enumerate(text.splitlines(), 1):
        if in_block or re.match(r"\s*/\*", line):
            current.append((number, BLOCK_LINE.match(line)[1]))
            in_block = "*/" not in line
            if not in_block:
                end()
        elif found := LINE_COMMENT.match(line):
            current.append((number, found[1]))
        else:
            end()
            if found := TRAILING.match(line):
                comments.append([(number, found[1] or found[2] or "")])
    end()
    return comments


def header_paragraphs(text):
    paragraphs = []
    for comment in header_comments(text):
        is_own_line = len(comment) > 1 or re.match(r"\s*(?://|/\*)", text.splitlines()[comment[0][0] - 1]) is not None
        part = []
        is_first = True
        for number, line in [*comment, (0, "")]:
            if line.strip() and not CODE_IN_COMMENT.match(line):
                part.append((number, line))
            elif part:
                paragraphs.append(joined(part, is_start=is_first and is_own_line))
                part = []
                is_first = False
    return [without_code(paragraph) for paragraph in paragraphs]


@functools.cache
def public_names():
    """The names in __all__ of the Python package."""
    text = (ROOT / "pytorch" / "cachalot" / "__init__.py").read_text()
    return set(re.findall(r'^    "(\w+)",$', text[text.index("__all__"):], re.MULTILINE))


def python_paragraphs(text):
    """The docstrings that users read: of the package, and of what its __all__ names, with the methods of classes."""
    paragraphs = []
    tree = ast.parse(text)
    nodes = [tree]
    while nodes:
        node = nodes.pop()
        public = "__all__" in text if node is tree else not node.name.startswith("_")
        if docstring := ast.get_docstring(node) if public else None:
            first = node.body[0].lineno
            lines = docstring.splitlines()
            paragraphs.append(joined([(first, lines[0])], is_start=not isinstance(node, ast.Module)))
            paragraphs += [part._replace(lines=[first + number for number in part.lines])
                           for part in document_paragraphs("\n".join(lines[1:]))]
        children = [child for child in node.body if isinstance(child, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef))]
        if node is tree:
            nodes += [child for child in children if child.name in public_names()]
        elif isinstance(node, ast.ClassDef):
            nodes += children
    return [without_code(paragraph) for paragraph in paragraphs]


def help_paragraphs(text):
    return [joined([(number, line)]) for number, line in enumerate(text.splitlines(), 1)
            if line.strip()] + [joined(list(enumerate(text.splitlines(), 1)))]


# ---- Checking ---------------------------------------------------------------------------------------------------------


def findings(name, paragraphs):
    found = {}
    for paragraph in paragraphs:
        for one in RULES:
            if one.where == STARTS and not paragraph.is_start:
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
    name = str(path.relative_to(ROOT) if path.is_relative_to(ROOT) else path)
    text = path.read_text()
    if path.suffix == ".md":
        return findings(name, document_paragraphs(text))
    if path.suffix == ".py":
        return findings(name, python_paragraphs(text))
    return findings(name, header_paragraphs(text)) + long_lines(name, text)


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
    """The words that begin the lines of the list "Commands:" in the command's help."""
    listed = re.search(r"^Commands:\n((?: .*\n)+)", output([command, "--help"]), re.MULTILINE)
    if not listed:
        sys.exit(f"check_language.py: {command.name} --help has no list 'Commands:'")
    return re.findall(r"^  (\w[\w-]*)", listed[1], re.MULTILINE)


def files():
    documents = {path for pattern in DOCUMENTS for path in ROOT.glob(pattern)}
    headers = {path for pattern in HEADERS + PYTHON for path in ROOT.glob(pattern)}
    built = {ROOT / "build", ROOT / "docs" / "site"}
    return sorted(path for path in documents | headers if not built & set(path.parents))


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
}
GOOD_COMMENTS = [
    "// Returns a.\nint a();", "// Does it fit?\nbool b();", "int c;  // of the whole handle",
    "// Example:\n//\n//   somebody(wrote);\nint d();", "int e(const char* url = \"http://who\");",
]


def self_test():
    wrong = []
    for text in GOOD:
        if found := findings("good", document_paragraphs(text)):
            wrong.append(f"{text!r} is refused: {found}")
    for text in GOOD_COMMENTS:
        if found := findings("good", header_paragraphs(text)):
            wrong.append(f"{text!r} is refused: {found}")
    for read, texts in ((document_paragraphs, BAD), (header_paragraphs, BAD_COMMENTS)):
        for text, phrase in texts.items():
            found = findings("bad", read(text))
            if not any(phrase.lower() in line.lower() for line in found):
                wrong.append(f"{text!r}: {phrase!r} is not reported, but {found}")
    if findings("bad", document_paragraphs("One.\n\nTwo\nlines, an UUID.\n"))[0].split(":")[1] != "4":
        wrong.append("a finding has the wrong line")
    if len(long_lines("long", "x" * HEADER_COLUMNS + "\n" + "x" * (HEADER_COLUMNS + 1))) != 1:
        wrong.append("long lines are not found")
    print("\n".join(wrong) or f"{len(GOOD) + len(GOOD_COMMENTS)} good and {len(BAD) + len(BAD_COMMENTS)} bad texts")
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
