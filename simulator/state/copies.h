// Copies and fills of memory, wherever it is, as far as they are done (simulator/README.md, "Content"), and values that streams
// write.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "simulator/base/lock.h"
#include "simulator/models/config.h"
#include "simulator/state/captures.h"
#include "simulator/state/content.h"
#include "simulator/state/cuda_host_memory.h"
#include "simulator/state/devices.h"
#include "simulator/state/stream_state.h"
#include "simulator/state/streams.h"
#include "simulator/state/use_checks.h"

namespace cachalot::simulator {

class Copies {
 public:
  Copies(const Config& config, ContentStore& content, Devices& devices)
      : config_(config), content_(content), devices_(devices) {}

  // `whole_bytes`, the size of a copy or fill in several parts, decides whether it is done. Of a larger copy those parts are done
  // that are known or guessed; the host's memory counts as unknown, except for the bytes that such a copy has brought there.
  void copy(void* to, const void* from, std::size_t bytes, std::size_t whole_bytes) CACHALOT_LOCKED;
  void fill(void* to, std::uint64_t pattern, std::size_t pattern_bytes, std::size_t bytes,
            std::size_t whole_bytes) CACHALOT_LOCKED;
  // Copies however large it is.
  void copy_now(void* to, const void* from, std::size_t bytes) CACHALOT_LOCKED;
  // Device memory, as what kernels would compute is put there and read for it; no call of the program's, and no time.
  void put(void* to, const void* from, std::size_t bytes, KnownContent::Kind kind) CACHALOT_LOCKED;
  // Returns true if all of it is known. `to` may be null.
  bool get(void* to, const void* from, std::size_t bytes) CACHALOT_LOCKED;
  // Writes bytes with a kind for each of them.
  void put(void* to, const void* from, std::size_t bytes, const KnownContent::Kind* kinds) CACHALOT_LOCKED;
  void get_kinds(KnownContent::Kind* kinds, const void* from, std::size_t bytes) CACHALOT_LOCKED;
  // Returns the kinds of the bytes: bit 0 unknown, 1 guessed, 2 known.
  unsigned kinds_in(const void* start, std::size_t bytes) CACHALOT_LOCKED;
  void guess(const void* start, std::size_t bytes, unsigned char byte) CACHALOT_LOCKED;
  void make_unknown(const void* start, std::size_t bytes) CACHALOT_LOCKED;
  // Throws cudaErrorInvalidValue unless the device reaches all of the range, which is device memory.
  void require_access(const void* start, std::size_t bytes) CACHALOT_LOCKED;

 private:
  struct Part {
    std::size_t first = 0;  // from the beginning of a range
    std::size_t bytes = 0;
    KnownContent::Kind kind = KnownContent::Kind::unknown;
  };

  void copy_on_device(void* to, const void* from, std::size_t bytes) CACHALOT_LOCKED;
  std::vector<Part> parts_of(const void* start, std::size_t bytes) CACHALOT_LOCKED;
  void copy_parts_on_device(void* to, const void* from, std::size_t bytes) CACHALOT_LOCKED;
  void copy_parts_to_host(void* to, const void* from, std::size_t bytes) CACHALOT_LOCKED;
  void copy_parts_to_device(void* to, const void* from, std::size_t bytes) CACHALOT_LOCKED;
  template <typename Access>
  void for_each_piece(const void* start, std::size_t bytes, Access&& access) CACHALOT_LOCKED;

  const Config& config_;
  ContentStore& content_ CACHALOT_UNDER_LOCK;
  Devices& devices_;
  // By addresses of the host: the parts that large copies brought there, which may be copied back.
  KnownContent backed_up_ CACHALOT_UNDER_LOCK;
};

// Values that streams write to host or device memory when they get there (cuStreamWriteValue).
class StreamWrites {
 public:
  StreamWrites(HostMemory& host_memory, Devices& devices, Captures& captures, ImplicitOrder& order, UseChecks& uses,
               Copies& copies)
      : host_memory_(host_memory),
        devices_(devices),
        captures_(captures),
        order_(order),
        uses_(uses),
        copies_(copies) {}

  void launch(StreamState& stream, void* to, std::uint64_t value, std::size_t bytes) CACHALOT_LOCKED;
  bool are_pending() const CACHALOT_LOCKED { return !pending_.empty(); }
  // Returns whether forget() must be called.
  bool must_forget() const CACHALOT_LOCKED { return are_pending() || uses_.are_on(); }
  void do_due() CACHALOT_LOCKED;
  // The memory is about to go: nothing is written to it any more, and no use of it lasts.
  void forget(const void* start, std::size_t bytes) CACHALOT_LOCKED;

 private:
  struct Write {
    Gates behind;
    void* to = nullptr;
    std::uint64_t value = 0;
    std::size_t bytes = 0;
  };

  void require_writable(const void* to, std::size_t bytes) CACHALOT_LOCKED;

  HostMemory& host_memory_ CACHALOT_UNDER_LOCK;
  Devices& devices_;
  Captures& captures_;
  ImplicitOrder& order_;
  UseChecks& uses_;
  Copies& copies_;
  std::multimap<std::int64_t, Write> pending_ CACHALOT_UNDER_LOCK;  // by the time they are due
};

}  // namespace cachalot::simulator
