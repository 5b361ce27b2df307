#include "tools/zip_member.h"

#include <zlib.h>

#include <algorithm>
#include <utility>

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

}  // namespace

struct ZipMember::Inflater {
  z_stream stream = {};
  Inflater() { inflateInit2(&stream, -MAX_WBITS); }
  ~Inflater() { inflateEnd(&stream); }
  Inflater(const Inflater&) = delete;
  Inflater& operator=(const Inflater&) = delete;
};

ZipMember::ZipMember(Read read) : read_(std::move(read)), raw_(std::size_t{1} << 16) { begin(); }
ZipMember::~ZipMember() = default;

void ZipMember::begin() {
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

bool ZipMember::refill() {
  raw_begin_ = 0;
  raw_end_ = read_(raw_.data(), raw_.size());
  return raw_end_ != 0;
}

std::string ZipMember::take(std::size_t bytes) {
  std::string taken;
  while (taken.size() < bytes && (raw_begin_ < raw_end_ || refill())) {
    const std::size_t some = std::min(bytes - taken.size(), raw_end_ - raw_begin_);
    taken.append(raw_.data() + raw_begin_, some);
    raw_begin_ += some;
  }
  return taken;
}

std::size_t ZipMember::read(char* into, std::size_t capacity) {
  std::size_t filled = 0;
  while (filled < capacity && !is_at_end_ && trouble_.empty()) {
    const std::size_t some =
        inflater_ ? inflate(into + filled, capacity - filled) : copy(into + filled, capacity - filled);
    filled += some;
  }
  return filled;
}

std::size_t ZipMember::inflate(char* into, std::size_t capacity) {
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

std::size_t ZipMember::copy(char* into, std::size_t capacity) {
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
void ZipMember::finish() {
  is_at_end_ = true;
  if (take(kDescriptorBytes).find(kLocalHeader) != std::string::npos) {
    trouble_ = "the zip archive has several files: unpack it and give one of them";
  }
}

bool is_plain_zip(std::string_view begin) {
  if (!begin.starts_with(kLocalHeader)) return false;
  const std::string_view name = begin.substr(std::min(kLocalHeaderBytes, begin.size()));
  return name.find("data.pkl") == std::string_view::npos && name.find(".npy") == std::string_view::npos;
}

}  // namespace cachalot::tools
