// Finds memory that is handed out, given back or unmapped while work may still use it.
//
// Each stream has a vector clock: which launches of which stream come before its next work. The host has one: which
// launches it has seen finish, by asking an event or waiting, not by the passing of time. Launches that the host has
// seen finish come before all work queued later.
//   A launch is a use of its bytes. Uses are kept by physical byte, so that a use through one address counts for every
//   address of the same memory, and by mapping, so that an unmap answers only for uses through that mapping.
//   A handout requires that every earlier use of its bytes comes before the stream it is for, and no live handout of
//   the same bytes. Uses that the host has seen finish are forgotten then; others stay, since an unmap must still
//   answer for them.
//   An unmap requires that the host has seen every use through the mapping finish, and no live handout at its address;
//   a free requires the latter (it waits for all work by itself).
// Uses within one handout are not checked against each other: they may all read.
//
// Each check throws HazardError, which names both parties, and then has changed nothing.
// Not thread-safe; the device's mutex guards it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/format.h"
#include "cachalot/device.h"
#include "cachalot/simulated_device.h"
#include "simulator/device/interval_map.h"
#include "simulator/device/simulated_memory.h"
#include "simulator/device/vector_clock.h"

CACHALOT_BEGIN

// The latest launch of a stream that used memory through one mapping; earlier ones on the stream come before it.
struct Use {
  std::size_t stream = 0;    // the checker's number
  std::uint64_t launch = 0;  // of the stream: 1, 2, …
  std::uint64_t mapping = 0;
  friend bool operator==(const Use&, const Use&) = default;
};

// The uses of some physical bytes that still matter.
struct UsedBytes {
  Address owner = 0;  // of the live handout that holds them; 0: none
  std::vector<Use> uses;
  friend bool operator==(const UsedBytes&, const UsedBytes&) = default;
};
using UseMap = IntervalMap<UsedBytes>;

// Keeps the latest use per stream and mapping.
void add_use(std::vector<Use>& uses, const Use& use);

class HazardChecker {
 public:
  using Pieces = std::span<const MemoryPiece>;

  // Order of work.
  void recorded(Stream stream, VectorClock& event) { event = stream_clock(number_of(stream)); }
  void waited(Stream stream, const VectorClock& event) { stream_clock(number_of(stream)).join(event); }
  void host_saw(const VectorClock& event) { host_.join(event); }
  void host_saw_stream(Stream stream) { host_.join(stream_clock(number_of(stream))); }
  void host_saw_everything();

  // Work queued so far on the other stream comes before that of the stream, as the legacy stream has it.
  void joined(Stream stream, Stream other);
  // Orders the stream after blocking streams that were destroyed.
  void joined_destroyed(Stream stream) { stream_clock(number_of(stream)).join(destroyed_blocking_); }
  // The name is that of another stream from now on.
  void destroyed(Stream stream, bool was_blocking);
  // One launch begins; each piece of its memory is used by it.
  void launched(Stream stream);
  void used(Stream stream, const MemoryPiece& piece);

  // Notes the memory that the allocator's owner holds. `pieces` are its places; empty: nowhere accessible, a hazard.
  void handed_out(Address address, std::size_t bytes, Stream stream, Pieces pieces);
  std::size_t handout_bytes(Address address) const;  // throws if none is live there
  void given_back(Address address, Pieces pieces);

  void check_unmap(Pieces mappings);
  void check_no_handout(const char* call, Address address, std::size_t bytes) const;
  // The physical bytes are gone; their numbers do not come again.
  void forget(std::uint64_t first, std::size_t bytes) { uses_.erase(first, bytes); }

 private:
  struct Handout {
    std::size_t bytes = 0;
    Stream stream = nullptr;
  };

  std::size_t number_of(Stream stream);
  VectorClock& stream_clock(std::size_t number) { return clocks_[number]; }
  bool host_has_seen(const Use& use) const { return use.launch <= host_[use.stream]; }
  bool comes_before(const Use& use, std::size_t stream) const {
    return use.launch <= clocks_[stream][use.stream] || host_has_seen(use);
  }
  void check_handout(Address address, std::size_t bytes, Stream stream, Pieces pieces);
  std::string describe(const Use& use) const;
  std::string describe(Address address, const Handout& handout) const;

  std::unordered_map<Stream, std::size_t> numbers_;
  std::vector<Stream> names_;        // by number
  std::vector<VectorClock> clocks_;  // by number
  VectorClock host_;
  VectorClock destroyed_blocking_;
  UseMap uses_;
  std::map<Address, Handout> handouts_;  // live, by address
};

CACHALOT_END
