#!/usr/bin/env python3
"""Checks that the tables of the documentation list what the code has: options, variables, messages and command options;
that the version is everywhere the same; and that docs/ has few pages, and answers of one screen.

    check_tables.py [--command build/dev/tools/cachalot]

With --command it checks the pages of the command, and that SKILL.md has options that exist and excerpts of printed output.
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
POLICY = ROOT / "allocator" / "policy"
OPTIONS = ROOT / "docs" / "reference" / "options.md"
ERRORS = ROOT / "docs" / "reference" / "errors.md"
TROUBLES = ROOT / "docs" / "guides" / "troubleshooting.md"
TOOLS = ROOT / "docs" / "tools"
MANUAL = ROOT / "tools" / "commands" / "help_command.cpp"
SKILL = ROOT / "SKILL.md"
FOLDERS = ("allocator", "c_api", "diagnostics", "kernels", "pool", "pytorch", "simulator", "tools")
# The most pages under docs/, without answers, decisions and measurements: what two pages would say is on the page of the tool or topic.
MOST_PAGES = 54
ANSWERS = ROOT / "docs" / "answers"
MOST_ANSWERS, MOST_LINES = 12, 45
NUMBER = re.compile(r"\d+(?:\.\d+)?")
# Options of every command, which docs/tools/index.md has.
COMMON = {"--color", "--help", "-h"}


def sources() -> str:
    """The text of the library, the plug-in, the simulator and the command. Strings that go on in the next line are joined."""
    files = [path for folder in FOLDERS for kind in ("*.cpp", "*.h", "*.py", "*.inc") for path in (ROOT / folder).rglob(kind)]
    return re.sub(r"\"\s*\n\s*f?\"", "", "\n".join(path.read_text(errors="replace") for path in files))


def first_cells(text: str) -> set[str]:
    """The names in `code` in the first cells of the tables."""
    cells = re.findall(r"^\| *([^|]*`[^|]*)\|", text, re.MULTILINE)
    return {name for cell in cells for name in re.findall(r"`([^`]+)`", cell)}


def differences(what: str, listed: set[str], real: set[str]) -> list[str]:
    return [f"{what}: {name} is not in the table" for name in sorted(real - listed)] + [
        f"{what}: {name} is in the table, but does not exist" for name in sorted(listed - real)]


def check_options() -> list[str]:
    keys = "".join((POLICY / name).read_text() for name in ("options.cpp", "options_without_effect.h"))
    entries = re.findall(r"^    \{\"(\w+)\", \"(\w*)\",", keys, re.MULTILINE)
    text = OPTIONS.read_text()
    tables = text[text.index("## Options of PyTorch"):text.index("## Environment variables")]
    found = differences("options.md", first_cells(tables), {key for key, _ in entries})
    return found + [f"options.md: the alias {alias} is missing" for _, alias in entries if alias and f"`{alias}`" not in tables]


def check_settings() -> list[str]:
    """The keys of CACHALOT_SIM."""
    (keys,) = re.findall(r"kSettingKeys\[\] = \{(.*?)\}", (ROOT / "simulator" / "device" / "simulation_settings.cpp").read_text(), re.DOTALL)
    text = OPTIONS.read_text()
    table = text[text.index("## Settings of the simulation"):]
    return differences("options.md", first_cells(table), set(re.findall(r"\"(\w+)\"", keys)))


def check_variables(code: str) -> list[str]:
    """Each environment variable that the code looks up is in a table of options.md."""
    looked_up = set(re.findall(r"environ(?:ment(?:\.(?:text|number|switch|parsed))?\(|\.get\(|\[)\s*\"([A-Z][A-Z_0-9]+)\"", code))
    looked_up |= set(re.findall(r"\"(CACHALOT_[A-Z_]+[A-Z])\"", code))
    text = OPTIONS.read_text()
    return [f"options.md: the variable {name} is missing" for name in sorted(looked_up) if f"`{name}`" not in text]


def check_messages(code: str) -> list[str]:
    quoted = re.findall(r"^> (.*)$", ERRORS.read_text(), re.MULTILINE)
    found = [f"errors.md: no message has '{text}'" for text in quoted if text.rstrip(" …") not in code]
    return found + [f"troubleshooting.md: no message has '{text}'" for text in own_messages() if text not in code]


def own_messages() -> list[str]:
    """The messages in rows of troubleshooting.md that lead to errors.md alone: those of cachalot. The other rows quote others, too."""
    rows = [row.split(" | ") for row in re.findall(r"^\| (.*) \|$", TROUBLES.read_text(), re.MULTILINE)]
    cells = [row[0] for row in rows if re.fullmatch(r"\[error\]\(\.\./reference/errors\.md#[\w-]+\)", row[-1])]
    return [text.rstrip(" …:") for cell in cells for text in re.findall(r"`([^`]+)`", cell)]


def check_pages() -> list[str]:
    pages = [path for path in (ROOT / "docs").rglob("*.md") if path.parent.name not in ("answers", "decisions", "measurements")]
    return [f"docs/ has {len(pages)} pages, more than {MOST_PAGES}"] if len(pages) > MOST_PAGES else []


def check_answers() -> list[str]:
    """An answer is one screen: a question, a command with its output, a thread in which it was asked. README.md and the site link to it."""
    pages = sorted(ANSWERS.glob("*.md"))
    found = [f"docs/answers has {len(pages)} pages, more than {MOST_ANSWERS}"] if len(pages) > MOST_ANSWERS else []
    readme, site = (ROOT / "README.md").read_text(), (ROOT / "mkdocs.yml").read_text()
    for page in pages:
        text = page.read_text()
        rules = (
            (re.match(r"# .*\?\n", text), "does not begin with a question"),
            (text.count("\n") <= MOST_LINES, f"has {text.count(chr(10))} lines, more than {MOST_LINES}"),
            ("```console\n$ " in text, "has no command"),
            (re.search(r"^Asked in \[[^\]]+\]\(https://github\.com/[\w.-]+/[\w.-]+/(?:issues|pull)/\d+\)", text, re.MULTILINE), "names no thread"),
            (f"(docs/answers/{page.name})" in readme, "is not linked in README.md"),
            (f": answers/{page.name}\n" in site, "is not in mkdocs.yml"),
        )
        found += [f"docs/answers/{page.name} {problem}" for holds, problem in rules if not holds]
    return found


def check_first_table() -> list[str]:
    """Each figure of README.md's first table is on the page that its row names, and the program that prints it is there."""
    text = (ROOT / "README.md").read_text()
    (table,) = re.findall(r"\A[^|]*((?:^\|.*\n)+)", text, re.MULTILINE)[:1]
    found = []
    for row in table.splitlines()[2:]:
        _, figures, by = (cell.strip() for cell in row.strip("|").split(" | "))
        command, page = re.fullmatch(r"`([^`]+)` \(\[[^\]]+\]\(([^)#]+)[^)]*\)\)", by).groups()
        words = command.split()
        files = [word for word in words[2:] if word[0] != "-"] if words[0] == "cachalot" else words[:1]
        found += [f"README.md: there is no {file}" for file in files if not (ROOT / file).is_file()]
        lines = (ROOT / page).read_text().replace(",", "").splitlines()
        places = [set(NUMBER.findall(" ".join(lines[at : at + 5]))) for at in range(len(lines))]  # five lines of a table each
        wanted = set(NUMBER.findall(figures.replace("GPT-2", "").replace(",", "")))
        if not any(wanted <= place for place in places):
            found.append(f"README.md: {page} has not the figures of `{command}` beside each other: {', '.join(sorted(wanted))}")
        found += [f"README.md: the row of `{command}` has no figure"] * (not wanted)
    return found


def check_version() -> list[str]:
    """CMakeLists.txt and the newest release of the changelog have one version; the manual page has its date. check_recipes.py has the rest."""
    (version,) = re.findall(r"^project\(cachalot VERSION ([\d.]+)", (ROOT / "CMakeLists.txt").read_text(), re.MULTILINE)
    release, date = re.findall(r"^## \[(\d.*)\] - (.*)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)[0]
    (released,) = re.findall(r'kReleased = "(.*)"', MANUAL.read_text())
    found = []
    for file, what, said, real in (("CHANGELOG.md", "version", release, version), ("help_command.cpp", "date", released, date)):
        if said != real:
            found.append(f"{file}: the {what} is {said}, not {real}")
    return found


def check_command(command: Path) -> list[str]:
    found = []
    for page in sorted(TOOLS.glob("*.md")):
        if page.stem in ("index", "json", "html"):
            continue
        help_text = subprocess.run([command, page.stem, "--help"], capture_output=True, text=True, check=True).stdout
        options = help_text.partition("\nExamples:\n")[0]
        names = " ".join(re.findall(r"^  (-[-a-z, ]+)", options, re.MULTILINE))
        real = set(re.findall(r"-{1,2}[a-z][a-z-]*", names)) - COMMON
        text = page.read_text()
        tables = "\n".join(re.findall(r"^\| *`-.*$", text, re.MULTILINE))
        listed = {name.split()[0] for name in first_cells(tables)}
        found += differences(f"docs/tools/{page.name}", listed, real)
    return found


def check_skill(command: Path, code: str) -> list[str]:
    """The options of its commands exist. JSON below a command is part of the command's output; keys of other JSON are in the code."""
    text = SKILL.read_text()
    lines = subprocess.run([command, "help", "--json"], capture_output=True, text=True, check=True).stdout.splitlines()
    options = {each["name"]: {name for option in each["options"] for name in option["names"]} for each in map(json.loads, lines)}
    found = []
    for name, section in re.findall(r"^## (\w+): (.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL):
        own = set(re.findall(r"`(-[a-z-]+)", section))
        found += [f"SKILL.md: `cachalot {name}` has no {option}" for option in sorted(own - options[name])]
    for words in map(shlex.split, re.findall(r"(?:`|^\$ )cachalot ([^`\n]+)", text, re.MULTILINE)):
        own = words[1 : words.index("--") if "--" in words else None]
        wrong = [word for word in own if word.startswith("-") and word.partition("=")[0] not in options.get(words[0], set())]
        found += [f"SKILL.md: `cachalot {words[0]}` has no {option}" for option in wrong]
        found += [f"SKILL.md: there is no command {words[0]}"] * (words[0] not in options)
    for words, excerpt in re.findall(r"^```console\n\$ cachalot ([^\n]*)\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        out = subprocess.run([command, *shlex.split(words)], capture_output=True, text=True, check=False, cwd=ROOT).stdout
        if not is_part(json.loads(excerpt), json.loads(out)):
            found.append(f"SKILL.md: `cachalot {words}` does not print what stands below it")
    for excerpt in re.findall(r"^```json\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        keys = re.findall(r"\"(\w+)\":", excerpt)
        found += [f"SKILL.md: no JSON has the key {key}" for key in keys if f'"{key}"' not in code]
    return found


def is_part(part: object, whole: object) -> bool:
    """Returns whether `whole` has all that `part` has: each key of an object, and something for each element of an array."""
    if isinstance(part, dict) and isinstance(whole, dict):
        return all(key in whole and is_part(value, whole[key]) for key, value in part.items())
    if isinstance(part, list) and isinstance(whole, list):
        return all(any(is_part(one, other) for other in whole) for one in part)
    return part == whole


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--command", type=Path)
    options = parser.parse_args()
    code = sources()
    found = check_options() + check_settings() + check_variables(code) + check_messages(code) + check_version() + check_pages() + check_answers() + check_first_table()
    if options.command:
        found += check_command(options.command) + check_skill(options.command, code)
    for line in found:
        print(line)
    print(f"check_tables.py: {len(found)} mistakes")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
