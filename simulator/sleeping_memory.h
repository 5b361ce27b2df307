// Addresses whose memory went while they stayed reserved: memory that is asleep, or free memory that a heap of virtual memory
// mapped elsewhere. A use of them is a mistake of the program, which on a GPU ends it.
// process_mutex guards everything here.
#pragma once

#include <cstddef>
#include <map>

#include "cachalot/call_stack.h"
#include "cachalot/device.h"
#include "simulator/watch.h"

namespace cachalot::simulator {

class SleepingMemory {
 public:
  explicit SleepingMemory(Watch& watch) : watch_(watch) {}

  // cuMemUnmap took the memory of the range.
  void add(const AddressRange& range);
  // The range has memory again, or is no longer reserved.
  void remove(const AddressRange& range);

  // Throws cudaErrorInvalidValue if a part of the bytes is asleep. The report names call, bytes and range; a strict run adds
  // the stacks of the use and of the unmapping.
  void require_awake(const char* call, const void* start, std::size_t bytes);

 private:
  struct Asleep {
    std::size_t bytes = 0;
    CallStack stack;  // of the unmapping, in a strict run
  };
  std::map<Address, Asleep>::iterator first_behind(Address address);

  Watch& watch_;
  std::map<Address, Asleep> asleep_;  // by their beginnings; they do not overlap
};

}  // namespace cachalot::simulator
