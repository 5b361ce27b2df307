// The content of the simulated devices' memory: a sparse file without a name, in which a byte's place is its device and
// its physical number. Memory never written reads as zeros and takes no room. Every access is a system call, so that
// device memory needs no room in the address space, and a bad host pointer gives an error instead of a crash. Another
// process reads and writes our memory through the file: by a descriptor that it was sent, as a driver's are sufficient by
// themselves, or by /proc/<process>/fd. process_mutex guards it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

namespace cachalot::simulator {

// KnownContent tells the bytes of device memory that are as a GPU would have computed them. Bytes are known: copied or filled
// by the program, or computed from known bytes; or guessed: computed from bytes that are unknown; or unknown, as nothing has
// written them here. Unknown bytes read as zeros. A guess for a large range may be one byte for all of it. process_mutex
// guards it.
class KnownContent {
 public:
  enum class Kind : unsigned char { unknown, guessed, known };

  // Ranges are of offsets in ContentStore's file, which has their content.
  void note(std::uint64_t first, std::size_t bytes, Kind kind) { put(first, bytes, {0, kind, kNoByte}); }
  // Each byte of the range is guessed to be `byte`.
  void note_uniform(std::uint64_t first, std::size_t bytes, unsigned char byte) {
    put(first, bytes, {0, Kind::guessed, byte});
  }
  // The range is unknown from now on.
  void forget(std::uint64_t first, std::size_t bytes) { carve(first, first + bytes); }
  // Returns whether all of the range is known.
  bool is_known(std::uint64_t first, std::size_t bytes) const;
  // Returns whether all of the range is unknown, so that it has no content.
  bool is_unknown(std::uint64_t first, std::size_t bytes) const;

  // Returns the kinds in the range: bit 0 unknown, 1 guessed, 2 known.
  unsigned kinds_in(std::uint64_t first, std::size_t bytes) const;
  // Sets the kind of each byte of the range.
  void kinds(std::uint64_t first, std::size_t bytes, Kind* kinds) const;

  // Calls visit(first, bytes, kind, byte) for each part of the range that is known or guessed; `byte` is kNoByte if the content
  // is in the file.
  static constexpr int kNoByte = -1;
  template <typename Visit>
  void for_each_part(std::uint64_t first, std::size_t bytes, Visit&& visit) const {
    const std::uint64_t end = first + bytes;
    for (auto run = run_at_or_after(first); run != runs_.end() && run->first < end; ++run) {
      const std::uint64_t from = run->first < first ? first : run->first;
      const std::uint64_t to = run->second.end < end ? run->second.end : end;
      visit(from, static_cast<std::size_t>(to - from), run->second.kind, run->second.byte);
    }
  }

 private:
  struct Run {
    std::uint64_t end;
    Kind kind;
    int byte;
  };
  using Runs = std::map<std::uint64_t, Run>;  // by their beginnings; they do not overlap

  Runs::const_iterator run_at_or_after(std::uint64_t first) const;
  void put(std::uint64_t first, std::size_t bytes, Run run);
  void carve(std::uint64_t first, std::uint64_t end);
  void merge_with_next(Runs::iterator run);

  Runs runs_;
};

// A place in device memory.
struct Place {
  int device = 0;
  std::uint64_t physical = 0;
};

class ContentStore {
 public:
  // Each throws CudaError: 1 for a host address that cannot be read or written, 999 when the file cannot grow.
  void write(const Place& to, const void* from, std::size_t bytes, KnownContent::Kind kind = KnownContent::Kind::known);
  void read(void* to, const Place& from, std::size_t bytes);
  void fill(const Place& to, std::uint64_t pattern, std::size_t pattern_bytes, std::size_t bytes);

  // Returns whether the bytes are what a GPU would hold. Memory of another process counts as known.
  bool is_known(const Place& first, std::size_t bytes) const;
  // Returns the kinds of the bytes: bit 0 unknown, 1 guessed, 2 known.
  unsigned kinds_in(const Place& first, std::size_t bytes) const;
  // Sets the kind of each byte.
  void kinds(const Place& first, std::size_t bytes, KnownContent::Kind* kinds) const;
  // Calls visit(first, bytes, kind) for each part that has content of its own; `first` counts from the beginning of the range.
  // Memory of another process has none, nor has a guess of one byte for all of a range.
  template <typename Visit>
  void for_each_part(const Place& first, std::size_t bytes, Visit&& visit) const;
  // Each byte is guessed to be `byte`. It takes no room.
  void guess(const Place& first, std::size_t bytes, unsigned char byte);
  // The bytes are unknown from now on, and read as zeros.
  void make_unknown(const Place& first, std::size_t bytes);

  // Drops the content of released memory: its room is given back.
  void forget(const Place& first, std::size_t bytes);

  // Sharing. Where our memory is, for others; and memory of another process, behind a range of our own numbers.
  struct Window {
    int process;
    int file;
    std::uint64_t offset;
  };
  Window window(const Place& first);
  // False when the other process is gone or forbids it. `forget` ends it. An exporter's file is open once. `descriptor` is
  // of its file and stays the caller's; -1: there is none.
  bool attach(const Place& first, std::size_t bytes, const Window& window, int descriptor = -1);
  // Returns a new descriptor of our file, whose position is a note of these bytes; -1 if the system has none.
  int descriptor_with(const void* note, std::size_t bytes);

 private:
  static constexpr int kDeviceShift = 48;  // physical numbers are below 2^48

  using Exporter = std::pair<int, int>;  // process and file
  struct ForeignFile {
    int file = -1;
    std::size_t windows = 0;
  };
  struct Attached {
    std::size_t bytes = 0;
    int file = -1;
    std::uint64_t offset = 0;
    Exporter exporter;
  };
  struct Spot {
    int file = -1;
    std::uint64_t offset = 0;
  };

  // Returns the place of a byte in our file.
  static std::uint64_t offset_of(const Place& place) {
    return static_cast<std::uint64_t>(place.device) << kDeviceShift | place.physical;
  }
  Spot spot(const Place& place);
  // The range of another process that contains the place, by its beginning; end() if there is none.
  std::map<std::uint64_t, Attached>::const_iterator attached_at(const Place& place) const;
  int file();
  void detach(const Attached& attached);
  void note_written(const Place& first, std::size_t bytes);

  int file_ = -1;
  std::uint64_t next_note_ = std::uint64_t{1} << 62;  // behind all devices' memory
  bool written_ = false;                              // anything, ever
  std::vector<std::vector<bool>> touched_;            // by device, by 2 MiB of physical numbers
  KnownContent known_;
  std::map<std::uint64_t, Attached> attached_;
  std::map<Exporter, ForeignFile> foreign_files_;
};

template <typename Visit>
void ContentStore::for_each_part(const Place& first, std::size_t bytes, Visit&& visit) const {
  if (attached_at(first) != attached_.end()) return;
  const std::uint64_t offset = offset_of(first);
  known_.for_each_part(offset, bytes, [&](std::uint64_t from, std::size_t part, KnownContent::Kind kind, int byte) {
    if (byte == KnownContent::kNoByte) visit(static_cast<std::size_t>(from - offset), part, kind);
  });
}

}  // namespace cachalot::simulator
