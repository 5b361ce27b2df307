// A Sample is what all statistics pages say at one moment, and what NVML says of the GPUs. Sizes are in bytes; times in seconds
// of Unix time, except for elapsed_s, which is of a monotonic clock.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "cachalot/statistics_page.h"

namespace cachalot::tools::live {

// Returns "default", "tag weights" or "pool 3.0".
std::string name_of(const StatisticsPagePool& pool);
// Returns "" for pools without a tag.
std::string tag_of(const StatisticsPagePool& pool);

// The events of a device per second, between two samples.
struct Rates {
  double allocations = 0;
  double frees = 0;
  double allocated_bytes = 0;
  double driver_calls = 0;
};

struct DeviceSample {
  StatisticsPageDevice page{};  // as its process wrote it; its index and its numbers of pools are possible ones
  std::optional<Rates> rates;   // none in the first sample of a process

  std::string name() const;
  std::string uuid() const;  // "GPU-..." without its prefix; "" if it is unknown
  std::optional<std::uint64_t> limit_bytes() const;
  std::optional<std::uint64_t> soft_limit_bytes() const;
  std::span<const StatisticsPagePool> pools() const;  // the largest; the default pool first

  // 1 - requested / active, and 1 - largest free block / free memory; 0 where there is nothing to divide by.
  double internal_fragmentation() const;
  double external_fragmentation() const;
  // 1 - requested / (reserved + asleep): the share that no allocation asked for.
  double unused_share() const;
  // Returns whether the process has ever used the device.
  bool is_used() const { return page.reserved_bytes != 0 || page.allocations != 0 || page.asleep_bytes != 0; }
};

struct ProcessSample {
  std::uint64_t pid = 0;
  std::uint64_t start = 0;  // clock ticks from boot: tells processes with one number apart
  std::string page;         // name of the file
  std::string command;
  std::string version;
  double published = 0;
  double refreshed = 0;
  double elapsed_s = 0;
  std::uint64_t refreshes = 0;
  double cpu_s = 0;  // processor time of publishing
  std::vector<DeviceSample> devices;
};

struct GpuProcess {
  std::uint64_t pid = 0;
  std::optional<std::uint64_t> used_bytes;  // none where NVML does not tell
};

struct GpuSample {
  int index = 0;  // as in nvidia-smi
  std::string name;
  std::string uuid;
  std::uint64_t total_bytes = 0;
  std::uint64_t used_bytes = 0;
  std::vector<GpuProcess> processes;
};

struct Sample {
  double time = 0;
  std::vector<ProcessSample> processes;        // by pid and page
  std::optional<std::vector<GpuSample>> gpus;  // none without NVML
};

// A RateMeter compares each sample with the one before, and writes the rates of each device into it.
// Not thread-safe. Remembers the processes of the last sample.
class RateMeter {
 public:
  // Sets `rates` of each device that was seen before and whose sums have not been reset since. Where the figures are those of
  // the last sample, because they have not been refreshed since, the rates are those of the last sample, too.
  void measure(Sample& sample);

 private:
  using Key = std::pair<std::uint64_t, std::string>;  // start and page of a process
  std::map<Key, ProcessSample> last_;
};

// Reads the statistics pages of this machine's processes (cachalot/statistics_page.h).
//
// Nothing on a page is believed: sizes and counts are checked, texts are as long as their arrays, and a page must belong to the
// user of the process that it names. Pages are read by system calls: a file that another process truncates is an error, not a
// signal.

struct ReadPages {
  std::vector<ProcessSample> processes;  // by pid and page
  std::vector<std::string> removed;      // paths of pages of processes that have ended
  std::vector<std::string> refused;      // "<path>: <why it is not shown>"
};

// Reads all pages in the folder, tells their publishers that they are read, and removes those of dead processes of this user.
// Throws InvalidArgument if there is no such folder. Blocks: for some milliseconds where a page is being written.
ReadPages read_pages(const std::string& directory);

}  // namespace cachalot::tools::live
