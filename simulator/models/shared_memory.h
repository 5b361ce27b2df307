// This process's memory on devices that other processes of the run use as well, in the file that `shared` of CACHALOT_SIM names.
// Thread-safe; each call is a few system calls.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "cachalot/simulated_device.h"
#include "simulator/models/shared_memory_file.h"

namespace cachalot::simulator {

// A DeviceUser is another process of the run that has memory of a device.
struct DeviceUser {
  int process = 0;  // its number in the system
  std::size_t bytes = 0;
};

class SharedMemory {
 public:
  // Takes a slot of the file. Throws InvalidArgument if that cannot be done.
  explicit SharedMemory(const std::string& path);
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  // The account of a device by its number on the machine, for SimulatedDevice. It must not outlive this.
  MemoryAccount account(int physical_device, std::size_t memory_bytes);
  // Returns the other processes that have memory of a device, by its number on the machine.
  std::vector<DeviceUser> others(int physical_device);

  // Returns the processes other than this one that have memory of a device, for a process that takes no memory itself. Empty if there is
  // no such file.
  static std::vector<DeviceUser> users(const std::string& path, int physical_device);

 private:
  // Keeps other threads and other processes away.
  class Locked;

  bool take(std::size_t device, std::size_t bytes, std::size_t memory_bytes);
  void give_back(std::size_t device, std::size_t bytes);
  std::size_t used_bytes(std::size_t device);

  bool require_own_file(const std::string& path) const;
  bool lock_byte(std::int64_t byte, int command, short type) const;
  bool is_alive(std::size_t slot) const;
  std::size_t take_slot(const std::string& path);
  void forget_dead();
  std::size_t sum(std::size_t device) const;

  int file_ = -1;
  SharedMemoryFile* shared_ = nullptr;
  std::size_t own_slot_ = 0;
  std::mutex mutex_;  // record locks are the process's
};

}  // namespace cachalot::simulator
