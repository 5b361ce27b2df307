// The common parts of the tests of `cachalot top`: a program that publishes (this one), and the command.
#pragma once

#include <cstring>
#include <string>

#include "tests/allocator/testing.h"
#include "tests/live/testing.h"
#include "tests/tools/run_command.h"
#include "tools/live/sample.h"

namespace cachalot::tools::live {

using cachalot::testing::PageFolder;

inline Outcome top(const PageFolder& folder, const std::string& arguments) {
  return run_command(std::string("'") + CACHALOT_COMMAND + "' top --directory '" + folder.path() + "' " + arguments);
}

// This process as a program that publishes: a region that sleeps, and blocks.
struct Program {
  explicit Program(const PageFolder& folder)
      : world(64 * kGiB, "heap:pages"), publisher(world.allocator, folder.options()) {
    world.allocator.begin_tagged("weights");
    live.push_back(world.allocate(512 * kMiB));
    world.allocator.end_tagged("weights");
    live.push_back(world.allocate(100 * kMiB));
    publisher.refresh();
  }
  ~Program() {
    for (void* ptr : live) world.allocator.deallocate(ptr);
  }

  World world;
  std::vector<void*> live;
  StatisticsPublisher publisher;
};

inline GpuSample gpu_of(int index, const std::string& name, const std::vector<GpuProcess>& processes = {}) {
  GpuSample gpu;
  gpu.index = index;
  gpu.name = name;
  gpu.total_bytes = 16 * kGiB;
  gpu.used_bytes = 5 * kGiB;
  gpu.processes = processes;
  return gpu;
}

// A sample without a process behind it.
inline Sample sample_at(double time, std::uint64_t allocated_bytes, std::uint64_t reserved_bytes) {
  Sample sample;
  sample.time = time;
  ProcessSample process;
  process.pid = 4711;
  process.start = 99;
  process.page = "cachalot.4711.0";
  process.command = "python train.py";
  process.refreshed = time;
  DeviceSample device;
  std::strcpy(device.page.name, "NVIDIA H100");
  device.page.total_bytes = 80 * kGiB;
  device.page.allocated_bytes = device.page.requested_bytes = device.page.active_bytes = allocated_bytes;
  device.page.reserved_bytes = reserved_bytes;
  device.page.free_bytes = reserved_bytes - allocated_bytes;
  device.page.largest_free_bytes = device.page.free_bytes / 2;
  device.page.allocations = 1;
  device.page.pool_count = 1;
  device.page.limit_bytes = device.page.soft_limit_bytes = kStatisticsPageNoLimit;
  device.page.listed_pools = 1;
  StatisticsPagePool& pool = device.page.pools[0];
  pool.reserved_bytes = reserved_bytes;
  pool.used_bytes = allocated_bytes;
  pool.free_bytes = device.page.free_bytes;
  process.devices.push_back(device);
  sample.processes.push_back(process);
  return sample;
}

}  // namespace cachalot::tools::live
