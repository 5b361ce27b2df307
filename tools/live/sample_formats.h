// A sample as JSON and in Prometheus's text format.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "tools/live/sample.h"

namespace cachalot::tools::live {

// The figures of a sample by name: JSON and Prometheus take them from these tables.

enum class FigureKind : std::uint8_t { gauge, counter };

template <typename Owner>
struct Figure {
  std::string_view key;  // of JSON
  std::uint64_t Owner::*member;
  FigureKind kind;
  std::string_view metric;  // of Prometheus, without "cachalot_"
  std::string_view help;
};

inline constexpr Figure<DeviceSample> kDeviceFigures[] = {
    {"total_bytes", &DeviceSample::total_bytes, FigureKind::gauge, "device_total_bytes", "Memory of the device."},
    {"reserved_bytes", &DeviceSample::reserved_bytes, FigureKind::gauge, "reserved_bytes",
     "Memory held from the device."},
    {"allocated_bytes", &DeviceSample::allocated_bytes, FigureKind::gauge, "allocated_bytes",
     "Memory of allocated blocks."},
    {"requested_bytes", &DeviceSample::requested_bytes, FigureKind::gauge, "requested_bytes",
     "Memory that the program asked for."},
    {"active_bytes", &DeviceSample::active_bytes, FigureKind::gauge, "active_bytes",
     "Memory of blocks that are allocated or wait for other streams."},
    {"peak_reserved_bytes", &DeviceSample::peak_reserved_bytes, FigureKind::gauge, "peak_reserved_bytes",
     "Largest reserved memory since the program reset it."},
    {"peak_allocated_bytes", &DeviceSample::peak_allocated_bytes, FigureKind::gauge, "peak_allocated_bytes",
     "Largest allocated memory since the program reset it."},
    {"peak_requested_bytes", &DeviceSample::peak_requested_bytes, FigureKind::gauge, "peak_requested_bytes",
     "Largest requested memory since the program reset it."},
    {"peak_active_bytes", &DeviceSample::peak_active_bytes, FigureKind::gauge, "peak_active_bytes",
     "Largest active memory since the program reset it."},
    {"free_bytes", &DeviceSample::free_bytes, FigureKind::gauge, "free_bytes", "Cached memory in free blocks."},
    {"free_blocks", &DeviceSample::free_blocks, FigureKind::gauge, "free_blocks", "Number of free blocks."},
    {"largest_free_bytes", &DeviceSample::largest_free_bytes, FigureKind::gauge, "largest_free_bytes",
     "Size of the largest free block."},
    {"asleep_bytes", &DeviceSample::asleep_bytes, FigureKind::gauge, "asleep_bytes",
     "Memory given back until it is restored."},
    {"blocks", &DeviceSample::blocks, FigureKind::gauge, "blocks", "Number of allocated blocks."},
    {"segments", &DeviceSample::segments, FigureKind::gauge, "segments", "Number of segments held from the device."},
    {"allocations", &DeviceSample::allocations, FigureKind::counter, "allocations_total", "Allocations so far."},
    {"frees", &DeviceSample::frees, FigureKind::counter, "frees_total", "Frees so far."},
    {"allocated_sum_bytes", &DeviceSample::allocated_sum_bytes, FigureKind::counter, "allocated_bytes_total",
     "Bytes of all blocks allocated so far."},
    {"freed_sum_bytes", &DeviceSample::freed_sum_bytes, FigureKind::counter, "freed_bytes_total",
     "Bytes of all blocks freed so far."},
    {"device_allocations", &DeviceSample::device_allocations, FigureKind::counter, "device_allocations_total",
     "Driver calls that got memory."},
    {"device_frees", &DeviceSample::device_frees, FigureKind::counter, "device_frees_total",
     "Driver calls that gave memory back."},
    {"retries", &DeviceSample::retries, FigureKind::counter, "retries_total",
     "Times the device was asked again after the cache went back."},
    {"ooms", &DeviceSample::ooms, FigureKind::counter, "ooms_total", "Requests that failed for want of memory."},
    {"oom_rejections", &DeviceSample::oom_rejections, FigureKind::counter, "oom_rejections_total",
     "Requests that throw_on_cudamalloc_oom refused."},
    {"stream_waits", &DeviceSample::stream_waits, FigureKind::counter, "stream_waits_total",
     "Times all pending events were waited for."},
};

inline constexpr Figure<PoolSample> kPoolFigures[] = {
    {"reserved_bytes", &PoolSample::reserved_bytes, FigureKind::gauge, "pool_reserved_bytes",
     "Memory that the pool holds from the device."},
    {"used_bytes", &PoolSample::used_bytes, FigureKind::gauge, "pool_used_bytes",
     "Reserved memory of the pool that is in no free block."},
    {"free_bytes", &PoolSample::free_bytes, FigureKind::gauge, "pool_free_bytes",
     "Cached memory in free blocks of the pool."},
    {"free_blocks", &PoolSample::free_blocks, FigureKind::gauge, "pool_free_blocks",
     "Number of free blocks of the pool."},
    {"largest_free_bytes", &PoolSample::largest_free_bytes, FigureKind::gauge, "pool_largest_free_bytes",
     "Size of the largest free block of the pool."},
    {"asleep_bytes", &PoolSample::asleep_bytes, FigureKind::gauge, "pool_asleep_bytes",
     "Memory of the pool given back until it is restored."},
};

// A sample as one JSON object, as `cachalot top --json` prints it (docs/tools/json.md).

nlohmann::ordered_json to_json(const Sample& sample);

// A sample in Prometheus's text format, version 0.0.4: docs/tools/top.md lists the metrics, whose names are stable.

std::string to_prometheus(const Sample& sample);

// Writes the text to a file beside `path` and renames that: readers such as node_exporter's textfile collector see the old text
// or the new one. Throws InvalidArgument, which names path and reason.
void write_textfile(const std::string& path, const std::string& text);

}  // namespace cachalot::tools::live
