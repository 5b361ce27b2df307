// What is in the simulated devices' memory: a sparse file without a name, in which a byte's place is its device and its
// physical number. Memory never written reads as zeros and takes no room. Every access is a system call, so that device
// memory needs no room in the address space, and a bad host pointer gives an error instead of a crash.
// Another process reads and writes our memory through the file, by /proc/<process>/fd.
// process_mutex guards it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "simulator/known_content.h"

namespace cachalot::simulator {

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

  // Whether the bytes are what a GPU would hold. Memory of another process counts as known.
  bool is_known(const Place& first, std::size_t bytes) const;
  // Which kinds there are: bit 0 unknown, 1 guessed, 2 known.
  unsigned kinds_in(const Place& first, std::size_t bytes) const;
  // Sets the kind of each byte.
  void kinds(const Place& first, std::size_t bytes, KnownContent::Kind* kinds) const;
  // Each byte is guessed to be `byte`. It takes no room.
  void guess(const Place& first, std::size_t bytes, unsigned char byte);
  // The bytes are unknown from now on, and read as zeros.
  void make_unknown(const Place& first, std::size_t bytes);

  // The memory is no more: its room is given back.
  void forget(const Place& first, std::size_t bytes);

  // Sharing. Where our memory is, for others; and memory of another process, behind a range of our own numbers.
  struct Window {
    int process;
    int file;
    std::uint64_t offset;
  };
  Window window(const Place& first);
  // False when the other process is gone or forbids it. `forget` ends it. An exporter's file is open once.
  bool attach(const Place& first, std::size_t bytes, const Window& window);

 private:
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

  Spot spot(const Place& place);
  // The range of another process that contains the place, by its beginning; end() if there is none.
  std::map<std::uint64_t, Attached>::const_iterator attached_at(const Place& place) const;
  int file();
  void detach(const Attached& attached);
  void note_written(const Place& first, std::size_t bytes);

  int file_ = -1;
  bool written_ = false;                    // anything, ever
  std::vector<std::vector<bool>> touched_;  // by device, by 2 MiB of physical numbers
  KnownContent known_;
  std::map<std::uint64_t, Attached> attached_;
  std::map<Exporter, ForeignFile> foreign_files_;
};

}  // namespace cachalot::simulator
