// The only file in a zip archive, decompressed while the archive is read from front to end: as a file manager packs a
// snapshot. The archive's directory, at its end, is not needed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace cachalot::tools {

class ZipMember {
 public:
  // Fills the buffer as far as the archive goes, and returns how far.
  using Read = std::function<std::size_t(char* into, std::size_t capacity)>;

  explicit ZipMember(Read read);
  ~ZipMember();
  ZipMember(const ZipMember&) = delete;
  ZipMember& operator=(const ZipMember&) = delete;

  void set_source(Read read) { read_ = std::move(read); }  // where the archive moved to

  // The next bytes of the file; fewer than `capacity` only at its end.
  std::size_t read(char* into, std::size_t capacity);
  // What is wrong with the archive; "" while nothing is known.
  const std::string& trouble() const { return trouble_; }

 private:
  struct Inflater;

  void begin();
  bool refill();
  std::string take(std::size_t bytes);
  std::size_t inflate(char* into, std::size_t capacity);
  std::size_t copy(char* into, std::size_t capacity);
  void finish();

  Read read_;
  std::vector<char> raw_;
  std::size_t raw_begin_ = 0;
  std::size_t raw_end_ = 0;
  std::unique_ptr<Inflater> inflater_;  // nullptr: the file is stored
  std::uint64_t stored_left_ = 0;
  bool is_at_end_ = false;
  std::string trouble_;
};

// Returns whether a file that begins so is a zip archive whose first file may be a snapshot or a trace: not one of those
// that PyTorch and NumPy write.
bool is_plain_zip(std::string_view begin);

}  // namespace cachalot::tools
