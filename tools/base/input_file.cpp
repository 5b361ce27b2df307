#include "tools/base/input_file.h"

#include <fmt/format.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <functional>
#include <system_error>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/check.h"
#include "tools/base/quoted.h"

namespace cachalot::tools {
namespace {

using std::string_view_literals::operator""sv;

constexpr std::string_view kLocalHeader = "PK\x03\x04"sv;
constexpr std::size_t kLocalHeaderBytes = 30;
constexpr std::size_t kDescriptorBytes = 28;  // behind a file, and the next signature
constexpr std::uint64_t kInExtra = 0xffffffff;
constexpr std::uint64_t kStored = 0;
constexpr std::uint64_t kDeflated = 8;

std::uint64_t number_at(std::string_view header, std::size_t at, std::size_t bytes) {
  std::uint64_t value = 0;
  for (std::size_t i = bytes; i-- > 0;) value = value << 8 | static_cast<unsigned char>(header[at + i]);
  return value;
}

// The packed size in the extra field of archives with 64 bits; 0: it is not there.
std::uint64_t size_in_extra(std::string_view extra) {
  while (extra.size() >= 4) {
    const std::size_t bytes = std::min<std::size_t>(number_at(extra, 2, 2), extra.size() - 4);
    if (number_at(extra, 0, 2) == 1 && bytes >= 16) return number_at(extra, 12, 8);
    extra.remove_prefix(4 + bytes);
  }
  return 0;
}

// Returns whether a file that begins so is a zip archive whose first file may be a snapshot or a trace: not one of those
// that PyTorch and NumPy write.
bool is_plain_zip(std::string_view begin) {
  if (!begin.starts_with(kLocalHeader)) return false;
  const std::string_view name = begin.substr(std::min(kLocalHeaderBytes, begin.size()));
  return name.find("data.pkl") == std::string_view::npos && name.find(".npy") == std::string_view::npos;
}

constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF"sv;
constexpr std::string_view kWhiteSpace = " \t\r\n"sv;

constexpr unsigned kReadBytes = 1 << 17;
constexpr std::size_t kMostPerRead = std::size_t{1} << 30;  // gzread counts with an int

// A byte of PyTorch's files takes up to ten in memory, and gzip packs it to a thirtieth.
constexpr std::size_t kMemoryPerByte = 500;
constexpr std::size_t kMemoryAtLeast = 64 * kMiB;
constexpr std::size_t kMemoryOfPipe = 4 * kGiB;

// PyTorch's files are packed to a thirtieth at best, lines of text to a hundredth. Deflate can pack to a thousandth.
constexpr std::uint64_t kMostPacked = 250;
constexpr std::uint64_t kPackedAtLeast = 256 * kMiB;

std::size_t memory_of_machine() {
  const long pages = sysconf(_SC_PHYS_PAGES);
  return static_cast<std::size_t>(std::max(pages, 1L << 10)) * static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
}

gzFile gz(void* file) { return static_cast<gzFile>(file); }

}  // namespace

struct Inflater {
  z_stream stream = {};
  Inflater() { inflateInit2(&stream, -MAX_WBITS); }
  ~Inflater() { inflateEnd(&stream); }
  Inflater(const Inflater&) = delete;
  Inflater& operator=(const Inflater&) = delete;
};

// The only file in a zip archive, decompressed while the archive is read from front to end: as a file manager packs a
// snapshot. The archive's directory, at its end, is not needed.
class ZipMember {
 public:
  // Fills the buffer as far as the archive goes, and returns how far.
  using Read = std::function<std::size_t(char* into, std::size_t capacity)>;

  explicit ZipMember(Read read) : read_(std::move(read)), raw_(std::size_t{1} << 16) { begin(); }
  ZipMember(const ZipMember&) = delete;
  ZipMember& operator=(const ZipMember&) = delete;

  void set_source(Read read) { read_ = std::move(read); }  // where the archive moved to

  // The next bytes of the file; fewer than `capacity` only at its end.
  std::size_t read(char* into, std::size_t capacity) {
    std::size_t filled = 0;
    while (filled < capacity && !is_at_end_ && trouble_.empty()) {
      const std::size_t some =
          inflater_ ? inflate(into + filled, capacity - filled) : copy(into + filled, capacity - filled);
      filled += some;
    }
    return filled;
  }

  // Returns the archive's error; "" while none is known.
  const std::string& trouble() const { return trouble_; }

 private:
  void begin() {
    const std::string header = take(kLocalHeaderBytes);
    const bool is_whole = header.size() == kLocalHeaderBytes && header.starts_with(kLocalHeader);
    const std::uint64_t name_bytes = is_whole ? number_at(header, 26, 2) : 0;
    const std::uint64_t extra_bytes = is_whole ? number_at(header, 28, 2) : 0;
    const std::string names = take(name_bytes + extra_bytes);
    if (!is_whole || names.size() < name_bytes + extra_bytes) {
      trouble_ = "the zip archive is cut off";
      return;
    }
    const std::uint64_t flags = number_at(header, 6, 2);
    const std::uint64_t method = number_at(header, 8, 2);
    stored_left_ = number_at(header, 18, 4);
    if (stored_left_ == kInExtra) stored_left_ = size_in_extra(std::string_view{names}.substr(name_bytes));
    const bool has_size = (flags & 8) == 0;
    if ((flags & 1) != 0) {
      trouble_ = "the zip archive is encrypted";
    } else if (method == kDeflated) {
      inflater_ = std::make_unique<Inflater>();
    } else if (method != kStored || !has_size) {
      trouble_ = "the zip archive is packed in a way that is not known: deflate is";
    }
  }

  bool refill() {
    raw_begin_ = 0;
    raw_end_ = read_(raw_.data(), raw_.size());
    return raw_end_ != 0;
  }

  std::string take(std::size_t bytes) {
    std::string taken;
    while (taken.size() < bytes && (raw_begin_ < raw_end_ || refill())) {
      const std::size_t some = std::min(bytes - taken.size(), raw_end_ - raw_begin_);
      taken.append(raw_.data() + raw_begin_, some);
      raw_begin_ += some;
    }
    return taken;
  }

  std::size_t inflate(char* into, std::size_t capacity) {
    if (raw_begin_ == raw_end_ && !refill()) {
      trouble_ = "the zip archive is cut off";
      return 0;
    }
    z_stream& stream = inflater_->stream;
    stream.next_in = reinterpret_cast<Bytef*>(raw_.data() + raw_begin_);
    stream.avail_in = static_cast<uInt>(raw_end_ - raw_begin_);
    const std::size_t wanted = std::min(capacity, std::size_t{1} << 30);
    stream.next_out = reinterpret_cast<Bytef*>(into);
    stream.avail_out = static_cast<uInt>(wanted);
    const int code = ::inflate(&stream, Z_NO_FLUSH);
    raw_begin_ = raw_end_ - stream.avail_in;
    if (code == Z_STREAM_END) {
      finish();
    } else if (code != Z_OK && code != Z_BUF_ERROR) {
      trouble_ = "the zip archive is damaged";
    }
    return wanted - stream.avail_out;
  }

  std::size_t copy(char* into, std::size_t capacity) {
    if (stored_left_ == 0) {
      finish();
      return 0;
    }
    if (raw_begin_ == raw_end_ && !refill()) {
      trouble_ = "the zip archive is cut off";
      return 0;
    }
    const std::size_t some = std::min(
        {capacity, raw_end_ - raw_begin_, static_cast<std::size_t>(std::min<std::uint64_t>(stored_left_, 1u << 30))});
    std::copy_n(raw_.data() + raw_begin_, some, into);
    raw_begin_ += some;
    stored_left_ -= some;
    return some;
  }

  // Another file may follow.
  void finish() {
    is_at_end_ = true;
    if (take(kDescriptorBytes).find(kLocalHeader) != std::string::npos) {
      trouble_ = "the zip archive has several files: unpack it and give one of them";
    }
  }

  Read read_;
  std::vector<char> raw_;
  std::size_t raw_begin_ = 0;
  std::size_t raw_end_ = 0;
  std::unique_ptr<Inflater> inflater_;  // nullptr: the file is stored
  std::uint64_t stored_left_ = 0;
  bool is_at_end_ = false;
  std::string trouble_;
};

InputFile::InputFile(std::string path, std::string what) : path_(std::move(path)), what_(std::move(what)) {
  std::error_code ignored;
  CACHALOT_REQUIRE(!std::filesystem::is_directory(path_, ignored), "{}: is a directory, and no file", path_);
  file_ = gzopen(path_.c_str(), "rb");
  CACHALOT_REQUIRE(file_ != nullptr, "{}: cannot open the {}: {}", path_, what_, std::strerror(errno));
  gzbuffer(gz(file_), kReadBytes);
  const std::optional<std::size_t> bytes = size();
  most_bytes_ = kPackedAtLeast + kMostPacked * std::min(bytes.value_or(std::size_t{1} << 50), std::size_t{1} << 50);
}

InputFile::~InputFile() {
  if (file_ != nullptr) gzclose(gz(file_));
}

InputFile::InputFile(InputFile&& other) noexcept
    : path_(std::move(other.path_)),
      what_(std::move(other.what_)),
      file_(std::exchange(other.file_, nullptr)),
      ahead_(std::move(other.ahead_)),
      raw_ahead_(std::move(other.raw_ahead_)),
      has_looked_(other.has_looked_),
      bytes_(other.bytes_),
      most_bytes_(other.most_bytes_) {
  if (other.zip_ == nullptr) return;
  zip_ = std::move(other.zip_);
  zip_->set_source([this](char* into, std::size_t capacity) { return read_raw(into, capacity); });
}

std::size_t InputFile::read(char* into, std::size_t capacity) {
  look_at_begin();
  const std::size_t known = ahead_.copy(into, capacity);
  ahead_.erase(0, known);
  return known + read_on(into + known, capacity - known);
}

std::size_t InputFile::read_on(char* into, std::size_t capacity) {
  capacity = static_cast<std::size_t>(std::min<std::uint64_t>(capacity, most_bytes_ - bytes_));
  const std::size_t bytes = zip_ != nullptr ? zip_->read(into, capacity) : read_raw(into, capacity);
  bytes_ += bytes;
  return bytes;
}

std::size_t InputFile::read_raw(char* into, std::size_t capacity) {
  const std::size_t known = raw_ahead_.copy(into, capacity);
  raw_ahead_.erase(0, known);
  return known + read_raw_of_file(into + known, capacity - known);
}

// Unpacked, where the file is gzip.
std::size_t InputFile::read_raw_of_file(char* into, std::size_t capacity) {
  std::size_t filled = 0;
  while (filled < capacity) {
    const std::size_t wanted = std::min(capacity - filled, kMostPerRead);
    const int got = gzread(gz(file_), into + filled, static_cast<unsigned>(wanted));
    if (got <= 0) break;
    filled += static_cast<std::size_t>(got);
  }
  return filled;
}

void InputFile::look_at_begin() {
  if (has_looked_) return;
  has_looked_ = true;
  raw_ahead_.resize(kTellingBytes);
  raw_ahead_.resize(read_raw_of_file(raw_ahead_.data(), kTellingBytes));
  if (is_plain_zip(raw_ahead_))
    zip_ = std::make_unique<ZipMember>([this](char* into, std::size_t capacity) { return read_raw(into, capacity); });
  ahead_.resize(kTellingBytes);
  ahead_.resize(read_on(ahead_.data(), kTellingBytes));
  skip_mark();
}

// Editors and shells put a byte order mark in front of a text, and lines or blanks in front of JSON.
void InputFile::skip_mark() {
  if (ahead_.starts_with(kByteOrderMark)) ahead_.erase(0, kByteOrderMark.size());
  const std::size_t begin = ahead_.find_first_not_of(kWhiteSpace);
  if (begin != std::string::npos && (ahead_[begin] == '{' || ahead_[begin] == '[')) ahead_.erase(0, begin);
}

std::string_view InputFile::begin() {
  look_at_begin();
  if (ahead_.empty()) {
    ahead_.resize(kTellingBytes);
    ahead_.resize(read_on(ahead_.data(), kTellingBytes));
  }
  return ahead_;
}

std::optional<unsigned char> InputFile::peek() {
  const std::string_view first = begin();
  if (first.empty()) return std::nullopt;
  return static_cast<unsigned char>(first.front());
}

// zlib first hands out the decodable part of a file that is cut off.
std::string InputFile::trouble() const {
  if (zip_ != nullptr && !zip_->trouble().empty()) return zip_->trouble();
  if (bytes_ >= most_bytes_) return fmt::format("it decompresses to more than {} times its size", kMostPacked);
  int code = Z_OK;
  const char* message = gzerror(gz(file_), &code);
  if (code == Z_OK || code == Z_STREAM_END) return "";
  if (code == Z_BUF_ERROR) return "the gzip file is cut off";
  return fmt::format("cannot read the {}: {}", what_, code == Z_ERRNO ? std::strerror(errno) : message);
}

std::optional<std::size_t> InputFile::size() const {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path_, error)) return std::nullopt;
  const std::uintmax_t bytes = std::filesystem::file_size(path_, error);
  if (error) return std::nullopt;
  return static_cast<std::size_t>(bytes);
}

std::size_t InputFile::memory_limit() const {
  const std::optional<std::size_t> bytes = size();
  if (!bytes) return kMemoryOfPipe;
  return std::min(kMemoryAtLeast + kMemoryPerByte * std::min(*bytes, std::size_t{1} << 50),
                  memory_of_machine() / 4 * 3);
}

namespace {

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
                                    Magic{"BZh"sv, "bzip2"}, Magic{"\x1f\x8b"sv, "gzip twice"},
                                    Magic{"\x04\x22\x4d\x18"sv, "lz4"}};
constexpr std::array kOthers = {
    Magic{"\x7f\x45LF"sv, "a program or a library (ELF)"},
    Magic{"\x89PNG"sv, "a PNG picture"},
    Magic{"\x93NUMPY"sv, "a NumPy array"},
    Magic{"\x89HDF"sv, "an HDF5 file"},
    Magic{"GGUF"sv, "a GGUF model"},
    Magic{"SQLite format 3"sv, "an SQLite database"},
    Magic{"#!"sv, "a script"},
    Magic{"version https://git-lfs"sv, "a pointer of Git LFS (`git lfs pull` fetches its file)"},
};

bool is_html(std::string_view begin) {
  const std::size_t at = begin.find_first_not_of(kWhiteSpace);
  return at != std::string_view::npos && (begin.substr(at, 9) == "<!DOCTYPE" || begin.substr(at, 5) == "<html");
}

// Eight bytes that count the header, which is JSON.
bool is_safetensors(std::string_view begin) {
  if (begin.size() < 9 || begin[8] != '{') return false;
  const std::uint64_t header = number_at(begin, 0, 8);
  constexpr std::uint64_t kLongestHeader = 100'000'000;  // the format's own limit
  return header >= 2 && header <= kLongestHeader;
}

// JSON that is not a snapshot, recognized by the keys at its beginning.
std::string json_format(std::string_view begin) {
  if (begin.size() > 2 && begin.starts_with("[[") && std::isdigit(static_cast<unsigned char>(begin[2])))
    return "a memory timeline of PyTorch's profiler";
  if (begin.starts_with("[{\"ph\"") || begin.starts_with("[{\"name\""))
    return "a trace of PyTorch's profiler or of Perfetto";
  if (!begin.starts_with('{')) return "";
  const auto has = [&](std::string_view key) { return begin.find(key) != std::string_view::npos; };
  if (has("\"traceEvents\"") || has("\"schemaVersion\"")) return "a trace of PyTorch's profiler or of Perfetto";
  if (has("\"active.all.") || has("\"allocated_bytes.all.")) return "the answer of torch.cuda.memory_stats()";
  if (has("}\n{") && !has("\"segments\"")) return "a log of JSON lines";
  for (const char* first_key : {"{\"file\":\"", "{\"snapshot\":\"", "{\"a\":\"", "{\"trace\":\""})
    if (begin.starts_with(first_key)) return "a report of cachalot, as --json prints it";
  return "";
}

bool is_tar(std::string_view begin) { return begin.size() > 262 && begin.substr(257, 5) == "ustar"; }

std::string zip_format(std::string_view begin) {
  const std::string_view name = begin.substr(std::min(kLocalHeaderBytes, begin.size()));
  if (name.find("data.pkl") != std::string_view::npos) return "a PyTorch checkpoint (torch.save)";
  if (name.find(".npy") != std::string_view::npos) return "a NumPy archive (.npz)";
  return "a zip archive";
}

std::string what_it_is(std::string_view begin) {
  if (begin.starts_with(kLocalHeader)) return zip_format(begin);
  if (begin.substr(0, 32).find(kLegacyCheckpoint) != std::string_view::npos) return "a PyTorch checkpoint (torch.save)";
  if (is_safetensors(begin)) return "a safetensors checkpoint";
  if (is_tar(begin)) return "a tar archive";
  if (is_html(begin)) return "an HTML page";
  if (std::string json = json_format(begin); !json.empty()) return json;
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
  const bool is_message = begin.find("ut of memory") != std::string_view::npos;
  return fmt::format(
      "has no known format: it begins with {}. cachalot reads memory snapshots (PyTorch's pickle, cachalot's JSON), "
      "its own allocation traces, and RMM's logs{}",
      Quoted{line}, is_message ? "; `cachalot explain --message` reads what an error message tells" : "");
}

bool looks_like_trace(std::string_view begin) {
  return begin.size() > 2 && begin.starts_with("a,") && std::isdigit(static_cast<unsigned char>(begin[2]));
}

}  // namespace cachalot::tools
