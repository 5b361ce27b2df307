// The file in which the processes of a run keep what they take of the devices: `shared` of CACHALOT_SIM.
//
// Each process has a slot, and a record lock on the slot's byte as long as it lives: the kernel ends it, however the process
// ends. The content of a slot without a lock no longer counts. All of the file is mapped, and is used under the record lock
// of kMutexByte.
#pragma once

#include <cstddef>
#include <cstdint>

namespace cachalot::simulator {

struct SharedMemoryFile {
  static constexpr std::size_t kDevices = 64;  // of the machine, by their number there
  static constexpr std::size_t kSlots = 1024;
  static constexpr std::int64_t kMutexByte = 0;
  static constexpr std::int64_t kFirstSlotByte = 1;

  struct Slot {
    std::uint64_t used_bytes[kDevices];
  };

  static constexpr std::uint64_t kKind = 0x31656C69466D6953;  // the first bytes of such a file: "SimFile1"

  std::uint64_t kind;
  std::uint64_t peak_bytes[kDevices];  // of all processes together
  std::uint64_t used_slots;            // those behind were never used
  Slot slots[kSlots];
};

}  // namespace cachalot::simulator
