#include "tools/foreign_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdint>

#include "tools/quoted.h"

namespace cachalot::tools {
namespace {

using std::string_view_literals::operator""sv;

constexpr std::string_view kHowToMakeOne =
    "make one with torch.cuda.memory._record_memory_history() at the start and "
    "torch.cuda.memory._dump_snapshot(\"snapshot.pickle\") later";

// The number that torch.save wrote first before it wrote zip archives, as pickles have it.
constexpr std::string_view kLegacyCheckpoint = "\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19"sv;

struct Magic {
  std::string_view bytes;
  std::string_view what;
};

constexpr std::array kCompressed = {Magic{"\x28\xb5\x2f\xfd"sv, "zstd"}, Magic{"\xfd\x37zXZ\x00"sv, "xz"},
                                    Magic{"BZh"sv, "bzip2"}, Magic{"\x04\x22\x4d\x18"sv, "lz4"}};
constexpr std::array kOthers = {
    Magic{"\x7f\x45LF"sv, "a program or a library (ELF)"},
    Magic{"\x89PNG"sv, "a PNG picture"},
    Magic{"\x93NUMPY"sv, "a NumPy array"},
    Magic{"\x89HDF"sv, "an HDF5 file"},
    Magic{"GGUF"sv, "a GGUF model"},
    Magic{"SQLite format 3"sv, "an SQLite database"},
    Magic{"#!"sv, "a script"},
};

bool is_html(std::string_view begin) {
  const std::size_t at = begin.find_first_not_of(" \t\r\n");
  return at != std::string_view::npos && (begin.substr(at, 9) == "<!DOCTYPE" || begin.substr(at, 5) == "<html");
}

// Eight bytes that count the header, which is JSON.
bool is_safetensors(std::string_view begin) {
  if (begin.size() < 9 || begin[8] != '{') return false;
  std::uint64_t header = 0;
  for (std::size_t i = 8; i-- > 0;) header = header << 8 | static_cast<unsigned char>(begin[i]);
  constexpr std::uint64_t kLongestHeader = 100'000'000;  // the format's own limit
  return header >= 2 && header <= kLongestHeader;
}

bool is_tar(std::string_view begin) { return begin.size() > 262 && begin.substr(257, 5) == "ustar"; }

std::string zip_format(std::string_view begin) {
  constexpr std::size_t kNameAt = 30;  // in a zip's first header
  const std::string_view name = begin.substr(std::min(kNameAt, begin.size()));
  if (name.find("data.pkl") != std::string_view::npos) return "a PyTorch checkpoint (torch.save)";
  if (name.find(".npy") != std::string_view::npos) return "a NumPy archive (.npz)";
  return "a zip archive";
}

std::string what_it_is(std::string_view begin) {
  if (begin.starts_with("PK\x03\x04")) return zip_format(begin);
  if (begin.substr(0, 32).find(kLegacyCheckpoint) != std::string_view::npos) return "a PyTorch checkpoint (torch.save)";
  if (is_safetensors(begin)) return "a safetensors checkpoint";
  if (is_tar(begin)) return "a tar archive";
  if (is_html(begin)) return "an HTML page";
  for (const Magic& other : kOthers) {
    if (begin.starts_with(other.bytes)) return std::string(other.what);
  }
  return "";
}

}  // namespace

std::string foreign_format(std::string_view begin, std::string_view wanted) {
  for (const Magic& compressed : kCompressed) {
    if (begin.starts_with(compressed.bytes)) {
      return fmt::format("is compressed with {}: decompress it first (gzip is read as it is)", compressed.what);
    }
  }
  const std::string what = what_it_is(begin);
  if (what.empty()) return "";
  return fmt::format("is {}, not a {}: {}", what, wanted, kHowToMakeOne);
}

std::string unknown_format(std::string_view begin) {
  constexpr std::size_t kMostShown = 24;
  const std::string_view line = begin.substr(0, std::min(begin.find_first_of("\r\n"), kMostShown));
  return fmt::format(
      "has no known format: it begins with {}. cachalot reads memory snapshots (PyTorch's pickle, cachalot's JSON), "
      "its own allocation traces, and RMM's logs",
      Quoted{line});
}

bool looks_like_trace(std::string_view begin) {
  return begin.size() > 2 && begin.starts_with("a,") && std::isdigit(static_cast<unsigned char>(begin[2]));
}

}  // namespace cachalot::tools
