#include "live/process_identity.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <string_view>

#include "base/format.h"

CACHALOT_BEGIN

namespace {

constexpr std::size_t kMost = 4096;

// The first bytes of a file of /proc; "" if it cannot be read.
std::string read_begin(const std::string& path) {
  std::string text(kMost, '\0');
  const int descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  const ssize_t count = descriptor < 0 ? 0 : read(descriptor, text.data(), text.size());
  if (descriptor >= 0) close(descriptor);
  text.resize(count > 0 ? static_cast<std::size_t>(count) : 0);
  return text;
}

}  // namespace

// The second field is a name in brackets, which may have spaces and brackets; the start is the 22nd.
std::optional<std::uint64_t> process_start(pid_t process) {
  const std::string stat = read_begin(formatted("/proc/{}/stat", process));
  std::size_t at = stat.rfind(')');
  for (int field = 2; field < 22 && at != std::string::npos; ++field) at = stat.find(' ', at + 1);
  if (at == std::string::npos) return std::nullopt;
  std::uint64_t start = 0;
  const char* const begin = stat.data() + at + 1;
  const auto [end, error] = std::from_chars(begin, stat.data() + stat.size(), start);
  return error == std::errc{} ? std::optional(start) : std::nullopt;
}

std::uint64_t pid_namespace() {
  struct stat space {};
  return stat("/proc/self/ns/pid", &space) == 0 ? space.st_ino : 0;
}

std::string process_command() {
  std::string words = read_begin("/proc/self/cmdline");
  while (!words.empty() && words.back() == '\0') words.pop_back();
  std::ranges::replace(words, '\0', ' ');
  return words;
}

CACHALOT_END
