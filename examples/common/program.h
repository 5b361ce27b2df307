// The common parts of the C++ examples: options, errors in one line, and relations that must hold.
#pragma once

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <exception>
#include <functional>
#include <string>
#include <vector>

namespace examples {

// Relations must hold between the figures; they are counted, and reported if they do not.
class Relations {
 public:
  void holds(bool is_true, const std::string& what) {
    ++checked_;
    if (!is_true) broken_.push_back(what);
  }
  // The exit status: 0 where all hold.
  int finish() const {
    for (const std::string& what : broken_) fmt::print("DOES NOT HOLD: {}\n", what);
    if (broken_.empty()) fmt::print("{} relations hold\n", checked_);
    return broken_.empty() ? 0 : 1;
  }

 private:
  int checked_ = 0;
  std::vector<std::string> broken_;
};

// Parses the options, then runs `body`, which returns the exit status. An exception ends the program with one line.
inline int run(CLI::App& app, int count, char** arguments, const std::function<int()>& body) {
  try {
    app.parse(count, arguments);
    return body();
  } catch (const CLI::CallForHelp& help) {
    return app.exit(help);
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}: {}\n", app.get_name(), error.what());
    return 1;
  }
}

}  // namespace examples
