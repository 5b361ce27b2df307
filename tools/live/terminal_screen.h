// The terminal while `cachalot top` shows its tables there: a screen of its own, and keys that come at once.
//
// The destructor restores what was before. Signals that end or stop a program come to SignalQueue, so that it runs.
#pragma once

#include <termios.h>
#include <csignal>

#include <cstddef>
#include <optional>
#include <string>

#include "tools/descriptor.h"

namespace cachalot::tools::live {

class TerminalScreen {
 public:
  TerminalScreen() { enter(); }
  ~TerminalScreen() { leave(); }
  TerminalScreen(const TerminalScreen&) = delete;
  TerminalScreen& operator=(const TerminalScreen&) = delete;

  // Returns whether standard output is a terminal that can show a screen.
  static bool is_possible();

  void enter();
  void leave();
  // Shows the lines, as many as there is room for, in place of those before.
  void show(const std::string& text) const;
  // Whether keys can be read: standard input is a terminal, too.
  bool has_keys() const { return before_.has_value(); }
  // Returns the key that was pressed; nullopt if there is none.
  std::optional<char> key() const;

 private:
  std::optional<termios> before_;  // of standard input, where that is a terminal
};

// The signals that end, stop or tell a program, while one exists: they come here in place of doing what they do.
class SignalQueue {
 public:
  explicit SignalQueue(bool with_terminal);
  ~SignalQueue();
  SignalQueue(const SignalQueue&) = delete;
  SignalQueue& operator=(const SignalQueue&) = delete;

  int descriptor() const { return descriptor_.number(); }
  // Returns the next signal; nullopt if none has come.
  std::optional<int> next() const;

 private:
  sigset_t before_{};
  Descriptor descriptor_;
};

}  // namespace cachalot::tools::live
