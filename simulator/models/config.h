// The settings of the environment variable CACHALOT_SIM; simulator/README.md has the table.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "cachalot/simulated_device.h"
#include "simulator/models/context_costs.h"
#include "simulator/models/gpu_models.h"

namespace cachalot::simulator {

// The functions of the driver that need a current context: those that CUDA's reference names; or those of virtual memory,
// too, for which drivers do not require it.
enum class ContextRule : std::uint8_t { none, documented, all };

struct Config {
  const GpuModel* gpu = nullptr;
  std::size_t memory_bytes = 0;  // of each device; the model's unless the setting `memory` says otherwise
  int devices = 1;
  int machine_devices = 1;            // on the machine, whatever CUDA_VISIBLE_DEVICES leaves
  std::vector<int> physical_devices;  // the number on the machine of each device that CUDA_VISIBLE_DEVICES leaves
  std::int64_t launch_ns = 10'000;
  std::size_t copy_bytes = std::size_t{1} << 20;
  bool latencies = true;
  bool copies_take_the_bus = false;  // and pinning takes time; else a copy takes launch_ns and pinning nothing
  std::size_t address_space_bytes = std::size_t{32} << 40;
  std::string shared_path;  // the file of SharedMemory; empty: the process has the devices to itself
  std::string log_path;     // empty: no log
  std::string report_path;  // empty: no report; "-": standard error
  std::vector<Fault> faults;
  ContextRule contexts = ContextRule::documented;
  bool legacy_stream_waits = true;  // it and blocking streams wait for each other
  bool mapping_waits = false;
  bool is_strict = false;
  bool finds_races = false;
  bool are_ranks_absent = false;  // of communicators, all but those of this process
  bool refuses_sizing = false;
  ContextCharge context;  // the memory of the context and each library on a device

  LatencyModel latency() const;
  // Returns the number on the machine of a device of the process.
  int machine_number(int ordinal) const { return physical_devices[static_cast<std::size_t>(ordinal)]; }
};

// Throws InvalidArgument that names variable, key, value and rule.
Config read_config();

// A call by its name, "malloc", "event_query", …; throws InvalidArgument that lists them.
DeviceCall parse_call(std::string_view name);

// "malloc:3", "create:2:error=700", "malloc:5+,map:1": see simulator/README.md. Throws InvalidArgument.
std::vector<Fault> parse_faults(const std::string& text);

}  // namespace cachalot::simulator
