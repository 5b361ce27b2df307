// What a record of samples (record_reader.h) says: the peaks, what grows, and how fragmentation developed.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tools/live/record_reader.h"

namespace cachalot::tools::live {

// How one figure of bytes developed.
struct Growth {
  double bytes_per_hour = 0;  // the median of the slopes between the low points (Theil and Sen)
  double confidence = 0;      // that the low points rise, in (0, 1) (Mann and Kendall)
  bool is_certain = false;    // they rise from third to third, with a confidence of at least 0.999
};

struct PoolSummary {
  std::string name;  // PoolSample::name
  std::uint64_t peak_used_bytes = 0;
  std::uint64_t peak_reserved_bytes = 0;
  Growth growth;  // of used_bytes
};

// Fragmentation over a stretch of time.
struct FragmentationPoint {
  double time = 0;           // begin of the stretch, seconds of Unix time
  double mean_internal = 0;  // 1 - requested / active
  double mean_external = 0;  // 1 - largest free block / free memory
  double mean_unused = 0;    // 1 - requested / (reserved + asleep)
};

struct DeviceSummary {
  std::uint64_t pid = 0;
  std::string command;
  int device = 0;
  std::string name;
  double first_seen = 0;
  double last_seen = 0;
  std::uint64_t samples = 0;
  std::uint64_t peak_allocated_bytes = 0;  // of the samples: the program's own peak may be higher
  double peak_allocated_time = 0;
  std::uint64_t peak_reserved_bytes = 0;
  double peak_reserved_time = 0;
  std::uint64_t highest_peak_allocated_bytes = 0;  // the highest of the program's own peaks
  std::uint64_t highest_peak_reserved_bytes = 0;
  std::uint64_t ooms = 0;          // more than at the first sample
  std::uint64_t retries = 0;       // likewise
  Growth growth;                   // of allocated_bytes: a leak, if it goes on
  std::vector<PoolSummary> pools;  // the largest peak first
  std::vector<FragmentationPoint> fragmentation;
};

struct RecordSummary {
  std::uint64_t samples = 0;
  double first_time = 0;
  double last_time = 0;
  bool is_cut = false;
  std::vector<DeviceSummary> devices;  // those that were used, the largest peak first
};

// Reads the rest of the record. Memory is bounded by the number of processes and pools, not by the length: throws
// InvalidArgument for more than kMostSummarized of them.
RecordSummary summarize(RecordReader& record);
inline constexpr std::size_t kMostSummarized = 65536;

}  // namespace cachalot::tools::live
