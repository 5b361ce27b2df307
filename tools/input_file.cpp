#include "tools/input_file.h"

#include <fmt/format.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "base/bytes.h"
#include "base/check.h"
#include "tools/foreign_files.h"
#include "tools/zip_member.h"

namespace cachalot::tools {
namespace {

constexpr unsigned kReadBytes = 1 << 17;
constexpr std::size_t kMostPerRead = std::size_t{1} << 30;  // gzread counts with an int

// Of what PyTorch writes, a byte takes up to ten in memory, and gzip packs it to a thirtieth.
constexpr std::size_t kMemoryPerByte = 500;
constexpr std::size_t kMemoryAtLeast = 64 * kMiB;
constexpr std::size_t kMemoryOfPipe = 4 * kGiB;

// What PyTorch writes is packed to a thirtieth at best, lines of text to a hundredth. Deflate can pack to a thousandth.
constexpr std::uint64_t kMostPacked = 250;
constexpr std::uint64_t kPackedAtLeast = 256 * kMiB;

std::size_t memory_of_machine() {
  const long pages = sysconf(_SC_PHYS_PAGES);
  return static_cast<std::size_t>(std::max(pages, 1L << 10)) * static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
}

gzFile gz(void* file) { return static_cast<gzFile>(file); }

}  // namespace

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
  if (!is_plain_zip(raw_ahead_)) return;
  zip_ = std::make_unique<ZipMember>([this](char* into, std::size_t capacity) { return read_raw(into, capacity); });
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

// Of a file cut off, zlib hands out what it could still decode first.
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

}  // namespace cachalot::tools
