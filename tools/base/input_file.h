// A file that users give us, plain, gzip or a zip archive with one file, read once from its front to its end. Nothing in it
// is believed: its content goes into memory of the reader, which decides its size, and a file that decompresses to far more
// than such files do ends there.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace cachalot::tools {

class ZipMember;

class InputFile {
 public:
  // `what` is for messages: "trace". Throws InvalidArgument, which names path and reason, when it cannot be opened or is a
  // directory.
  InputFile(std::string path, std::string what);
  ~InputFile();
  InputFile(InputFile&& other) noexcept;
  InputFile& operator=(InputFile&&) = delete;

  // The next bytes, decompressed, at most `capacity`; fewer only at the end, where trouble() tells what kind of end it is.
  std::size_t read(char* into, std::size_t capacity);
  // Returns the file's first bytes, kTellingBytes at most, which stay to be read; valid until the first read.
  std::string_view begin();
  // Returns the file's first byte, which stays to be read; nullopt where the file is empty or cannot be read.
  std::optional<unsigned char> peek();
  // Returns the reason why reading ended: "" at the true end of the file; else that it cannot be read, or that its gzip
  // is cut off.
  std::string trouble() const;

  const std::string& path() const { return path_; }
  // Returns the bytes on the disk; nullopt for a file that is not regular, such as a pipe. It cannot be read a second
  // time.
  std::optional<std::size_t> size() const;
  // Returns the most host memory that the history of this file (history/history.h) may take: a multiple of the size on the
  // disk, so that a small file that decompresses to a large one, or describes one, is refused; and three quarters of the
  // machine's.
  std::size_t memory_limit() const;

 private:
  std::size_t read_on(char* into, std::size_t capacity);
  std::size_t read_raw(char* into, std::size_t capacity);
  std::size_t read_raw_of_file(char* into, std::size_t capacity);
  void look_at_begin();
  void skip_mark();

  std::string path_;
  std::string what_;
  void* file_ = nullptr;  // a gzFile; zlib stays out of this header
  std::unique_ptr<ZipMember> zip_;
  std::string ahead_;        // the bytes that only begin() has read so far
  std::string raw_ahead_;    // the same of a zip archive, packed
  bool has_looked_ = false;  // look_at_begin() has run
  std::uint64_t bytes_ = 0;  // that were handed out
  std::uint64_t most_bytes_ = 0;
};

// Files that are easily mistaken for a snapshot or a trace, recognized by how they begin.
inline constexpr std::size_t kTellingBytes = 512;  // as many of a file's first bytes as foreign_format looks at

// Returns what a file is and what to do instead, as in "is a PyTorch checkpoint (torch.save), not a memory snapshot: …";
// "" for a file that is not recognized. `begin` has the file's first bytes, decompressed; `wanted` is "memory snapshot" or
// "trace".
std::string foreign_format(std::string_view begin, std::string_view wanted);

// Returns what to say of a file in no known format: its begin, and the known formats.
std::string unknown_format(std::string_view begin);

// Returns whether the file begins as a trace does: "a,<number>,".
bool looks_like_trace(std::string_view begin);

}  // namespace cachalot::tools
