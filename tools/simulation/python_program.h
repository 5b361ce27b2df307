// Python programs on the command line: found, and given an interpreter.
#pragma once

#include <string>
#include <vector>

namespace cachalot::tools {

// Returns the interpreter that runs a user's scripts: $CACHALOT_PYTHON, else $VIRTUAL_ENV/bin/python, else python3.
std::string python_interpreter();

// Returns whether a word names a Python interpreter: "python", "python3.12", "/usr/bin/python3".
bool is_python_interpreter(const std::string& word);

// Returns the words of a program with an interpreter in front where Python must run it: "-m module …", "-c code …", and a
// script "train.py …" that is not a program of its own (a path with execute permission and a "#!" line).
std::vector<std::string> with_python(std::vector<std::string> words);

// Returns what may be wrong with a program that cannot be found, to follow the system's reason: "; there is no file …",
// "; did you mean './train'?", or "".
std::string missing_program_hint(const std::string& program);

}  // namespace cachalot::tools
