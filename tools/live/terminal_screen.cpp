#include "tools/live/terminal_screen.h"

#include <sys/ioctl.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "tools/live/top_text.h"

namespace cachalot::tools::live {
namespace {

// xterm's sequences, which every terminal of today knows.
constexpr std::string_view kEnter = "\033[?1049h\033[?25l";  // the alternate screen, without a cursor
constexpr std::string_view kLeave = "\033[?25h\033[?1049l";
constexpr std::string_view kHome = "\033[H";
constexpr std::string_view kEndOfLine = "\033[K";
constexpr std::string_view kRestOfScreen = "\033[J";

void put(std::string_view text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

}  // namespace

bool TerminalScreen::is_possible() {
  const char* const terminal = std::getenv("TERM");
  const std::string_view name = terminal == nullptr ? "" : terminal;
  return isatty(STDOUT_FILENO) == 1 && !name.empty() && name != "dumb";
}

// Signals by keys (Ctrl-C, Ctrl-Z) stay on.
void TerminalScreen::enter() {
  termios now{};
  if (isatty(STDIN_FILENO) == 1 && tcgetattr(STDIN_FILENO, &now) == 0) {
    before_ = now;
    now.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO);
    now.c_cc[VMIN] = 0;
    now.c_cc[VTIME] = 0;
    tcsetattr(STDIN_FILENO, TCSANOW, &now);
  }
  put(kEnter);
}

void TerminalScreen::leave() {
  put(kLeave);
  if (before_) tcsetattr(STDIN_FILENO, TCSANOW, &*before_);
  before_.reset();
}

void TerminalScreen::show(const std::string& text) const {
  winsize size{};
  const bool is_known = ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_row > 1 && size.ws_col > 0;
  const std::size_t rows = is_known ? size.ws_row - 1U : 23;
  const std::size_t columns = is_known ? size.ws_col : 80;
  std::string screen(kHome);
  for (const char c : cut_to_screen(text, rows, columns)) {
    if (c == '\n') screen += kEndOfLine;
    screen += c;
  }
  screen += kRestOfScreen;
  put(screen);
}

std::optional<char> TerminalScreen::key() const {
  char key = 0;
  return has_keys() && read(STDIN_FILENO, &key, 1) == 1 ? std::optional(key) : std::nullopt;
}

SignalQueue::SignalQueue(bool with_terminal) {
  sigset_t signals;
  sigemptyset(&signals);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT}) sigaddset(&signals, signal);
  if (with_terminal) {
    for (const int signal : {SIGWINCH, SIGTSTP}) sigaddset(&signals, signal);
  }
  pthread_sigmask(SIG_BLOCK, &signals, &before_);
  descriptor_ = Descriptor(signalfd(-1, &signals, SFD_NONBLOCK | SFD_CLOEXEC));
}

SignalQueue::~SignalQueue() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

std::optional<int> SignalQueue::next() const {
  signalfd_siginfo info{};
  const ssize_t count = read(descriptor_.number(), &info, sizeof(info));
  return count == sizeof(info) ? std::optional(static_cast<int>(info.ssi_signo)) : std::nullopt;
}

}  // namespace cachalot::tools::live
