#include "tools/simulation/python_program.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string_view>

#include "base/environment.h"
#include "base/suggestions.h"

namespace cachalot::tools {
namespace {

namespace fs = std::filesystem;

std::string setting(const char* variable) { return std::string(environment(variable).value_or("")); }

bool is_script(const std::string& word) { return word.ends_with(".py"); }

bool is_file(const std::string& path) {
  std::error_code error;
  return fs::is_regular_file(path, error);
}

// A path that the system can execute by itself. A bare name is looked up on PATH, where scripts of this folder are not.
bool runs_by_itself(const std::string& path) {
  if (path.find('/') == std::string::npos || access(path.c_str(), X_OK) != 0) return false;
  std::ifstream file(path, std::ios::binary);
  char begin[2] = {};
  file.read(begin, sizeof begin);
  return file && begin[0] == '#' && begin[1] == '!';
}

std::vector<std::string> scripts_here() {
  std::vector<std::string> names;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(".", error)) {
    const std::string name = entry.path().filename().string();
    if (is_script(name)) names.push_back(name);
  }
  std::ranges::sort(names);
  return names;
}

}  // namespace

std::string python_interpreter() {
  if (std::string named = setting("CACHALOT_PYTHON"); !named.empty()) return named;
  if (const std::string environment = setting("VIRTUAL_ENV"); !environment.empty()) {
    std::string python = environment + "/bin/python";
    if (access(python.c_str(), X_OK) == 0) return python;
  }
  return "python3";
}

bool is_python_interpreter(const std::string& word) {
  const std::string name = fs::path(word).filename().string();
  if (!name.starts_with("python")) return false;
  return std::ranges::all_of(name.substr(6), [](unsigned char c) { return std::isdigit(c) || c == '.'; });
}

std::vector<std::string> with_python(std::vector<std::string> words) {
  if (words.empty()) return words;
  const std::string& first = words.front();
  const bool is_for_python =
      first == "-m" || first == "-c" || (is_script(first) && is_file(first) && !runs_by_itself(first));
  if (is_for_python) words.insert(words.begin(), python_interpreter());
  return words;
}

std::string missing_program_hint(const std::string& program) {
  if (is_script(program)) {
    const std::vector<std::string> names = scripts_here();
    const std::vector<std::string_view> known(names.begin(), names.end());
    const std::string question = did_you_mean(program, known);
    if (!question.empty()) return "; " + question;
  }
  if (program.find('/') == std::string::npos && is_file(program)) return fmt::format("; did you mean './{}'?", program);
  return "";
}

}  // namespace cachalot::tools
